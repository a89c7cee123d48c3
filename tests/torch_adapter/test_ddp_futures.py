"""`ddp_hook` on one rank, with buckets made by hand: its futures, its thread, its arguments."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

import commrt.torch as hvd
from harness import wait_until


class Bucket:
    """What a hook asks of DDP's `GradBucket`."""

    def __init__(self, *values: float) -> None:
        self._buffer = torch.tensor(values)

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self._buffer


class Quarters:
    """Integers that stand for quarters."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (tensor * 4).round().to(torch.int32), None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        return tensor.double() / 4


class Broken(Quarters):
    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        raise ZeroDivisionError("no way back")


def helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("commrt ddp")}


@pytest.fixture
def _no_helpers() -> Iterator[None]:
    gc.collect()
    wait_until(lambda: not helpers(), "the helpers of other tests end")
    yield


def test_before_init_there_is_no_hook() -> None:
    with pytest.raises(hvd.InitError, match="call init"):
        hvd.ddp_hook()


@pytest.mark.usefixtures("world")
def test_what_cannot_compress_and_what_is_no_process_set_are_refused() -> None:
    for wrong in ("fp16", None, hvd.Compression):
        with pytest.raises(hvd.ArgumentError, match="compression must be"):
            hvd.ddp_hook(wrong)  # type: ignore[arg-type]
    with pytest.raises(hvd.ArgumentError, match="a ProcessSet is needed, not None"):
        hvd.ddp_hook(process_set=None)  # type: ignore[arg-type]
    with pytest.raises(hvd.InitError, match="not registered"):
        hvd.ddp_hook(process_set=hvd.ProcessSet([0]))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.bf16, Quarters])
def test_the_result_lies_in_the_buckets_memory(compression: type[Quarters]) -> None:
    bucket = Bucket(1.25, -2.5)
    result = hvd.ddp_hook(compression)(None, bucket).wait()
    assert result is bucket.buffer()
    assert result.dtype is torch.float32 and result.tolist() == [1.25, -2.5]


@pytest.mark.usefixtures("world")
def test_an_error_in_a_future_is_the_one_that_python_gets() -> None:
    future = hvd.ddp_hook(Broken)(None, Bucket(1.0))
    with pytest.raises(ZeroDivisionError, match="no way back"):
        future.wait()


@pytest.mark.usefixtures("world")
def test_futures_are_completed_by_a_thread_of_the_hook() -> None:
    chose: list[str] = []
    may_go = threading.Event()

    class Slow(Quarters):
        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
            chose.append(threading.current_thread().name)
            assert may_go.wait(30)
            return tensor / 4

    future = hvd.ddp_hook(Slow)(None, Bucket(0.5))
    assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]  # the engine is free meanwhile
    assert not future.done()
    may_go.set()
    assert future.wait().tolist() == [0.5]
    assert chose == ["commrt ddp_0"]


@pytest.mark.usefixtures("_no_helpers", "world")
def test_the_thread_ends_with_the_hook() -> None:
    hook = hvd.ddp_hook()
    hook(None, Bucket(1.0)).wait()
    assert len(helpers()) == 1
    del hook
    gc.collect()
    wait_until(lambda: not helpers(), "the helper ends")


@pytest.mark.usefixtures("_no_helpers")
def test_the_thread_ends_with_the_runtime_and_the_hook_says_so() -> None:
    hvd.init()
    hook = hvd.ddp_hook()
    hvd.shutdown()
    gc.collect()
    wait_until(lambda: not helpers(), "the helper ends")
    with pytest.raises(hvd.InitError, match="call init"):
        hook(None, Bucket(1.0)).wait()
    hvd.init()
    with pytest.raises(hvd.InitError, match=r"ddp\.0 was made under another init"):
        hook(None, Bucket(1.0)).wait()
    hvd.shutdown()

from __future__ import annotations

import copy
import io

import pytest
import torch

import commrt.torch as hvd
from commrt.api import session
from commrt.core.bucketing import FixedBuckets
from commrt.engine.arena import ALIGNMENT
from commrt.torch.buckets import DenseBucket, Member, Way, cut_up, lay_out
from commrt.transports.base import OwnMemory
from commrt.types import Kind, ReduceOp, Signature


def _plan(
    params: list[torch.Tensor], nbytes: int = 1 << 20, first: int = 1 << 20, codec: str = "none",
    groups: tuple[int, ...] = (),
) -> list[DenseBucket]:  # fmt: skip
    groups = groups or (-1,) * len(params)
    members = [
        Member(i, f"p{i}", p, g) for i, (p, g) in enumerate(zip(params, groups, strict=True))
    ]
    like = Signature(Kind.ALLREDUCE, (), ReduceOp.AVERAGE, codec=codec)
    return cut_up(lay_out(members[::-1], OwnMemory().allocate), like, FixedBuckets(nbytes, first))


def _names(buckets: list[DenseBucket]) -> list[list[str]]:
    return [[member.name for member in bucket.members] for bucket in buckets]


def _views(bucket: DenseBucket) -> list[torch.Tensor]:
    return bucket._views.tensors


def _launch(bucket: DenseBucket) -> None:
    bucket.launch(Way(session(), hvd.global_process_set, "optimizer.7"))


def test_gradients_lie_in_reverse_order_the_first_bucket_small() -> None:
    buckets = _plan([torch.ones(100) for _ in range(7)], nbytes=1200, first=400)
    assert _names(buckets) == [["p6"], ["p5", "p4", "p3"], ["p2", "p1", "p0"]]
    assert [bucket.number for bucket in buckets] == [0, 1, 2]


def test_sizes_are_counted_as_they_travel() -> None:
    params = [torch.ones(100) for _ in range(4)]
    assert [len(b) for b in _names(_plan(params, nbytes=400, first=400))] == [1, 1, 1, 1]
    assert [len(b) for b in _names(_plan(params, nbytes=400, first=400, codec="fp16"))] == [2, 2]


def test_every_span_starts_at_a_multiple_of_128_bytes() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        params = [torch.ones(n, dtype=dtype) for n in (1, 3, 64, 65, 129)]
        (bucket,) = _plan(params)
        pointers = [view.data_ptr() for view in _views(bucket)]
        assert [pointer % ALIGNMENT for pointer in pointers] == [0] * 5
        assert pointers == sorted(pointers)


def test_each_dtype_has_an_arena() -> None:
    params = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(3)]
    assert _names(_plan(params)) == [["p2", "p0"], ["p1"]]


def test_a_group_has_a_bucket_of_its_own_in_each_dtype() -> None:
    params = [torch.ones(100) for _ in range(5)] + [torch.ones(2, dtype=torch.float64)]
    buckets = _plan(params, nbytes=400, first=400, groups=(0, -1, 0, 1, -1, 0))
    assert _names(buckets) == [["p5"], ["p4"], ["p1"], ["p2", "p0"], ["p3"]]


@pytest.mark.usefixtures("world")
def test_a_view_that_users_have_moved_comes_back_with_what_it_holds() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    (bucket,) = _plan([param])
    param.grad = torch.ones(3)
    _launch(bucket)
    bucket.adopt()
    assert param.grad is _views(bucket)[0]
    place = param.grad.data_ptr()
    param.grad.data = torch.full((3,), 5.0)
    _launch(bucket)
    bucket.adopt()
    assert torch.equal(param.grad, torch.full((3,), 5.0))
    assert param.grad.data_ptr() == place


def test_a_view_is_a_tensor_of_its_own() -> None:
    (bucket,) = _plan([torch.ones(1000), torch.ones(4)])
    small = _views(bucket)[0]
    assert not small._is_view()
    version = small._version
    _views(bucket)[1].add_(1)
    assert small._version == version
    assert copy.deepcopy(small).untyped_storage().nbytes() == 16
    file = io.BytesIO()
    torch.save(small, file)
    assert len(file.getvalue()) < 3000


def test_a_view_has_the_strides_of_its_parameter() -> None:
    conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last).weight
    (bucket,) = _plan([conv, torch.ones(4, 5).t(), torch.ones(()), torch.ones(6, 2)[:, :1]])
    loose, scalar, turned, last = _views(bucket)
    assert last.stride() == conv.stride()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert turned.stride() == (1, 5)
    assert scalar.shape == ()
    assert loose.stride() == (1, 1)


@pytest.mark.usefixtures("world")
def test_the_memory_order_is_announced() -> None:
    conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    (bucket,) = _plan(list(conv.parameters()))
    specs = bucket._wire[1].tensors
    assert [spec.order for spec in specs] == [None, (0, 2, 3, 1)]
    assert [spec.shape for spec in specs] == [(8,), (8, 3, 3, 3)]


@pytest.mark.usefixtures("world")
def test_an_empty_parameter_takes_part() -> None:
    params = [torch.ones(3), torch.ones(0, 4)]
    (bucket,) = _plan(params)
    for param in params:
        param.grad = param.clone()
    _launch(bucket)
    bucket.adopt()
    assert [tuple(param.grad.shape) for param in params if param.grad is not None] == [(3,), (0, 4)]


@pytest.mark.usefixtures("world")
def test_padding_stays_zero() -> None:
    params = [torch.ones(3), torch.ones(5)]
    (bucket,) = _plan(params)
    for param in params:
        param.grad = param.clone()
    _launch(bucket)
    assert bucket.error() is None
    span = bucket._wire[0]
    assert span.sum() == 8
    assert span.size > 8


def test_what_cannot_be_reduced_is_refused_by_name() -> None:
    with pytest.raises(hvd.ArgumentError, match=r"parameter 'p0'.*float8"):
        _plan([torch.ones(2, dtype=torch.float8_e4m3fn)])

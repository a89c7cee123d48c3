from __future__ import annotations

import copy
import io

import pytest
import torch

import commrt.torch as hvd
from commrt.core.bucketing import FixedBuckets
from commrt.engine.arena import ALIGNMENT
from commrt.torch.buckets import Bucket, plan_buckets
from commrt.types import Kind, ReduceOp, Signature


def _plan(
    params: list[torch.Tensor], nbytes: int = 1 << 20, first: int = 1 << 20, codec: str = "none"
) -> list[Bucket]:
    named = [(f"p{i}", param) for i, param in enumerate(params)]
    like = Signature(Kind.ALLREDUCE, (), ReduceOp.AVERAGE, codec=codec)
    return plan_buckets(named, like, FixedBuckets(nbytes, first), "optimizer.7")


def _names(buckets: list[Bucket]) -> list[list[str]]:
    return [[place.name for place in bucket.places] for bucket in buckets]


def test_gradients_lie_in_reverse_order_the_first_bucket_small() -> None:
    buckets = _plan([torch.ones(100) for _ in range(7)], nbytes=1200, first=400)
    assert _names(buckets) == [["p6"], ["p5", "p4", "p3"], ["p2", "p1", "p0"]]
    assert [bucket.name for bucket in buckets] == [f"optimizer.7/bucket.{i}" for i in range(3)]


def test_sizes_are_counted_as_they_travel() -> None:
    params = [torch.ones(100) for _ in range(4)]
    assert [len(b) for b in _names(_plan(params, nbytes=400, first=400))] == [1, 1, 1, 1]
    assert [len(b) for b in _names(_plan(params, nbytes=400, first=400, codec="fp16"))] == [2, 2]


def test_every_span_starts_at_a_multiple_of_128_bytes() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        params = [torch.ones(n, dtype=dtype) for n in (1, 3, 64, 65, 129)]
        (bucket,) = _plan(params)
        pointers = [place.view.data_ptr() for place in bucket.places]
        assert [pointer % ALIGNMENT for pointer in pointers] == [0] * 5
        assert pointers == sorted(pointers)


def test_each_dtype_has_an_arena() -> None:
    params = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(3)]
    assert _names(_plan(params)) == [["p2", "p0"], ["p1"]]


def test_a_view_is_a_tensor_of_its_own() -> None:
    (bucket,) = _plan([torch.ones(1000), torch.ones(4)])
    small = bucket.places[0].view
    assert not small._is_view()
    version = small._version
    bucket.places[1].view.add_(1)
    assert small._version == version
    assert copy.deepcopy(small).untyped_storage().nbytes() == 16
    file = io.BytesIO()
    torch.save(small, file)
    assert len(file.getvalue()) < 3000


def test_a_view_has_the_strides_of_its_parameter() -> None:
    conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last).weight
    (bucket,) = _plan([conv, torch.ones(4, 5).t(), torch.ones(()), torch.ones(6, 2)[:, :1]])
    loose, scalar, turned, last = [place.view for place in bucket.places]
    assert last.stride() == conv.stride()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert turned.stride() == (1, 5)
    assert scalar.shape == ()
    assert loose.stride() == (1, 1)


@pytest.mark.usefixtures("world")
def test_the_memory_order_is_announced() -> None:
    conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    (bucket,) = _plan(list(conv.parameters()))
    specs = bucket._signature.tensors
    assert [spec.order for spec in specs] == [None, (0, 2, 3, 1)]
    assert [spec.shape for spec in specs] == [(8,), (8, 3, 3, 3)]


@pytest.mark.usefixtures("world")
def test_an_empty_parameter_takes_part() -> None:
    params = [torch.ones(3), torch.ones(0, 4)]
    (bucket,) = _plan(params)
    for param in params:
        param.grad = param.clone()
    bucket.launch(hvd.global_process_set)
    assert bucket.handle is not None
    bucket.adopt(bucket.handle.wait())
    assert [tuple(param.grad.shape) for param in params if param.grad is not None] == [(3,), (0, 4)]


@pytest.mark.usefixtures("world")
def test_padding_stays_zero() -> None:
    params = [torch.ones(3), torch.ones(5)]
    (bucket,) = _plan(params)
    for param in params:
        param.grad = param.clone()
    bucket.launch(hvd.global_process_set)
    assert bucket.handle is not None
    bucket.handle.wait()
    assert bucket._span.sum() == 8
    assert bucket._span.size > 8


def test_a_complex_parameter_is_refused_by_name() -> None:
    with pytest.raises(hvd.ArgumentError, match=r"parameter 'p0'.*complex64"):
        _plan([torch.ones(2, dtype=torch.complex64)])

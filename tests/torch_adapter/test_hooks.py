"""Hooks on one rank, where `DistributedOptimizer` would not set any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import commrt.torch as hvd
from commrt.core.bucketing import FixedBuckets
from commrt.torch.buckets import plan_buckets
from commrt.torch.hooks import Reducer
from commrt.types import Kind, ReduceOp, Signature

pytestmark = pytest.mark.usefixtures("world")


class Wrapped:
    """Two layers, each with a bucket of its own, under a reducer."""

    def __init__(self, passes: int = 1) -> None:
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        like = Signature(Kind.ALLREDUCE, (), ReduceOp.AVERAGE)
        named = [("a", self.a), ("b", self.b)]
        self.buckets = plan_buckets(named, like, FixedBuckets(1, 1), "optimizer.0")
        self.reducer = Reducer(self.buckets, passes, hvd.global_process_set)

    def views(self) -> list[Tensor]:
        """The arena's tensors of a and b."""
        return [bucket.places[0].view for bucket in reversed(self.buckets)]


@pytest.fixture
def wrapped() -> Iterator[Wrapped]:
    made = Wrapped()
    yield made
    made.reducer.close()


def test_backward_returns_with_the_reduced_gradients(wrapped: Wrapped) -> None:
    (2 * wrapped.a + 3 * wrapped.b).sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert wrapped.b.grad is wrapped.views()[1]
    assert torch.equal(wrapped.b.grad, torch.full((3,), 3.0))


def test_a_gradient_that_lies_in_the_arena_is_not_copied(wrapped: Wrapped) -> None:
    wrapped.a.sum().backward()
    wrapped.reducer.synchronize()
    wrapped.reducer.reset()
    assert wrapped.a.grad is not None
    wrapped.a.grad.zero_()
    view = wrapped.a.grad
    (4 * wrapped.a).sum().backward()
    assert wrapped.a.grad is view
    wrapped.reducer.synchronize()
    assert torch.equal(view, torch.full((3,), 4.0))


def test_nothing_is_waited_for_while_a_parameter_has_no_gradient(wrapped: Wrapped) -> None:
    wrapped.a.sum().backward()
    assert wrapped.a.grad is not wrapped.views()[0]
    wrapped.reducer.synchronize()
    assert wrapped.a.grad is wrapped.views()[0]
    assert wrapped.b.grad is None


def test_a_gradient_set_by_hand_is_reduced(wrapped: Wrapped) -> None:
    wrapped.b.grad = torch.full((3,), 5.0)
    wrapped.reducer.synchronize()
    assert wrapped.b.grad is wrapped.views()[1]
    assert torch.equal(wrapped.views()[1], torch.full((3,), 5.0))


def test_synchronizing_twice_reduces_once(wrapped: Wrapped) -> None:
    (wrapped.a + wrapped.b).sum().backward()
    before = hvd.stats().buckets
    wrapped.reducer.synchronize()
    assert hvd.stats().buckets == before


def test_a_gradient_too_many_is_an_error_that_names_the_way_out(wrapped: Wrapped) -> None:
    (wrapped.a + wrapped.b).sum().backward()
    with pytest.raises(hvd.CommError, match=r"parameter '[ab]'.*backward_passes_per_step=1"):
        (wrapped.a + wrapped.b).sum().backward()
    wrapped.reducer.drop()
    wrapped.a.grad = wrapped.b.grad = None
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.b.grad is wrapped.views()[1]
    assert torch.equal(wrapped.views()[1], torch.ones(3))


def test_it_is_an_error_in_flight_too(wrapped: Wrapped) -> None:
    wrapped.a.sum().backward()
    with pytest.raises(hvd.CommError, match=r"parameter 'a'"):
        wrapped.a.sum().backward()
    assert [bucket.handle for bucket in wrapped.buckets] == [None, None]


def test_zeroing_the_model_instead_of_the_optimizer_begins_anew(wrapped: Wrapped) -> None:
    (wrapped.a + wrapped.b).sum().backward()
    wrapped.a.grad = wrapped.b.grad = None
    (7 * wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert torch.equal(wrapped.views()[0], torch.full((3,), 7.0))


def test_dropping_waits_for_what_is_in_flight(wrapped: Wrapped) -> None:
    wrapped.a.sum().backward()
    assert wrapped.buckets[1].handle is not None
    wrapped.reducer.drop()
    assert wrapped.buckets[1].handle is None
    before = hvd.stats().buckets
    wrapped.reducer.drop()
    assert hvd.stats().buckets == before


def test_a_bucket_leaves_after_the_last_of_its_passes() -> None:
    wrapped = Wrapped(passes=2)
    (wrapped.a + wrapped.b).sum().backward()
    assert [bucket.handle for bucket in wrapped.buckets] == [None, None]
    with pytest.raises(hvd.ArgumentError, match="after step"):
        wrapped.reducer.set_passes(1)
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert torch.equal(wrapped.views()[0], torch.full((3,), 2.0))
    wrapped.reducer.reset()
    wrapped.reducer.set_passes(1)


def test_a_sparse_gradient_is_refused_by_name() -> None:
    weight = nn.Parameter(torch.ones(5, 2))
    like = Signature(Kind.ALLREDUCE, (), ReduceOp.AVERAGE)
    buckets = plan_buckets([("w", weight)], like, FixedBuckets(1, 1), "optimizer.0")
    reducer = Reducer(buckets, 1, hvd.global_process_set)
    with pytest.raises(hvd.ArgumentError, match=r"parameter 'w'.*sparse"):
        nn.functional.embedding(torch.tensor([1, 3]), weight, sparse=True).sum().backward()
    reducer.drop()


def test_closing_takes_the_hooks_away(wrapped: Wrapped) -> None:
    wrapped.reducer.close()
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is not wrapped.views()[0]


def test_a_new_bucket_joins_the_cycle(wrapped: Wrapped) -> None:
    c = nn.Parameter(torch.ones(2))
    like = Signature(Kind.ALLREDUCE, (), ReduceOp.AVERAGE)
    (bucket,) = plan_buckets([("c", c)], like, FixedBuckets(1, 1), "optimizer.0", start=2)
    wrapped.reducer.extend([bucket])
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is not wrapped.views()[0]
    c.sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert c.grad is bucket.places[0].view

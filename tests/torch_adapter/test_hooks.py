"""Hooks on one rank, where `DistributedOptimizer` would not set any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import commrt.torch as hvd
from commrt.torch.buckets import DenseBucket
from commrt.torch.fleet import Fleet
from commrt.torch.hooks import Reducer
from commrt.torch.options import Options
from commrt.torch.registry import Number
from commrt.torch.table import Table
from commrt.types import ReduceOp

SMALL = {"COMMRT_BUCKET": "1", "COMMRT_FIRST_BUCKET": "1"}


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)
    # As if there were somebody to reduce with.
    monkeypatch.setattr(Fleet, "alone", lambda self: False)
    hvd.init()
    yield
    hvd.shutdown()


OPTIONS = Options(hvd.Compression.none, ReduceOp.AVERAGE, 1.0, 0, False, None, None)


class Wrapped:
    """Two parameters, each with a bucket of its own, under a reducer that has planned."""

    def __init__(self, passes: int = 1) -> None:
        self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.optimizer = torch.optim.SGD([self.a, self.b], lr=0.0)
        self.table = Table(self.optimizer, [("a", self.a), ("b", self.b)])
        self.fleet = Fleet(self.table, OPTIONS, Number())
        self.reducer = Reducer(self.fleet, passes)
        assert self.reducer.active()
        self.reducer.synchronize()
        self.reducer.reset()

    def buckets(self) -> list[DenseBucket]:
        """The buckets of b and a."""
        assert self.fleet.plan is not None
        return [b for b in self.fleet.plan.buckets if isinstance(b, DenseBucket)]

    def views(self) -> list[Tensor]:
        """The arena's tensors of a and b."""
        return [bucket._views.tensors[0] for bucket in reversed(self.buckets())]


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
    assert not any(bucket.launched() for bucket in wrapped.buckets())


def test_zeroing_the_model_instead_of_the_optimizer_begins_anew(wrapped: Wrapped) -> None:
    (wrapped.a + wrapped.b).sum().backward()
    wrapped.a.grad = wrapped.b.grad = None
    (7 * wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert torch.equal(wrapped.views()[0], torch.full((3,), 7.0))


def test_dropping_waits_for_what_is_in_flight(wrapped: Wrapped) -> None:
    wrapped.a.sum().backward()
    assert wrapped.buckets()[1].launched()
    wrapped.reducer.drop()
    assert not wrapped.buckets()[1].launched()
    before = hvd.stats().buckets
    wrapped.reducer.drop()
    assert hvd.stats().buckets == before


def test_a_bucket_leaves_after_the_last_of_its_passes() -> None:
    wrapped = Wrapped(passes=2)
    (wrapped.a + wrapped.b).sum().backward()
    assert not any(bucket.launched() for bucket in wrapped.buckets())
    with pytest.raises(hvd.ArgumentError, match="after step"):
        wrapped.reducer.set_passes(1)
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is wrapped.views()[0]
    assert torch.equal(wrapped.views()[0], torch.full((3,), 2.0))
    wrapped.reducer.reset()
    wrapped.reducer.set_passes(1)


def test_closing_takes_the_hooks_away(wrapped: Wrapped) -> None:
    wrapped.reducer.close()
    (wrapped.a + wrapped.b).sum().backward()
    assert wrapped.a.grad is not wrapped.views()[0]


def test_a_new_group_is_reduced_from_the_next_cycle_on(wrapped: Wrapped) -> None:
    c = nn.Parameter(torch.ones(2))
    wrapped.optimizer.add_param_group({"params": [c]})
    wrapped.reducer.take_in()
    for _ in range(2):
        (wrapped.a + wrapped.b).sum().backward()
        c.sum().backward()
        wrapped.reducer.synchronize()
        assert [len(bucket.members) for bucket in wrapped.buckets()] == [1, 1, 1]
        [own] = [bucket for bucket in wrapped.buckets() if bucket.members[0].param is c]
        assert c.grad is own._views.tensors[0]
        wrapped.a.grad = wrapped.b.grad = c.grad = None
        wrapped.reducer.reset()

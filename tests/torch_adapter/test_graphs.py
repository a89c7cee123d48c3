"""Graphs of every kind: used twice, differentiated twice, recomputed, compiled, broken off."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_FOLLOW = """
from torch.utils.checkpoint import checkpoint


def follow(model, compute, joint=None, steps=3, tolerance=1e-10):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    bare = torch.optim.SGD(alone.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=data, dtype=torch.float64)
        for m, o, xs in ((alone, bare, x), (model, optimizer, x[rank::2])):
            o.zero_grad()
            compute(m, xs).backward()
            if m is model:  # no waiting for the step: clipping would be right
                assert same_everywhere(*(p.grad for p in m.parameters()))
            o.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert same_everywhere(*model.parameters())


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
"""

_GRAPHS = (
    _FOLLOW
    + """
@fact
def used_twice():
    follow(nn.Linear(4, 4).double(), lambda m, x: m(torch.tanh(m(x))).square().mean())


@fact
def penalty():  # a gradient of a gradient, as in WGAN-GP
    def compute(m, x):
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        return slope.square().mean()

    follow(net(), compute)


@fact
def create_graph():
    a = ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0))
    (a.square() * (1 + rank)).sum().backward(create_graph=True)
    optimizer.step()
    assert torch.equal(a.grad.detach(), torch.full((3,), 3.0))


@fact
def recomputed():
    for reentrant in (True, False):
        def compute(m, x):
            x = x.clone().requires_grad_(True)
            for layer in m:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x.square().mean()

        follow(net(), compute)


@fact
def aot():
    torch._dynamo.reset()

    def compiled(m, x):
        return torch.compile(m, backend="aot_eager")(x).square().mean()

    follow(net(), compiled)


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("broken off")


@fact
def broken_off():
    a, b = ones(3), ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))

    def step(breaks):
        optimizer.zero_grad()
        before = b.detach().clone()
        try:
            x = Breaks.apply(a) if breaks else a
            ((x + b) * (1 + rank)).sum().backward()
        except ValueError:
            optimizer.zero_grad()
            return
        optimizer.step()
        if not breaks:
            assert torch.equal(b.detach() - before, torch.full((3,), -1.5))

    for breaks in (False, True, False):
        step(breaks)
    for breaks in (False, rank == 0, rank == 1):
        step(breaks)
        hvd.broadcast_parameters([("a", a), ("b", b)], root_rank=0)
    step(False)
    assert torch.equal(a.grad, torch.full((3,), 1.5))


@fact
def stale_gradients():
    g, d = ones(2), ones(2)
    of_g = hvd.DistributedOptimizer(torch.optim.SGD([g], lr=1.0))
    of_d = hvd.DistributedOptimizer(torch.optim.SGD([d], lr=1.0))
    for _ in range(3):
        of_d.zero_grad()
        (d * (1 + rank)).sum().backward()
        of_d.step()
        assert torch.equal(d.grad, torch.full((2,), 1.5))
        of_g.zero_grad()
        (g.sum() + 100 * (1 + rank) * d.sum()).backward()  # d's gradients are nobody's business
        of_g.step()
        assert torch.equal(g.grad, torch.ones(2))
    assert same_everywhere(g, d)
    assert torch.equal(d, torch.full((2,), 1.0 - 3 * 1.5))


@fact
def hooks_gone():
    a = ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0))
    a.sum().backward()
    optimizer.step()
    a.grad = None
    del optimizer
    (a * rank).sum().backward()
    assert torch.equal(a.grad, torch.full((3,), float(rank)))
    a.grad = None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0))
    (a * rank).sum().backward()
    assert torch.equal(a.grad, torch.full((3,), 0.5))
"""
)

_INDUCTOR = (
    _FOLLOW
    + """
@fact
def inductor():
    torch._dynamo.reset()
    model = net()

    def compiled(m, x):
        return torch.compile(m)(x).square().mean() if m is model else m(x).square().mean()

    follow(model, compiled)
"""
)


@pytest.mark.parametrize("fact", ["used_twice", "penalty", "create_graph", "recomputed"])
def test_graphs_of_every_kind_follow_one_process(holds: Holds, fact: str) -> None:
    holds(_GRAPHS, fact)


def test_what_aot_autograd_makes_follows_one_process(holds: Holds) -> None:
    holds(_GRAPHS, "aot")


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_what_inductor_makes_follows_one_process(holds: Holds) -> None:
    holds(_INDUCTOR, "inductor")


def test_life_goes_on_after_an_exception_in_backward(holds: Holds) -> None:
    holds(_GRAPHS, "broken_off")


def test_gradients_made_stale_by_another_loss_are_dropped(holds: Holds) -> None:
    holds(_GRAPHS, "stale_gradients")


def test_hooks_are_gone_with_the_wrapper(holds: Holds) -> None:
    holds(_GRAPHS, "hooks_gone")


_ORDERS = """
import logging

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("commrt.torch").addHandler(handler)

a, b = ones(3), ones(2)
of_a, of_b = (hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0)) for p in (a, b))


@fact
def orders():
    for step in range(4):
        pairs = [(a, of_a), (b, of_b)]
        for p, optimizer in pairs:
            optimizer.zero_grad()
        for p, optimizer in pairs[::-1] if rank else pairs:
            (p * (rank + step)).sum().backward()
        for p, optimizer in pairs if rank else pairs[::-1]:
            optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), step + 0.5))
        assert torch.equal(b.grad, torch.full((2,), step + 0.5))
    assert same_everywhere(a, b)
    warnings = sum(hvd.allgather_object(said), [])
    assert 1 <= len(warnings) <= 4, warnings  # once for each optimizer, on a rank or on both
    assert all("call synchronize() before" in text for text in warnings), warnings


@fact
def clipping_too_early():
    pairs = [(a, of_a), (b, of_b)]
    for p, optimizer in pairs:
        optimizer.zero_grad()
    for p, optimizer in pairs[::-1] if rank else pairs:
        (p * 10).sum().backward()
    nn.utils.clip_grad_norm_([a, b], 0.1)
    refused = 0
    for p, optimizer in pairs:
        before = p.detach().clone()
        try:
            optimizer.step()
        except hvd.ArgumentError as error:
            assert "was changed between backward() and its reduction" in str(error), error
            assert torch.equal(p, before)
            refused += 1
    assert sum(hvd.allgather_object(refused)) >= 1


@fact
def slow_ranks():  # waiting long is no reason to stop waiting
    import threading

    c = ones(2)
    of_c = hvd.DistributedOptimizer(torch.optim.SGD([c], lr=1.0))
    of_c._reducer._patience._seconds = 0.01
    for step in range(3):
        of_c.zero_grad()
        if rank == step % 2:
            threading.Event().wait(0.3)  # what is slow
        (c * rank).sum().backward()
        assert torch.equal(c.grad, torch.full((2,), 0.5))
        of_c.step()
"""


def test_two_optimizers_may_go_backward_in_another_order_on_each_rank(holds: Holds) -> None:
    holds(_ORDERS, "orders")


def test_changing_a_gradient_that_is_still_to_be_reduced_is_noticed(holds: Holds) -> None:
    holds(_ORDERS, "clipping_too_early")


def test_a_slow_rank_is_waited_for(holds: Holds) -> None:
    holds(_ORDERS, "slow_ranks")

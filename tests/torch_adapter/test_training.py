"""Ranks that share a batch against one process that sees all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_JOINT = """
def train(optimizer_of, model, alone):
    optimizer = hvd.DistributedOptimizer(optimizer_of(model), model.named_parameters())
    bare = optimizer_of(alone)
    data = torch.Generator().manual_seed(1)
    for _ in range(50):
        x = torch.randn(8 * size, 5, generator=data, dtype=torch.float64)
        y = torch.randn(8 * size, 3, generator=data, dtype=torch.float64)
        mine = x[rank::size], y[rank::size]
        for m, o, (xs, ys) in ((alone, bare, (x, y)), (model, optimizer, mine)):
            o.zero_grad()
            nn.functional.mse_loss(m(xs), ys).backward()
            o.step()


@fact
def weights():
    for optimizer_of in (
        lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
        lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    ):
        model = nn.Sequential(
            nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
        ).double()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        alone = copy.deepcopy(model)
        train(optimizer_of, model, alone)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert (ours - theirs).norm() <= 1e-10 * theirs.norm(), (ours - theirs).norm()
        assert same_everywhere(*model.parameters())


@fact
def gradients():
    model = nn.Linear(7, 5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    data = torch.Generator().manual_seed(1)
    x = torch.randn(4 * size, 7, generator=data)
    slope = torch.randn(4 * size, 5, generator=data)

    def compute(xs, slopes):
        model.zero_grad()
        ((model(xs) * slopes).sum() / len(xs)).backward()
        return [p.grad.clone() for p in model.parameters()]

    joint = compute(x, slope)
    each = [compute(x[i : i + 1], slope[i : i + 1]) for i in range(4 * size)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    ours = compute(x[rank::size], slope[rank::size])
    for mine, its, terms in zip(ours, joint, zip(*each), strict=True):
        magnitude = torch.stack(terms).abs().sum(0) / (4 * size)
        bound = 4 * size * torch.finfo(torch.float32).eps * magnitude
        assert ((mine - its).abs() <= bound).all()
    del optimizer
"""


@pytest.mark.parametrize("np", [2, 4])
def test_weights_after_50_steps_are_those_of_one_process(holds: Holds, np: int) -> None:
    holds(_JOINT, "weights", np)


@pytest.mark.parametrize("np", [2, 4])
def test_first_gradients_are_those_of_one_process(holds: Holds, np: int) -> None:
    """In fp32, to 4 ulp a rank of the sum of the samples' absolute gradients, each element.

    The gradient of a linear loss is a sum of B terms that do not depend on the batch. Any order of
    adding B of them errs by at most (B - 1) u S, u half an ulp of 1, S the sum of their absolute
    values; the division by B, a power of two, is exact. So two orders differ by less than
    2 B u S = B ulp S. With 4 samples a rank, B is 4 times the number of ranks.
    """
    holds(_JOINT, "gradients", np)


_KINDS = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        return self.wide(x) * self.frozen + self.narrow(x.to(torch.bfloat16)).float()


def follow(model, shape, tolerance):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    strides = [p.stride() for p in model.parameters()]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(trained, lr=0.1), model.named_parameters()
    )
    bare = torch.optim.SGD(alone.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    for step in range(4):
        x = torch.randn(8, *shape, generator=data)
        for m, o, xs in ((alone, bare, x), (model, optimizer, x[rank::2])):
            o.zero_grad(set_to_none=step % 2 == 0)
            m(xs).square().mean().backward()
            o.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert [p.stride() for p in model.parameters()] == strides
    assert all(p.grad.stride() == p.stride() for p in trained)
    assert same_everywhere(*model.parameters())


@fact
def tied_weights():
    follow(Tied(), (4,), 1e-5)


@fact
def channels_last():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    follow(model.to(memory_format=torch.channels_last), (3, 5, 5), 1e-5)


@fact
def several_dtypes():
    follow(Mixed(), (4,), 2e-2)


@fact
def unused():
    for together in (True, False):
        a, b, c = ones(3), ones(3), ones(3)
        groups = [[a, b, c]] if together else [[a], [b], [c]]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(group, lr=1.0, weight_decay=0.5))
            for group in groups
        ]
        for none in (True, False, True):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=none)
            before = c.detach().clone()
            # a on both ranks, b on one, c on none
            loss = (2 * a).sum() + (4 * b).sum() if rank else (6 * a).sum()
            loss.backward()
            for optimizer in optimizers:
                optimizer.synchronize()
            assert torch.equal(a.grad, torch.full((3,), 4.0))
            assert torch.equal(b.grad, torch.full((3,), 2.0))
            # As in one process: no gradient, or the zeros that zero_grad left.
            assert c.grad is None or torch.equal(c.grad, torch.zeros(3))
            for optimizer in optimizers:
                optimizer.step()
            assert torch.equal(c, before) == (c.grad is None)
            assert same_everywhere(a, b, c)


@fact
def nothing_used():
    p = ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    if rank:
        (p * 4).sum().backward()
    optimizer.step()
    assert torch.equal(p, torch.full((3,), -1.0))
    optimizer.zero_grad()
    optimizer.step()
    assert p.grad is None


@fact
def passes():
    a, b = ones(3), ones(2)
    bare = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(bare, backward_passes_per_step=4)

    def step(n):
        optimizer.zero_grad()
        buckets = hvd.stats().buckets
        for i in range(n):
            (a.sum() * (i + 1 + rank) + b.sum()).backward()
        launched = hvd.stats().buckets - buckets
        optimizer.step()
        return launched

    assert step(4) == 3  # two of them to agree on what to reduce, and in what order
    assert torch.equal(a.grad, torch.full((3,), 1 + 2 + 3 + 4 + 4 * 0.5))
    assert torch.equal(b.grad, torch.full((2,), 4.0))
    assert step(2) == 0  # what is left of the epoch: step() reduces it
    assert torch.equal(a.grad, torch.full((3,), 1 + 2 + 2 * 0.5))
    assert step(1 + rank) == 0
    assert torch.equal(a.grad, torch.full((3,), (1 + 2 + 3) / 2))
    a.sum().backward()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    assert step(1) == 1
    assert same_everywhere(a, b)


@fact
def options():
    def gradient(value, **options):
        p = ones(3)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), **options)
        (p * value).sum().backward()
        optimizer.step()
        return p.grad[0].item()

    assert gradient(1.0 + rank) == 1.5
    assert gradient(1.0 + rank, op=hvd.Sum) == 3.0
    assert gradient(1.0 + rank, gradient_predivide_factor=4.0) == 1.5
    assert gradient(1.0 + 2**-12, compression=hvd.Compression.fp16) == 1.0
    assert gradient(1.0 + 2**-9, compression=hvd.Compression.bf16) == 1.0
    assert gradient(1.0 + 2**-12) == 1.0 + 2**-12


@fact
def added_group():
    a, b = ones(2), ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), [("a", a)])
    optimizer.add_param_group({"params": [b], "lr": 2.0})
    for _ in range(2):
        optimizer.zero_grad()
        ((a + b) * rank).sum().backward()
        optimizer.step()
    assert torch.equal(a, torch.zeros(2))
    assert torch.equal(b, torch.full((2,), -1.0))


@fact
def process_set():
    p = ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0), process_set=PAIR)
    (p * (1 + rank)).sum().backward()
    optimizer.step()
    assert torch.equal(p, torch.full((2,), -0.5))
"""


def test_tied_weights_follow_one_process(holds: Holds) -> None:
    holds(_KINDS, "tied_weights")


def test_channels_last_follows_one_process_and_keeps_its_strides(holds: Holds) -> None:
    holds(_KINDS, "channels_last")


def test_several_dtypes_and_frozen_parameters_follow_one_process(holds: Holds) -> None:
    holds(_KINDS, "several_dtypes")


def test_parameters_may_go_unused_on_one_rank_or_on_all(holds: Holds) -> None:
    holds(_KINDS, "unused")


def test_a_rank_may_have_no_gradient_at_all(holds: Holds) -> None:
    holds(_KINDS, "nothing_used")


def test_gradients_of_several_passes_are_summed_and_a_remainder_is_flushed(holds: Holds) -> None:
    holds(_KINDS, "passes")


def test_options_change_how_gradients_are_reduced(holds: Holds) -> None:
    holds(_KINDS, "options")


def test_a_group_added_later_is_reduced(holds: Holds) -> None:
    holds(_KINDS, "added_group")


def test_a_process_set_trains_by_itself(holds: Holds) -> None:
    holds(_KINDS, "process_set")

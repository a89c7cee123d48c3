"""Ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_SCRIPT = """
def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 3), nn.Linear(3, 5)).double()


def gradients(model, factor):
    for p in model.parameters():
        p.grad = None
    model(torch.ones(2, 10, dtype=torch.float64) * factor).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@fact
def joining():
    steps = 3 - rank  # the last rank has but one batch
    trained, alone = model(), model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(trained.parameters(), lr=0.01))
    bare = torch.optim.SGD(alone.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        trained(torch.ones(2, 10, dtype=torch.float64) * (rank + 1)).sum().backward()
        optimizer.step()
        active = [r for r in range(size) if step < 3 - r]
        sums = [sum(found) / size for found in zip(*(gradients(alone, r + 1) for r in active))]
        for p, total in zip(alone.parameters(), sums):
            p.grad = total
        bare.step()
        for ours, theirs in zip(trained.parameters(), alone.parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert hvd.join() == 0
    hvd.broadcast_parameters(trained.state_dict(), root_rank=0)
    assert same_everywhere(*trained.parameters())
    optimizer.zero_grad()  # and all together again
    trained(torch.ones(2, 10, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert same_everywhere(*trained.parameters())


@fact
def adasum_of_each_tensor():
    a, b = (nn.Parameter(torch.zeros(4)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), op=hvd.Adasum)
    equal = torch.tensor([1.0, 0.0, 0.0, 0.0])
    own = torch.zeros(4)
    own[1 + rank] = 10.0
    ((a * equal).sum() + (b * own).sum()).backward()
    optimizer.step()
    torch.testing.assert_close(a.detach(), -equal)  # what is equal is averaged
    expected = torch.zeros(4)
    expected[1 : 1 + size] = -10.0
    torch.testing.assert_close(b.detach(), expected)  # what is orthogonal is added
"""


def test_an_optimizers_rank_may_join_before_the_others(holds: Holds) -> None:
    holds(_SCRIPT, "joining", np=3)


def test_adasum_joins_each_parameter_by_itself(holds: Holds) -> None:
    holds(_SCRIPT, "adasum_of_each_tensor", np=3)


UNSTARTED = """
    import torch
    import commrt.torch as hvd

    hvd.init()
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    for epoch in range(2):
        for _ in range(2 * hvd.rank()):
            optimizer.zero_grad()
            (p * 2).sum().backward()
            optimizer.step()
        assert hvd.join() == 1
        optimizer.zero_grad()
        (p * 2).sum().backward()
        optimizer.step()
        print(p.tolist(), flush=True)
"""


def test_a_rank_may_have_no_batch_at_all() -> None:
    result = run_ranks(UNSTARTED, 2)
    assert result.stdout_of == {
        0: "[-1.0, -1.0, -1.0]\n[-3.0, -3.0, -3.0]\n",
        1: "[-3.0, -3.0, -3.0]\n[-7.0, -7.0, -7.0]\n",
    }, result.output

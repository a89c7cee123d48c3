"""Gradients that change behind the hooks' back, or while they are under way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import run_ranks

Holds = Callable[..., None]

SCRIPT = """
    import torch
    from torch import nn
    import commrt.torch as hvd

    hvd.init()

    def step(wrap):
        torch.manual_seed(0)
        used, unused = nn.Linear(3, 2), nn.Linear(3, 2)
        params = [*used.parameters(), *unused.parameters()]
        optimizer = wrap(torch.optim.SGD(params, lr=1.0))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(used(torch.ones(4, 3)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert unused.weight.grad is None
        return used.weight.detach()

    assert torch.allclose(step(hvd.DistributedOptimizer), step(lambda o: o), rtol=1e-6)

    # The scaler must see the Inf of one rank on all of them, whatever is unused.
    p, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p, unused], lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for bad in (True, False):
        optimizer.zero_grad()
        scaler.scale((p * (float("inf") if bad and hvd.rank() else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(p, torch.full((2,), 1.0 if bad else 0.0)), p

    print("ok", flush=True)
"""


@pytest.mark.ranks
def test_scaling_is_right_with_an_unused_parameter() -> None:
    result = run_ranks(SCRIPT, 2)
    assert (result.status, result.stdout_of) == (0, {0: "ok\n", 1: "ok\n"})


_UNDER_WAY = """
def layers():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])


def hooked(change):
    model = layers()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, bucket=0)  # each gradient on its way at once
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(change)  # runs after the optimizer's own
    for step in range(6):
        optimizer.zero_grad()
        (model(torch.ones(2, 256)) * (rank + 1)).sum().backward()
        # In the first step nothing is on its way before the last gradient has come.
        assert not step or all(p.grad is not None for p in model.parameters())
        optimizer.step()
    hvd.check_replicas(model)


@fact
def replaced_in_a_hook():
    def change(p):
        p.grad = p.grad.clamp(-1, 1)

    hooked(change)


@fact
def changed_in_a_hook():
    def change(p):
        p.grad.mul_(0.5)

    hooked(change)


@fact
def removed_in_a_hook():
    def change(p):
        p.grad = None

    hooked(change)


@fact
def read_and_changed_after_a_backward_that_left_one_out():
    model, unused = layers(), ones(2)
    sgd = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, bucket=0)
    for _ in range(6):
        optimizer.zero_grad()
        (model(torch.ones(2, 256)) * (rank + 1)).sum().backward()
        assert set(model[3].bias.grad.tolist()) == {2.0 * (rank + 1)}  # our own, all of it
        for p in model.parameters():
            p.grad.data.mul_(0.5)  # no version tells of it
        optimizer.step()
    hvd.check_replicas(model)
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    "fact",
    [
        "replaced_in_a_hook",
        "changed_in_a_hook",
        "removed_in_a_hook",
        "read_and_changed_after_a_backward_that_left_one_out",
    ],
)
def test_what_users_do_to_gradients_under_way_parts_no_replicas(holds: Holds, fact: str) -> None:
    holds(_UNDER_WAY, fact)

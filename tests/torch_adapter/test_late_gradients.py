"""Gradients that change, or come to be, behind the hooks' back."""

from __future__ import annotations

import pytest

from harness import run_ranks

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

    frozen, free = nn.Linear(3, 2).requires_grad_(False), nn.Linear(2, 1)
    params = [*frozen.parameters(), *free.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    frozen.requires_grad_(True)
    before = free.weight.detach().clone()
    free(frozen(torch.ones(1, 3))).sum().backward()
    try:
        optimizer.step()
    except hvd.ArgumentError as error:
        assert "unfreeze before wrapping" in str(error)
    else:
        raise AssertionError("a gradient that is not reduced was used")
    assert torch.equal(free.weight, before)
    print("ok", flush=True)
"""


@pytest.mark.ranks
def test_scaling_with_an_unused_parameter_and_unfreezing_are_right_or_refused() -> None:
    result = run_ranks(SCRIPT, 2)
    assert (result.status, result.stdout_of) == (0, {0: "ok\n", 1: "ok\n"})

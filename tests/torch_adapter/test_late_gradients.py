"""Gradients that change behind the hooks' back."""

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

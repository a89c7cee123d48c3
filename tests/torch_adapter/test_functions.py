from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import commrt.torch as hvd

Holds = Callable[..., None]


@pytest.mark.usefixtures("world")
def test_what_is_no_pair_with_a_tensor_is_refused() -> None:
    for wrong in ([1.0], {"x": 1.0}, [("x", None)]):
        with pytest.raises(hvd.ArgumentError, match=r"not a \(name, tensor\) pair"):
            hvd.broadcast_parameters(wrong, root_rank=0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("world")
def test_the_state_of_lbfgs_is_refused() -> None:
    with pytest.raises(hvd.ArgumentError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.ones(1)]), root_rank=0)


_RANKS = """
@fact
def parameters():
    torch.manual_seed(rank)
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    model = nn.Sequential(conv, nn.BatchNorm2d(4), nn.Linear(3, 3))
    model[1].num_batches_tracked.fill_(7 * rank)
    model.loose = nn.Parameter(torch.randn(4, 6)[:, ::2])
    model.counter = nn.Parameter(torch.tensor([rank]), requires_grad=False)
    model.tied = model[2]
    model.narrow = nn.Parameter(torch.randn(5).to(torch.bfloat16))
    place = model.loose.data_ptr()
    for root in (1, 0):
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        assert same_everywhere(*model.state_dict().values())
        assert model[1].num_batches_tracked.item() == 7
        assert model.counter.item() == 1
    assert model.loose.data_ptr() == place and model.loose.stride() == (6, 2)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters([], root_rank=0)
    bare = [torch.full((2,), float(rank)), torch.tensor(rank)]
    hvd.broadcast_parameters(bare, root_rank=1)
    assert bare[0].tolist() == [1.0, 1.0] and bare[1].item() == 1


def take_steps(model, optimizer, n):
    for _ in range(n):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


MAKERS = [
    lambda p: torch.optim.SGD(p, lr=0.1 + rank),
    lambda p: torch.optim.SGD(p, lr=0.1 + rank, momentum=0.9 - rank / 10, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=0.1 + rank, betas=(0.9 - rank / 10, 0.99)),
    lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1 + rank), amsgrad=True, weight_decay=1.0),
    lambda p: torch.optim.RMSprop(p, centered=True, lr=0.1 + rank),
    lambda p: torch.optim.Adagrad(p, lr=0.1 + rank),
]


def send(make, steps, root):
    model = nn.Linear(3, 2)
    model.weight.data = model.weight.data.t().contiguous().t()
    model.bias.requires_grad_(False)
    optimizer = make(model.parameters())
    take_steps(model, optimizer, steps)
    weights, had = model.weight.detach().clone(), len(optimizer.state)
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    assert torch.equal(model.weight, weights)  # nothing has stepped
    states = hvd.allgather_object(optimizer.state_dict())
    assert repr(states[0]) == repr(states[1])
    group = optimizer.param_groups[0]
    assert len(optimizer.state) == len(states[root]["state"])
    assert rank != root or len(optimizer.state) == had
    assert type(group["lr"]) is type(optimizer.defaults["lr"])
    assert abs(float(group["lr"]) - 0.1 - root) < 1e-6
    assert all(type(beta) is float for beta in group.get("betas", ()))
    take_steps(model, optimizer, 1)


@fact
def optimizer_state():
    for make in MAKERS:
        for root in (0, 1):
            for of_root, of_other in ((0, 0), (2, 2), (3, 0), (0, 3)):
                send(make, of_root if rank == root else of_other, root)


@fact
def wrapped_optimizer():
    model = nn.Linear(3, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1.0 + rank))
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 2.0


@fact
def different_optimizers():
    params = list(nn.Linear(3, 2).parameters())
    groups = [{"params": [p]} for p in params] if rank else params
    refused(torch.optim.SGD(groups, lr=0.1), "SGD of parameter groups of [2]; rank 1", "[1, 1]")
    kind = torch.optim.Adam if rank else torch.optim.SGD
    refused(kind(params, lr=0.1), "rank 0: SGD", "rank 1: Adam")


def refused(optimizer, *words):
    try:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    except hvd.ArgumentError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")
"""


@pytest.mark.ranks
def test_parameters_of_every_kind_are_those_of_the_root(holds: Holds) -> None:
    holds(_RANKS, "parameters")


@pytest.mark.ranks
def test_optimizer_state_is_that_of_the_root_and_no_step_is_taken(holds: Holds) -> None:
    holds(_RANKS, "optimizer_state")


@pytest.mark.ranks
def test_state_is_sent_through_a_wrapper(holds: Holds) -> None:
    holds(_RANKS, "wrapped_optimizer")


@pytest.mark.ranks
def test_optimizers_that_differ_are_refused_on_every_rank(holds: Holds) -> None:
    holds(_RANKS, "different_optimizers")

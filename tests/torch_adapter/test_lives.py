"""Wrappers that live before, through and after a runtime; copies of them; checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_BEFORE = """
    import sys
    import torch
    from torch import nn
    import commrt.torch as hvd

    torch.set_num_threads(1)

    def make(n):
        p = nn.Parameter(torch.ones(n))
        return p, hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))

    def train(p, optimizer, rank, expected=0.5):
        for step in range(3):
            optimizer.zero_grad()
            (p * rank).sum().backward()
            assert torch.equal(p.grad, torch.full_like(p, expected)), p.grad
            optimizer.step()

    (a, of_a), (b, of_b) = make(2), make(3)
    hvd.init()
    rank = hvd.rank()
    (a * rank).sum().backward()  # the first use
    assert torch.equal(a.grad, torch.full((2,), 0.5))
    of_a.step()
    train(b, of_b, rank)
    hvd.shutdown()
    try:
        of_a.zero_grad()
        a.sum().backward()
        of_a.step()
    except hvd.InitError as error:
        assert "call init() first" in str(error)
    else:
        raise AssertionError("a step without a runtime")
    hvd.init()
    c, of_c = make(2)
    for p, optimizer in ((c, of_c), (b, of_b), (a, of_a)):
        train(p, optimizer, rank)
    (a * rank).sum().backward()  # begun under one runtime, left for the next
    hvd.shutdown()
    hvd.init()
    of_a.zero_grad()
    train(a, of_a, rank)
    print("ok", flush=True)
"""


def test_a_wrapper_made_before_init_lives_through_runtimes() -> None:
    result = run_ranks(_BEFORE, 2)
    assert (result.status, result.stdout_of) == (0, {0: "ok\n", 1: "ok\n"})


_COPIES = """
import io
import pickle
import warnings


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.full((2, 3), 1.0 + rank)).square().mean().backward()
    optimizer.step()


def make(compression=hvd.Compression.none):
    model = nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        model.named_parameters(), compression, process_set=PAIR,
    )


@fact
def copies():
    for twin in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model, optimizer = make()
        step(model, optimizer)
        if rank == 0:
            twin((model, optimizer))  # that nobody uses
        other, of_other = twin((model, optimizer))
        for _ in range(3):
            step(model, optimizer)
            step(other, of_other)
            assert same_everywhere(*model.parameters(), *other.parameters())
        assert all(map(torch.equal, model.parameters(), other.parameters()))


@fact
def saved_models():
    model, optimizer = make()
    step(model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (loaded, copy.deepcopy(model)):
        twin(torch.ones(1, 3) * rank).sum().backward()  # no hook came along
        assert torch.equal(twin.weight.grad, torch.full((2, 3), float(rank)))


@fact
def resuming():
    model, optimizer = make()
    for _ in range(3):
        step(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    weights = [p.detach().clone() for p in model.parameters()]
    del model, optimizer
    model, optimizer = make()
    if rank == 0:
        file.seek(0)
        checkpoint = torch.load(file)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(map(torch.equal, model.parameters(), weights))
    momenta = [s["momentum_buffer"] for s in optimizer.state.values()]
    assert len(momenta) == 2 and same_everywhere(*momenta)
    step(model, optimizer)
    assert same_everywhere(*model.parameters())


@fact
def schedulers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Linear(3, 2)
        bare = torch.optim.SGD(model.parameters(), lr=1.0)
        before = torch.optim.lr_scheduler.StepLR(bare, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(bare, model.named_parameters())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        after = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        ]
        for _ in range(3):
            step(model, optimizer)
            before.step()
            for scheduler in after:
                scheduler.step()
            plateau.step(1.0)
        rates = hvd.allgather_object(bare.param_groups[0]["lr"])
        assert rates[0] == rates[1] < 0.5
        twin_model, twin = copy.deepcopy((model, optimizer))
        step(twin_model, twin)


@fact
def reading_the_rate_between_passes():
    a = ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), backward_passes_per_step=2)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            (a * rank).sum().backward()
            if rank == 0:
                optimizer.param_groups[0]["lr"]
        assert torch.equal(a.grad, torch.ones(3))
        optimizer.step()
"""


def test_copies_train_alike_even_if_ranks_copy_unevenly(holds: Holds) -> None:
    holds(_COPIES, "copies")


def test_models_are_saved_and_copied_without_their_hooks(holds: Holds) -> None:
    holds(_COPIES, "saved_models")


def test_resuming_on_one_rank_gives_all_the_checkpoints_weights(holds: Holds) -> None:
    holds(_COPIES, "resuming")


def test_schedulers_made_before_and_after_the_wrapping_warn_of_nothing(holds: Holds) -> None:
    holds(_COPIES, "schedulers")


def test_looking_at_the_groups_between_passes_reduces_nothing(holds: Holds) -> None:
    holds(_COPIES, "reading_the_rate_between_passes")

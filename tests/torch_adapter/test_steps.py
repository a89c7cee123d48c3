"""The ways in which users take a step, and the ways in which it fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

Holds = Callable[..., None]

_STEPS = """
@fact
def clipping():
    model = nn.Linear(4, 4).double()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    bare = torch.optim.SGD(alone.parameters(), lr=0.5)
    data = torch.Generator().manual_seed(1)
    for step in range(6):
        x = torch.randn(8, 4, generator=data, dtype=torch.float64)
        bare.zero_grad()
        alone(x).square().mean().backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        bare.step()

        optimizer.zero_grad()
        buckets = hvd.stats().buckets
        model(x[rank::2]).square().mean().backward()
        if step % 2:  # Horovod's recipe
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if step % 2:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        assert hvd.stats().buckets == buckets + (1 if step else 3)  # 2 to agree on what
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@fact
def clipping_with_an_unused_parameter():
    used, unused = ones(4), ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0))
    (used * 3.0 * rank).sum().backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_([used, unused], 1.0)
    assert norm == 3.0, norm  # of the average, 1.5 four times
    optimizer.step()
    assert unused.grad is None
    torch.testing.assert_close(used, torch.full((4,), 0.5), rtol=1e-5, atol=0.0)


@fact
def a_shape_of_ones_own():
    a, b = ones(4), ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
    if rank == 0:
        b.data = torch.ones(3)
    try:
        (a.sum() + b.sum()).backward()
        optimizer.step()
    except hvd.CommError as error:
        assert "'group0.param1': the shape differs between ranks" in str(error), error
    else:
        raise AssertionError("a gradient of another shape was reduced")
    assert torch.equal(a, torch.ones(4))
    b.data = torch.ones(2)
    optimizer.zero_grad()
    (a.sum() + b.sum()).backward()
    optimizer.step()
    assert torch.equal(a, torch.zeros(4)) and torch.equal(b, torch.zeros(2))


@fact
def skipping():
    a, b = ones(2), ones(2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
    (a * rank).sum().backward()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.equal(a, torch.full((2,), 1.0 - rank))


@fact
def scaling():
    p = ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0, fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        optimizer.zero_grad()
        bad = step == 1 and rank == 1
        scaler.scale((p * (float("inf") if bad else 1.0)).sum()).backward()
        before = p.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(p, before if step == 1 else before - 1)
    assert scaler.get_scale() == 4.0


@fact
def closure():
    a, b = ones(3), ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
    for step in range(4):
        def compute():
            optimizer.zero_grad()
            loss = (a * (2 * rank)).sum()
            if rank == step % 2:
                loss = loss + b.sum()
            loss.backward()
            return loss.detach()

        optimizer.step(compute)
    assert torch.equal(a, torch.full((3,), -3.0))
    assert torch.equal(b, torch.full((3,), -1.0))


@fact
def two_optimizers():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    for model in (generator, critic):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    first, second = (
        hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), m.named_parameters())
        for m in (generator, critic)
    )
    for step in range(6):
        fake = generator(torch.randn(3, 2) + rank)
        # by the optimizer, or by the model behind its back
        second.zero_grad() if step % 2 else critic.zero_grad()
        critic(fake.detach()).square().mean().backward()
        second.step()
        first.zero_grad()
        (-critic(fake).mean()).backward()  # the critic's hooks fire too
        first.step()
    assert same_everywhere(*generator.parameters(), *critic.parameters())


@fact
def loading():
    a, b = ones(3), ones(3)
    bare = torch.optim.SGD([a, b], lr=1.0)
    optimizer = hvd.DistributedOptimizer(bare, compression=hvd.Compression.fp16)
    a.sum().backward()
    optimizer.load_state_dict(bare.state_dict())
    optimizer.zero_grad()
    ((a + b) * rank).sum().backward()
    optimizer.step()
    assert torch.equal(a.detach(), torch.full((3,), 0.5))


@fact
def disagreement():
    p = ones(3 + rank)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    for _ in range(2):
        try:
            p.sum().backward()
        except hvd.MismatchError as error:
            text = str(error)
            assert "'group0.param0': the shape differs" in text, text
            assert "rank 0: (3,)" in text and "rank 1: (4,)" in text, text
        else:
            raise AssertionError("no error")
        assert torch.equal(p, torch.ones(3 + rank))
        optimizer.zero_grad()
    q = ones(3)
    other = hvd.DistributedOptimizer(torch.optim.SGD([q], lr=1.0))
    q.sum().backward()
    other.step()
    assert torch.equal(q, torch.zeros(3))
"""


def test_clipping_needs_no_recipe_and_horovods_works(holds: Holds) -> None:
    holds(_STEPS, "clipping")


def test_clipping_with_an_unused_parameter_sees_the_average_once_synchronized(
    holds: Holds,
) -> None:
    holds(_STEPS, "clipping_with_an_unused_parameter")


def test_one_ranks_other_shape_fails_on_every_rank_and_life_goes_on(holds: Holds) -> None:
    holds(_STEPS, "a_shape_of_ones_own")


def test_a_skipped_synchronization_leaves_local_gradients(holds: Holds) -> None:
    holds(_STEPS, "skipping")


def test_one_ranks_inf_makes_every_rank_skip_the_step(holds: Holds) -> None:
    holds(_STEPS, "scaling")


def test_a_closures_gradients_are_reduced_before_they_are_used(holds: Holds) -> None:
    holds(_STEPS, "closure")


def test_two_optimizers_may_meet_in_one_backward(holds: Holds) -> None:
    holds(_STEPS, "two_optimizers")


def test_loading_state_drops_gradients_under_way(holds: Holds) -> None:
    holds(_STEPS, "loading")


def test_a_disagreement_is_named_and_leaves_the_weights_alone(holds: Holds) -> None:
    holds(_STEPS, "disagreement")


_SMALL_BUCKETS = {"COMMRT_BUCKET": "8", "COMMRT_FIRST_BUCKET": "8"}

_AGAIN = """
@fact
def dropping():
    a, b = ones(3), ones(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
    for none in (True, False):
        # rank 0 has one bucket in flight, rank 1 waits for both
        (a * 5 + b * rank if rank else a * 5).sum().backward()
        optimizer.zero_grad(set_to_none=none)
        ((a + b) * (1 + rank)).sum().backward()
        optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), 1.5))
        assert torch.equal(b.grad, torch.full((3,), 1.5))
    assert torch.equal(a, torch.full((3,), -2.0))


a, b = ones(3), ones(3)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0), [("a", a), ("b", b)])


def backward(*params):
    sum(p.sum() for p in params).backward()


def refused(run, kinds):
    before = [p.detach().clone() for p in (a, b)]
    try:
        run()
    except hvd.CommError as error:
        assert type(error) in kinds, repr(error)
        assert "parameter '" in str(error) and "backward_passes_per_step" in str(error), error
    else:
        raise AssertionError("no error")
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])
    optimizer.zero_grad()


def train():
    hvd.broadcast_parameters([("a", a), ("b", b)], root_rank=0)
    for step in range(3):
        optimizer.zero_grad()
        ((a + b) * (1 + rank + step)).sum().backward()
        optimizer.step()
        assert torch.equal(a.grad, torch.full((3,), 1.5 + step))
        assert torch.equal(b.grad, torch.full((3,), 1.5 + step))


@fact
def on_all_ranks():
    def after_the_step():
        backward(a, b)
        backward(a, b)

    def in_flight():
        backward(a)
        backward(a)

    def crosswise():
        backward(a if rank else b)
        backward(a if rank else b)

    def after_some():
        backward(a, b)
        backward(a)

    for run in (after_the_step, in_flight, crosswise, after_some):
        for _ in range(3):
            refused(run, (hvd.ArgumentError, hvd.RemoteError))
        train()


@fact
def on_one_rank():
    expected = (hvd.RemoteError,) if rank else (hvd.ArgumentError,)

    def while_the_other_steps():
        backward(a)
        optimizer.step() if rank else backward(a)

    def while_the_other_waits():
        backward(a)
        backward(b if rank else a)

    def after_the_others_step():  # which fails in the next one at once, we when ours comes
        backward(a, b)

    for _ in range(3):
        refused(while_the_other_steps, expected)
        train()
        refused(while_the_other_waits, expected)
        train()
        backward(a, b)
        if rank:
            optimizer.step()
            optimizer.zero_grad()
        refused(after_the_others_step, expected)
        if rank == 0:
            refused(lambda: backward(a, b), (hvd.MismatchError,))
        train()
"""


def test_zero_grad_drops_what_is_in_flight_on_every_rank(holds: Holds) -> None:
    holds(_AGAIN, "dropping", env=_SMALL_BUCKETS)


def test_ranks_train_on_after_a_gradient_too_many(holds: Holds) -> None:
    holds(_AGAIN, "on_all_ranks", env=_SMALL_BUCKETS)


def test_one_ranks_gradient_too_many_fails_on_every_rank(holds: Holds) -> None:
    holds(_AGAIN, "on_one_rank", env=_SMALL_BUCKETS)


_DEATH = """
import os, signal
import torch
import commrt.torch as hvd

torch.set_num_threads(1)
hvd.init()
used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0, momentum=0.9))
for step in range(4):
    optimizer.zero_grad()
    used.sum().backward()
    if step == 3 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before = used.detach().clone()
    momentum = optimizer.state[used].get("momentum_buffer", torch.zeros(3)).clone()
    try:
        optimizer.step()
    except hvd.PeerLostError as error:
        assert error.ranks == (1,) and step == 3
        assert torch.equal(used, before)
        assert torch.equal(optimizer.state[used]["momentum_buffer"], momentum)
        print("untouched")
    else:
        assert step < 3
"""


@pytest.mark.faults
def test_weights_are_untouched_by_a_step_that_a_dead_peer_failed() -> None:
    assert "untouched" in run_ranks(_DEATH, 2).stdout_of[0]


_LOCKSTEP = """
@fact
def late_errors():
    for buckets in ([0, 1], [0, 0]):  # a bucket each; one for both
        a, b = ones(3), ones(3)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([a, b], lr=1.0), groups=[[a], [b]] if buckets[1] else [[a, b]]
        )
        for first in (1, 0):
            failed = []
            for batch in range(1, 7):
                try:
                    optimizer.zero_grad()
                    ((a + b) * 10**batch * (1 + rank)).sum().backward()
                    if batch == 2 and rank >= first:  # on some ranks, or on all
                        a.sum().backward()
                    optimizer.step()
                except hvd.CommError:
                    failed.append(batch)
                else:
                    mean = 10**batch * (1 + size) / 2
                    assert torch.equal(a.grad, torch.full((3,), mean)), (batch, a.grad)
                    assert torch.equal(b.grad, torch.full((3,), mean)), (batch, b.grad)
            if first == 0:
                assert failed == [2], failed
            else:
                assert failed == ([2, 3] if rank else [3]), failed
"""


@pytest.mark.parametrize("np", [2, 3])
def test_a_late_error_on_some_ranks_leaves_all_in_step(holds: Holds, np: int) -> None:
    holds(_LOCKSTEP, "late_errors", np)

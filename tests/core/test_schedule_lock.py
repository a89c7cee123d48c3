"""Jobs whose steps repeat, over a simulated network, in any order of what happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core.silence import Silence
from commrt.errors import PeerLostError, StallError
from commrt.testing.crowd import Crowd, Scenario
from commrt.testing.network import Network, Settings, world_of
from commrt.testing.strategies import rhythms
from commrt.types import Bucket, Kind, Request, Signature, TensorSpec
from core.negotiating import FLOATS, SEEDS, ask, check_lost, check_order
from core.test_negotiation import check_ending

LIMITS = st.sampled_from((0, 100, 1 << 20))
IMPATIENCE = st.sampled_from((0.0, 0.01, 0.2))


def locking(scenario: Scenario, limit: int = 1 << 20, fail: float = 600.0) -> Network:
    return Network(Settings(scenario.size, scenario.sets, limit, warn=1.0, fail=fail, lock=True))


def check_revoked(network: Network) -> None:
    """What one member took back all did, in one order."""
    for rank, state in enumerate(network.ranks):
        numbers = [bucket.number for bucket in state.revoked]
        assert numbers == sorted(set(numbers)), rank
        for bucket in state.revoked:
            for member in network.settings.sets[bucket.set_id].ranks:
                assert bucket.number in [b.number for b in network.ranks[member].revoked]


@settings(max_examples=200)
@given(rhythms(), SEEDS, LIMITS, IMPATIENCE)
def test_every_operation_ends_alike_on_all_members(
    scenario: Scenario, seed: int, limit: int, impatience: float
) -> None:
    for shift in range(4):
        network = locking(scenario, limit)
        crowd = Crowd(network, scenario, random.Random(seed + shift), impatience)
        crowd.run()
        assert crowd.unsubmitted() == []
        check_order(network)
        check_revoked(network)
        for index, operation in enumerate(scenario.operations):
            check_ending(crowd, index, operation)
        assert not any(state.open for state in network.ranks)


@settings(max_examples=100)
@given(rhythms(), SEEDS, IMPATIENCE)
def test_ranks_that_leave_take_only_their_own_operations_along(
    scenario: Scenario, seed: int, impatience: float
) -> None:
    rng = random.Random(seed)
    network = locking(scenario)
    crowd = Crowd(network, scenario, rng, impatience)
    leaving = rng.sample(range(scenario.size), rng.randint(1, scenario.size))
    for rank in leaving:
        for _ in range(rng.randint(0, 60)):
            crowd.step()
        crowd.drop(rank)
        network.leave(rank, f"reason {rank}")
    crowd.run()
    check_order(network)
    check_revoked(network)
    assert not any(state.open for state in network.ranks)
    for (index, _), ending in crowd.endings.items():
        operation = scenario.operations[index]
        everywhere = all((index, r) in crowd.endings for r in operation.requests)
        if operation.agrees and operation.reporter is None and everywhere:
            assert isinstance(ending, Bucket)


@settings(max_examples=100)
@given(rhythms(), SEEDS, IMPATIENCE)
def test_a_lost_rank_ends_all_others_with_one_error(
    scenario: Scenario, seed: int, impatience: float
) -> None:
    rng = random.Random(seed)
    network = locking(scenario)
    crowd = Crowd(network, scenario, rng, impatience)
    for _ in range(rng.randint(0, 120)):
        crowd.step()
    lost = sorted(rng.sample(range(1, scenario.size), rng.randint(0, scenario.size - 1)))
    network.lose(lost, "killed by signal 9")
    crowd.run()
    check_order(network)
    check_lost(network, lost)


@settings(max_examples=100)
@given(rhythms(), SEEDS, IMPATIENCE)
def test_a_recorded_log_replayed_on_new_cores_gives_the_same_actions(
    scenario: Scenario, seed: int, impatience: float
) -> None:
    network = locking(scenario)
    rng = random.Random(seed)
    crowd = Crowd(network, scenario, rng, impatience)
    while crowd.step():
        if rng.random() < 0.02:
            network.advance(rng.choice((0.3, 0.9, 2.0)))
    assert network.replay() == network.log


class Job:
    """Ranks that submit what a test says, each step after the other."""

    def __init__(self, size: int, *sets: Sequence[int], fail: float = 600.0) -> None:
        self.network = Network(
            Settings(size, world_of(size, *sets), warn=1.0, fail=fail, lock=True)
        )
        self.size = size

    def submit(self, rank: int, *requests: Request) -> None:
        for request in requests:
            self.network.submit(rank, [request])

    def step(self, *requests: Request, without: Sequence[int] = ()) -> None:
        for rank in range(self.size):
            if rank not in without:
                self.submit(rank, *requests)
        self.network.settle()

    def train(self, *names: str, steps: int = 6) -> None:
        for _ in range(steps):
            self.step(*map(ask, names))
        assert self.following(), "no plan was made"

    def following(self) -> bool:
        return not any(self.network.negotiates(rank) for rank in range(self.size))

    def messages(self) -> int:
        return sum(event[0] in ("coordinator", "member") for event, _ in self.network.log)


def unnamed(count: int, signature: Signature = FLOATS) -> Request:
    return replace(ask(f"{signature.kind.value}.unnamed.{count}", signature), named=False)


def test_once_steps_repeat_no_message_is_sent() -> None:
    job = Job(3)
    job.train("a", "b")
    before = job.messages()
    for _ in range(50):
        job.step(ask("a"), ask("b"))
    assert job.messages() == before
    assert len(job.network.ranks[2].buckets) == 56 * 2


def test_an_unnamed_metric_in_each_step_is_part_of_the_plan() -> None:
    job = Job(2)
    metric = Signature(Kind.ALLREDUCE, (TensorSpec("float32", ()),))
    for step in range(6):
        job.step(ask("a"), ask("b"), unnamed(step, metric))
    before = job.messages()
    for step in range(6, 26):
        job.step(ask("a"), ask("b"), unnamed(step, metric))
    assert job.messages() == before


def test_steps_that_take_turns_are_one_plan() -> None:
    job = Job(2)
    turns = [("d", "e"), ("d", "e"), ("g",)]  # two steps of the critic for one of the generator
    for step in range(18):
        job.step(*map(ask, turns[step % 3]))
    assert job.following()
    before = job.messages()
    for step in range(18, 48):
        job.step(*map(ask, turns[step % 3]))
    assert job.messages() == before


def test_steps_with_a_broadcast_are_negotiated() -> None:
    job = Job(2)
    copy = ask("c", Signature(Kind.BROADCAST, FLOATS.tensors, root=0))
    for _ in range(20):
        job.step(ask("a"), copy)
    assert not job.following()


def test_overlapping_sets_share_a_plan_and_an_order() -> None:
    job = Job(3, (0, 1), (1, 2))
    requests = [ask("x", set_id=1), ask("y", set_id=2), ask("z")]
    for _ in range(20):
        for rank in range(3):
            for request in requests:
                if rank in job.network.settings.sets[request.set_id].ranks:
                    job.submit(rank, request)
        job.network.settle()
    assert job.following()
    check_order(job.network)


def test_what_is_not_in_the_plan_ends_it_and_completes() -> None:
    job = Job(3)
    job.train("a", "b")
    job.submit(1, ask("new"))
    job.step(ask("a"), ask("b"))
    assert not job.following()
    job.submit(0, ask("new"))
    job.submit(2, ask("new"))
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)
    assert "Rank 1: 'new' is not in the plan" in job.network.ranks[2].news[-1]
    check_revoked(job.network)


def test_a_changed_order_does_not_hang_who_waits() -> None:
    job = Job(2)
    job.train("a", "b")
    job.submit(0, ask("b"))  # and waits for it before it submits a
    job.submit(1, ask("a"), ask("b"))
    job.network.settle()
    assert job.network.blocked(0) == [(0, "b")]
    job.network.wait(0, (0, "b"))
    job.network.settle()
    assert list(job.network.ranks[0].open) == []
    assert list(job.network.ranks[1].open) == [(0, "a")]
    job.submit(0, ask("a"))
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)
    # Rank 1 had begun both, rank 0 none.
    assert [len(state.revoked) for state in job.network.ranks] == [2, 2]


def test_waiting_for_what_only_others_can_begin_is_no_deviation() -> None:
    job = Job(2)
    job.train("a", "b")
    before = job.messages()
    job.submit(0, ask("a"), ask("b"))  # rank 1 evaluates, say
    assert job.network.blocked(0) == []
    job.network.settle()
    job.submit(1, ask("a"), ask("b"))
    job.network.settle()
    assert job.messages() == before
    assert not any(state.open for state in job.network.ranks)


def test_after_a_deviation_nothing_unnamed_takes_the_place_of_another() -> None:
    job = Job(2)
    for step in range(6):
        job.step(unnamed(step))
    assert job.following()
    other = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (5,)),))
    job.submit(0, unnamed(6, other), unnamed(7))  # its seventh is not like the others'
    job.submit(1, unnamed(6), unnamed(7))
    job.network.settle()
    for state in job.network.ranks:
        assert [fail.name for fail in state.failed] == ["allreduce.unnamed.6"]
        assert state.buckets[-1].operations[0].name == "allreduce.unnamed.7"
        assert not state.open


def test_a_submission_that_crosses_the_lock_is_part_of_the_plan() -> None:
    job = Job(2)
    for _ in range(6):
        if job.following():
            break
        job.submit(0, ask("a"))
        job.network.settle()
        job.submit(1, ask("a"))
        job.network.deliver(("up", 1))
        if ("down", 1) in job.network.under_way():
            job.network.deliver(("down", 1))
        job.network.settle()
    assert job.following()
    assert not any(state.open for state in job.network.ranks)


def test_two_deviations_at_once_end_one_plan_once() -> None:
    job = Job(3)
    job.train("a")
    job.submit(0, ask("x"))
    job.submit(1, ask("y"))
    job.step(ask("a"))
    for rank in range(3):
        assert sum("negotiates" in text for text in job.network.ranks[rank].news) == 1
    job.submit(1, ask("x"))
    job.submit(2, ask("x"), ask("y"))
    job.submit(0, ask("y"))
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)


def test_an_error_of_one_rank_fails_the_operation_everywhere_and_the_job_goes_on() -> None:
    job = Job(2)
    job.train("a")
    job.network.report(0, 0, "a", "out of memory")
    job.submit(1, ask("a"))
    job.network.settle()
    [fail] = job.network.ranks[1].failed
    assert str(fail.error) == "rank 0: out of memory"
    job.step(ask("a"))
    assert not any(state.open for state in job.network.ranks)


@pytest.mark.parametrize("name", ["a", "new"])
def test_a_report_of_what_was_submitted_fails_that_and_not_the_next(name: str) -> None:
    job = Job(2)
    job.train("a")
    job.submit(0, ask(name))
    job.network.report(0, 0, name, "out of memory")
    job.network.settle()
    assert [str(fail.error) for fail in job.network.ranks[0].failed] == ["rank 0: out of memory"]
    job.submit(0, ask(name))
    job.submit(1, ask(name))
    job.network.settle()
    assert [fail.name for fail in job.network.ranks[1].failed] == [name]
    assert list(job.network.ranks[0].open) == [(0, name)]  # it is the next one
    job.submit(1, ask(name))
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)


def test_who_leaves_at_once_while_a_plan_begins_is_lost_with_his_reason() -> None:
    job = Job(2)
    for _ in range(3):
        job.step(ask("a"))
    job.submit(1, ask("a"))
    job.network.deliver(("up", 1))
    job.submit(0, ask("a"))
    job.network.deliver(("up", 0))  # completes a: rank 0 answers with a plan
    job.network.leave(1, "RuntimeError: no", final=True)
    job.network.settle()
    end = job.network.ranks[0].end
    assert end is not None
    assert "rank 1 on host1: it has shut down (RuntimeError: no)" in str(end.error)


def test_unnamed_operations_keep_their_order_whatever_is_fused() -> None:
    job = Job(2)
    doubles = Signature(Kind.ALLREDUCE, (TensorSpec("float64", (2,)),))
    for step in range(6):
        for rank in range(2):
            requests = [unnamed(3 * step + i, doubles if i == 1 else FLOATS) for i in range(3)]
            job.network.submit(rank, requests)  # 0 and 2 share a bucket, 1 comes after it
        job.network.settle()
    assert job.following()


def test_a_report_that_crosses_the_lock_pairs_nothing_of_two_steps() -> None:
    job = Job(2)
    for _ in range(3):
        job.step(ask("a"))
    job.submit(1, ask("a"))
    job.network.deliver(("up", 1))
    job.submit(0, ask("a"))
    job.network.deliver(("up", 0))  # completes a: rank 0 answers with a plan
    assert ("down", 1) in job.network.under_way()
    job.network.report(1, 0, "b", "out of memory")
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)
    job.submit(0, ask("b"))
    job.network.settle()
    assert [str(fail.error) for fail in job.network.ranks[0].failed] == ["rank 1: out of memory"]


def test_a_join_ends_the_plan_and_the_others_go_on() -> None:
    job = Job(2)
    job.train("a")
    join = ask("join", Signature(Kind.JOIN, ()))
    job.submit(0, join)
    for _ in range(8):
        job.submit(1, ask("a"))
        job.network.settle()
    assert not job.network.ranks[1].open
    assert not job.following()
    job.submit(1, join)
    job.network.settle()
    assert not any(state.open for state in job.network.ranks)
    job.train("a", steps=12)


def test_plans_that_do_not_hold_are_made_ever_more_rarely() -> None:
    job = Job(2)
    plans = []
    for step in range(200):
        before = len(job.network.ranks[0].news)
        job.step(ask("a"))
        plans += [step] if len(job.network.ranks[0].news) > before else []
        if job.following():
            job.step(ask(f"once {step}"))  # what always comes right after a plan was made
    gaps = [later - earlier for earlier, later in pairwise(plans)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 8 * gaps[0]


def test_a_late_rank_is_named_in_time_though_a_plan_is_followed() -> None:
    job = Job(3)
    job.train("a", "b")
    job.step(ask("a"), ask("b"), without=[2])
    for _ in range(11):
        job.network.advance(0.1)
        job.network.settle()
    [text] = job.network.ranks[0].warnings
    assert "rank 2 (on host2) did not submit 'a', 'b' for 1 s" in text


def test_a_late_rank_fails_the_operation_in_the_end() -> None:
    job = Job(2, fail=5.0)
    job.train("a")
    job.submit(0, ask("a"))
    for _ in range(60):
        job.network.advance(0.1)
        job.network.settle()
    [fail] = job.network.ranks[0].failed
    assert isinstance(fail.error, StallError)


def test_a_rank_that_does_not_say_how_far_it_is_is_named_and_ends_the_job() -> None:
    job = Job(3, fail=5.0)
    job.train("a")
    job.submit(0, ask("new"))
    network = job.network
    for tenth in range(60):
        network.advance(0.1)
        for link in network.under_way():
            if link != ("down", 2):  # it is stopped
                network.deliver(link)
        if tenth == 20:
            [text] = network.ranks[1].warnings
            assert "rank 2 (on host2) did not answer" in text
    for rank in (0, 1):
        end = network.ranks[rank].end
        assert end is not None
        assert isinstance(end.error, StallError)
        assert "rank 2 (on host2)" in str(end.error)


def test_a_peer_lost_while_frozen_leaves_nothing_but_its_error() -> None:
    job = Job(3)
    job.train("a")
    job.submit(0, ask("new"))
    job.network.deliver(("up", 0))
    for rank in (0, 1):  # rank 2 dies before it is asked
        job.network.deliver(("down", rank))
    job.network.lose([2], "killed by signal 9")
    job.network.settle()
    for rank in (0, 1):
        end = job.network.ranks[rank].end
        assert end is not None
        assert isinstance(end.error, PeerLostError)


def test_what_fails_before_late_ranks_are_named_is_told_in_time() -> None:
    silence = Silence(["host0"], warn=60.0, fail=3.0)
    assert not silence.overdue(0.0, 2.3)
    assert silence.overdue(0.0, 2.5)
    assert silence.next_look() < 3.0

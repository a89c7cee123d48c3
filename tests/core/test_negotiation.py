"""Members and coordinator over a simulated network, in any order of submissions and deliveries."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.testing.crowd import Crowd, Operation, Scenario
from commrt.testing.network import Network, Settings
from commrt.testing.strategies import scenarios
from commrt.types import Agreed, Bucket, Kind
from core.negotiating import CAPACITIES, SEEDS, check_lost, check_order

LIMITS = st.sampled_from((0, 100, 1 << 20))


def played(scenario: Scenario, seed: int, limit: int, capacity: int) -> tuple[Network, Crowd]:
    network = Network(Settings(scenario.size, scenario.sets, limit, capacity))
    crowd = Crowd(network, scenario, random.Random(seed))
    crowd.run()
    assert crowd.unsubmitted() == []
    return network, crowd


def agreed_of(bucket: Bucket, key: tuple[int, str]) -> Agreed:
    [found] = [o for o in bucket.operations if (bucket.set_id, o.name) == key]
    return found


def check_ending(crowd: Crowd, index: int, operation: Operation) -> None:
    """An operation ends alike on all members: in one bucket, or with one text."""
    members = list(operation.requests)
    endings = {r: crowd.endings[index, r] for r in members}
    if operation.reporter is not None:
        text = f"RemoteError: rank {operation.reporter}: bad {index}"
        expected = {r: f"reported {index}" if r == operation.reporter else text for r in members}
        assert endings == expected
    elif operation.agrees:
        bucket = endings[members[0]]
        assert isinstance(bucket, Bucket)
        assert all(ending == bucket for ending in endings.values())
        check_agreed(agreed_of(bucket, operation.key), operation)
    else:
        [text] = set(endings.values())
        assert isinstance(text, str)
        assert text.startswith("MismatchError: ")
        assert repr(operation.key[1]) in text
        assert all(f"script.py:{r}" in text or str(r) in text for r in members)


def check_agreed(agreed: Agreed, operation: Operation) -> None:
    requests = [operation.requests[r] for r in sorted(operation.requests)]
    assert agreed.signature == requests[0].signature
    if agreed.signature.kind is Kind.ALLGATHER:
        assert agreed.rows == tuple(zip(*(request.rows for request in requests), strict=True))
    assert set(agreed.absent) == set.intersection(*(set(request.absent) for request in requests))


@settings(max_examples=120)
@given(scenarios(), SEEDS, LIMITS, CAPACITIES)
def test_every_operation_ends_alike_on_all_members(
    scenario: Scenario, seed: int, limit: int, capacity: int
) -> None:
    for shift in range(12):
        network, crowd = played(scenario, seed + shift, limit, capacity)
        check_order(network)
        for index, operation in enumerate(scenario.operations):
            check_ending(crowd, index, operation)
        assert not any(state.open for state in network.ranks)


@settings(max_examples=100)
@given(scenarios(), SEEDS, LIMITS, CAPACITIES)
def test_a_recorded_log_replayed_on_new_cores_gives_the_same_actions(
    scenario: Scenario, seed: int, limit: int, capacity: int
) -> None:
    network, _ = played(scenario, seed, limit, capacity)
    network.advance(100.0)
    assert network.replay() == network.log


@settings(max_examples=100)
@given(scenarios(faulty=False), SEEDS)
def test_what_agrees_completes_whatever_the_order(scenario: Scenario, seed: int) -> None:
    _, crowd = played(scenario, seed, 0, 4096)
    assert all(isinstance(ending, Bucket) for ending in crowd.endings.values())


@settings(max_examples=150)
@given(scenarios(faulty=False), SEEDS, CAPACITIES)
def test_ranks_that_leave_finish_what_they_have_submitted(
    scenario: Scenario, seed: int, capacity: int
) -> None:
    rng = random.Random(seed)
    network = Network(Settings(scenario.size, scenario.sets, capacity=capacity))
    crowd = Crowd(network, scenario, rng)
    leaving = rng.sample(range(scenario.size), rng.randint(1, scenario.size))
    for rank in leaving:
        for _ in range(rng.randint(0, 12)):
            crowd.step()
        crowd.drop(rank)
        network.leave(rank, f"reason {rank}")
    crowd.run()
    check_order(network)
    check_left(network, crowd, scenario, set(leaving))


def check_left(network: Network, crowd: Crowd, scenario: Scenario, leaving: set[int]) -> None:
    everyone = set(range(scenario.size))
    for rank, state in enumerate(network.ranks):
        assert not state.open
        free = rank in leaving and (rank != 0 or leaving == everyone)
        assert (state.end is not None) == free
        assert state.end is None or state.end.error is None
        if rank not in leaving or rank == 0:
            assert state.gone == leaving - {0}
    for (index, rank), ending in crowd.endings.items():
        others = scenario.operations[index].requests
        missing = [r for r in others if (index, r) not in crowd.endings]
        assert isinstance(ending, Bucket) == (not missing), f"operation {index} on rank {rank}"
        if missing:
            assert isinstance(ending, str)
            assert ending.startswith("ShutdownError: ")
            assert any(f"rank {r}, which has shut down (reason {r})" in ending for r in missing)


@settings(max_examples=100)
@given(scenarios(faulty=False), SEEDS)
def test_a_rank_that_leaves_at_once_takes_only_its_own_operations_along(
    scenario: Scenario, seed: int
) -> None:
    rng = random.Random(seed)
    network = Network(Settings(scenario.size, scenario.sets))
    crowd = Crowd(network, scenario, rng)
    for _ in range(rng.randint(0, 30)):
        crowd.step()
    rank = scenario.size - 1
    network.leave(rank, "exception", final=True)
    crowd.drop(rank)
    crowd.run()
    check_order(network)
    for (index, r), ending in crowd.endings.items():
        if r == rank:
            continue
        if rank not in scenario.operations[index].requests:
            assert isinstance(ending, Bucket)
        elif not isinstance(ending, Bucket):
            assert ending is not None
            assert f"rank {rank}, which has shut down (exception)" in ending


@settings(max_examples=100)
@given(scenarios(most=6), SEEDS)
def test_a_lost_rank_ends_all_others_with_one_error(scenario: Scenario, seed: int) -> None:
    rng = random.Random(seed)
    network = Network(Settings(scenario.size, scenario.sets))
    crowd = Crowd(network, scenario, rng)
    for _ in range(rng.randint(0, 30)):
        crowd.step()
    lost = sorted(rng.sample(range(1, scenario.size), rng.randint(0, scenario.size - 1)))
    network.lose(lost, "killed by signal 9")
    crowd.run()
    check_order(network)
    check_lost(network, lost)


@settings(max_examples=100)
@given(scenarios(), SEEDS, CAPACITIES)
def test_every_operation_ends_whatever_else_goes_on(
    scenario: Scenario, seed: int, capacity: int
) -> None:
    """Mismatches, reports, stalls and goodbyes at once; the coordinator answers every rank."""
    for shift in range(6):
        rng = random.Random(seed + shift)
        settings = Settings(scenario.size, scenario.sets, 100, capacity, warn=1.0, fail=3.0)
        network = Network(settings)
        crowd = Crowd(network, scenario, rng)
        staying = set(range(scenario.size))
        while crowd.step():
            if rng.random() < 0.05:
                network.advance(rng.choice((0.5, 1.0, 4.0)))
            if rng.random() < 0.03 and staying:
                rank = rng.choice(sorted(staying))
                staying.remove(rank)
                crowd.drop(rank)
                network.leave(rank, "done")
        check_order(network)
        assert not any(state.open for state in network.ranks)
        assert None not in crowd.endings.values()
        gone = {r for r, state in enumerate(network.ranks) if state.end is not None}
        assert gone == set(range(scenario.size)) - staying - ({0} if staying else set())
        assert network.replay() == network.log

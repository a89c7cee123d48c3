"""Joins, reports and changes of process sets that meet on their way to the coordinator."""

from __future__ import annotations

import pytest

from commrt.core.wire import Leaving
from commrt.testing.network import Network, Settings, world_of
from commrt.types import Kind, Request, Signature
from core.negotiating import FLOATS, ask

JOIN = Request(0, "join", False, Signature(Kind.JOIN, ()))


def removal(set_id: int, name: str = "remove") -> Request:
    return Request(0, name, False, Signature(Kind.REMOVE_SET, (), subject=(set_id,)))


def ran(network: Network, rank: int) -> list[str]:
    """What a rank took part in itself."""
    state = network.ranks[rank]
    return [o.name for b in state.buckets for o in b.operations if not o.joined]


def failed(network: Network, rank: int) -> dict[str, str]:
    return {f.name: f"{type(f.error).__name__}: {f.error}" for f in network.ranks[rank].failed}


@pytest.mark.parametrize("first", ["operation", "removal"])
def test_an_operation_that_is_ready_when_its_set_goes_runs_or_fails_everywhere(first: str) -> None:
    network = Network(Settings(2, world_of(2, (0, 1))))
    requests = [ask("x", FLOATS, 1), removal(1)]
    requests = requests if first == "operation" else requests[::-1]
    for rank in range(2):
        network.submit(rank, requests)  # in one message: both are complete at once
    network.settle()
    for rank in range(2):
        assert not network.ranks[rank].open
        if first == "operation":
            assert ran(network, rank) == ["x", "remove"]
        else:
            assert ran(network, rank) == ["remove"]
            assert "was removed" in failed(network, rank)["x"]


@pytest.mark.parametrize("set_id", [0, 7])
def test_a_set_that_cannot_be_removed_is_an_error_on_every_rank(set_id: int) -> None:
    network = Network(Settings(2, world_of(2, (0, 1))))
    for rank in range(2):
        network.submit(rank, [removal(set_id)])
    network.settle()
    assert all("can't be removed" in failed(network, rank)["remove"] for rank in range(2))


def test_a_set_removed_twice_at_once_is_removed_once() -> None:
    network = Network(Settings(2, world_of(2, (0, 1))))
    for rank in range(2):
        network.submit(rank, [removal(1, "a"), removal(1, "b")])
    network.settle()
    for rank in range(2):
        assert ran(network, rank) == ["a"]
        assert "can't be removed" in failed(network, rank)["b"]


def test_two_joins_at_once_end_both() -> None:
    network = Network(Settings(2, world_of(2)))
    other = Request(0, "join too", False, JOIN.signature)
    for rank in range(2):
        network.submit(rank, [JOIN, other])
    network.settle()
    assert not any(state.open for state in network.ranks)


def test_what_a_rank_submitted_before_it_joined_counts_though_its_id_is_forgotten() -> None:
    network = Network(Settings(3, world_of(3, (0, 1)), capacity=2))
    for _ in range(2):
        for rank in range(3):
            network.submit(rank, [ask("a")])
        network.settle()
    for name in "bcd":  # rank 2 has no part in these, so it does not know that "a" is forgotten
        for rank in range(2):
            network.submit(rank, [ask(name, FLOATS, 1)])
        network.settle()
    network.submit(2, [ask("a")])
    network.submit(2, [JOIN])
    network.settle()
    for rank in range(2):
        network.submit(rank, [ask("a")])
    network.settle()
    assert ran(network, 2)[-1] == "a"
    for rank in range(2):
        network.submit(rank, [JOIN])
    network.settle()
    assert all(ran(network, rank)[-1] == "join" for rank in range(3))


def test_a_failure_while_a_rank_has_joined_is_over_when_it_comes_back() -> None:
    network = Network(Settings(3, world_of(3)))
    network.submit(2, [JOIN])
    network.settle()
    network.submit(0, [ask("g")])
    network.report(1, 0, "g", "a gradient does not fit")
    network.settle()
    assert "does not fit" in failed(network, 0)["g"]
    for rank in range(2):
        network.submit(rank, [JOIN])
    network.settle()
    for rank in range(3):
        network.submit(rank, [ask("g")])
    network.settle()
    assert all(ran(network, rank)[-1] == "g" for rank in range(3))


def test_a_rank_that_joins_leaves_earlier_failures_behind() -> None:
    network = Network(Settings(2, world_of(2)))
    network.report(0, 0, "g", "bad")
    network.submit(1, [JOIN])
    network.submit(0, [JOIN])
    network.settle()
    for rank in range(2):
        network.submit(rank, [ask("g")])
    network.settle()
    assert all(ran(network, rank) == ["join", "g"] for rank in range(2))


def test_a_joined_rank_is_refused_what_it_submits() -> None:
    network = Network(Settings(2, world_of(2)))
    network.submit(1, [JOIN])
    network.submit(1, [ask("x")])
    network.settle()
    assert "rank 1 has joined" in failed(network, 1)["x"]


@pytest.mark.parametrize("final", [False, True])
def test_a_joined_rank_that_leaves_strands_nobody(final: bool) -> None:
    network = Network(Settings(3, world_of(3)))
    for rank in range(3):
        network.hello(rank)
    network.submit(2, [JOIN])
    network.submit(0, [ask("a")])
    network.settle()
    network.leave(2, "its script ended", final)
    network.settle()
    network.submit(1, [ask("a")])
    network.settle()
    for rank in range(2):
        assert "rank 2, which has shut down" in failed(network, rank)["a"]
    if not final:
        assert "rank 2" in failed(network, 2)["join"]


def test_unnamed_operations_are_counted_anew_when_a_join_fails() -> None:
    network = Network(Settings(3, world_of(3, (0, 1))))
    for rank in range(3):
        network.hello(rank)
    network.submit(0, [JOIN])
    network.settle()
    network.submit(1, [ask("waits for 0", FLOATS, 1)])  # goes on without it
    network.inject(2, Leaving("done"))
    network.settle()
    assert "rank 2" in failed(network, 0)["join"]
    assert [state.recounts for state in network.ranks[:2]] == [1, 1]

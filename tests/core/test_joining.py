"""Negotiation while ranks run out of data, in any order of submission and delivery."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core.wire import Leaving
from commrt.testing.network import Network, Settings, world_of
from commrt.types import Kind, Request, Signature
from core.negotiating import FLOATS, SEEDS, ask, check_order

JOIN = Request(0, "join", False, Signature(Kind.JOIN, ()))
GATHER = Signature(Kind.ALLGATHER, FLOATS.tensors)


def drive(network: Network, queues: list[list[Request]], rng: random.Random) -> None:
    """Submit and deliver in any order; a rank submits one operation after the other."""
    while True:
        links = network.under_way()
        able = [r for r, q in enumerate(queues) if q and not network.ranks[r].open]
        if not links and not able:
            return
        if links and (not able or rng.random() < 0.6):
            network.deliver(rng.choice(links))
        else:
            rank = rng.choice(able)
            network.submit(rank, [queues[rank].pop(0)])


@settings(max_examples=400)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 3), SEEDS)
def test_every_rank_joins_however_little_data_it_has(
    steps: list[int], rounds: int, seed: int
) -> None:
    size = len(steps)
    network = Network(Settings(size, world_of(size)))
    names = [f"x{i}" for i in range(max(steps))]
    queues = [[*(ask(n) for n in names[:count]), JOIN] * rounds for count in steps]
    drive(network, queues, random.Random(seed))
    check_joined(network, rounds)
    for rank, state in enumerate(network.ranks):
        done = [o for b in state.buckets for o in b.operations if o.signature.kind is not Kind.JOIN]
        assert len([o for o in done if not o.joined]) == steps[rank] * rounds
        assert len(done) == max(steps) * rounds
        assert not state.failed


@settings(max_examples=300)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=4), SEEDS)
def test_what_needs_a_joined_rank_fails_on_all_that_want_it(steps: list[int], seed: int) -> None:
    size = len(steps)
    network = Network(Settings(size, world_of(size)))
    queues = [[*(ask(f"g{i}", GATHER, rows=(1,)) for i in range(n)), JOIN] for n in steps]
    drive(network, queues, random.Random(seed))
    check_joined(network, 1)
    for rank, state in enumerate(network.ranks):
        gathered = {o.name for b in state.buckets for o in b.operations} - {"join"}
        failed = {fail.name for fail in state.failed}
        assert gathered | failed == {f"g{i}" for i in range(steps[rank])}
        assert not gathered & failed
        assert all(f"g{i}" in failed for i in range(min(steps), steps[rank]))
        assert all("joined" in str(fail.error) for fail in state.failed)
    per_rank = [{fail.name for fail in state.failed} for state in network.ranks]
    for name in set().union(*per_rank):
        wanting = [r for r in range(size) if int(name[1:]) < steps[r]]
        assert all(name in per_rank[r] for r in wanting)


def check_joined(network: Network, rounds: int) -> None:
    """All ranks hear in one order of the same last ranks, and nothing is left open."""
    check_order(network, joined=True)
    lasts = [
        [o.rows for b in state.buckets for o in b.operations if o.signature.kind is Kind.JOIN]
        for state in network.ranks
    ]
    assert all(found == lasts[0] and len(found) == rounds for found in lasts)
    assert not any(state.open for state in network.ranks)


def test_a_join_is_never_late() -> None:
    for rank in range(2):
        network = Network(Settings(2, world_of(2), warn=1.0, fail=5.0))
        network.submit(rank, [JOIN])
        network.settle()
        network.advance(100.0)
        network.settle()
        assert not network.ranks[rank].failed
        assert not network.ranks[rank].warnings


def test_a_reduction_that_waits_for_others_names_only_those_who_have_not_joined() -> None:
    network = Network(Settings(3, world_of(3), warn=1.0))
    network.submit(0, [JOIN])
    network.submit(1, [ask("x")])
    network.settle()
    network.advance(2.0)
    network.settle()
    [text] = [t for t in network.ranks[1].warnings if "did not submit" in t]
    assert "rank 2" in text
    assert "rank 0" not in text


def test_a_rank_that_leaves_ends_the_join_and_those_who_had_joined_are_needed_again() -> None:
    network = Network(Settings(3, world_of(3)))
    network.submit(0, [JOIN])
    network.settle()
    network.inject(2, Leaving("done"))
    network.settle()
    [fail] = network.ranks[0].failed
    assert "rank 2" in str(fail.error)
    network.submit(1, [ask("x")])
    network.settle()
    assert "x" in {f.name for f in network.ranks[1].failed}

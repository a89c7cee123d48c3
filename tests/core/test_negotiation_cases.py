"""Negotiation case by case: mismatches, reports, stalls, goodbyes, ids, garbage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core import wire
from commrt.errors import MismatchError, RemoteError, ShutdownError, StallError
from commrt.testing.network import Network, Settings, world_of
from commrt.testing.strategies import FACETS, altered, signatures
from commrt.types import Kind, ProcessSetSpec, ReduceOp, Request, Signature, TensorSpec
from core.negotiating import CAPACITIES, FLOATS, SEEDS, ask, check_order


@pytest.mark.parametrize("facet", FACETS)
@given(SEEDS)
@settings(max_examples=20)
def test_a_mismatch_fails_everywhere_and_the_next_operation_works(facet: str, seed: int) -> None:
    other = altered(FLOATS, facet)
    network = Network(Settings(3, world_of(3)))
    for round, wrong in enumerate((False, True, False, True, False)):
        rng = random.Random(seed + round)
        for rank in rng.sample(range(3), 3):
            network.submit(rank, [ask("x", other if wrong and rank == 1 else FLOATS)])
        while links := network.under_way():
            network.deliver(rng.choice(links))
    assert [len(state.buckets) for state in network.ranks] == [3, 3, 3]
    for number in (0, 1):
        errors = [state.failed[number].error for state in network.ranks]
        assert all(isinstance(error, MismatchError) for error in errors)
        [text] = {str(error) for error in errors}
        assert "ranks 0, 2: " in text
        assert "rank 1: " in text
        assert "train.py:7" in text


@pytest.mark.parametrize(
    ("facet", "said"),
    [
        ("kind", "ranks 0, 2: allreduce (called from train.py:7); rank 1: barrier"),
        ("number", "the number of tensors differs"),
        ("dtype", "the dtype differs between ranks. ranks 0, 2: float32"),
        ("shape", "ranks 0, 2: (2, 3) (called from train.py:7); rank 1: (2, 3, 7)"),
        ("order", "the memory order (strides) differs between ranks. ranks 0, 2: C"),
        ("op", "ranks 0, 2: sum (called from train.py:7); rank 1: average"),
        ("prescale", "the prescale factor differs"),
        ("postscale", "rank 1: 3.0"),
        ("codec", "the compression differs between ranks. ranks 0, 2: none"),
        ("root", "the root rank differs"),
        ("fusable", "whether it may be fused differs"),
    ],
)
def test_a_mismatch_says_which_rank_gave_what(facet: str, said: str) -> None:
    network = Network(Settings(3, world_of(3)))
    for rank in range(3):
        network.submit(rank, [ask("x", altered(FLOATS, facet) if rank == 1 else FLOATS)])
    network.settle()
    assert said in str(network.ranks[2].failed[0].error)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), SEEDS)
@settings(max_examples=100)
def test_a_known_operation_travels_as_a_bit(names: list[str], seed: int) -> None:
    network = Network(Settings(2, world_of(2)))
    rng = random.Random(seed)
    seen: set[str] = set()
    for name in names:
        before = len(network.log)
        for rank in rng.sample((0, 1), 2):
            network.submit(rank, [ask(name)])
        network.settle()
        events = [event for event, _ in network.log[before:]]
        messages = [wire.decode(e[2])[1] for e in events if e[0] == "coordinator"]  # type: ignore[arg-type]
        assert all(
            isinstance(m, wire.Ready) and bool(m.new) == (name not in seen) for m in messages
        )
        seen.add(name)
    assert [len(state.buckets) for state in network.ranks] == [len(names)] * 2


def test_two_ranks_may_report_the_same_operation() -> None:
    network = Network(Settings(3, world_of(3)))
    network.report(1, 0, "x", "bad")
    network.report(2, 0, "x", "worse")
    network.submit(0, [ask("x")])
    network.settle()
    assert str(network.ranks[0].failed[0].error) == "rank 1: bad"
    for rank in range(3):
        network.submit(rank, [ask("x")])
    network.settle()
    assert [len(state.buckets) for state in network.ranks] == [1, 1, 1]


def test_a_report_fails_what_its_own_rank_has_submitted() -> None:
    network = Network(Settings(2, world_of(2)))
    network.submit(1, [ask("x")])
    network.report(1, 0, "x", "bad")
    network.settle()
    network.submit(0, [ask("x")])
    network.settle()
    for state in network.ranks:
        assert isinstance(state.failed[0].error, RemoteError)
        assert str(state.failed[0].error) == "rank 1: bad"


@pytest.mark.parametrize("how", ["report", "stall"])
def test_a_leaving_rank_may_go_when_its_last_operation_has_failed(how: str) -> None:
    network = Network(Settings(2, world_of(2), fail=600.0))
    network.submit(1, [ask("x")])
    network.leave(1, "done")
    network.settle()
    assert network.ranks[1].end is None
    if how == "report":
        network.report(0, 0, "x", "bad")
    else:
        network.advance(601.0)
    network.settle()
    assert not network.ranks[1].open
    assert network.ranks[1].end is not None
    assert network.ranks[1].end.error is None


def test_a_leaving_rank_announces_again_what_the_coordinator_forgot() -> None:
    network = Network(Settings(2, world_of(2), capacity=1))
    for name in ("a", "b"):
        for rank in (0, 1):
            network.submit(rank, [ask(name)])
        if name == "a":
            network.settle()
    while network.under_way() != [("down", 0), ("down", 1)]:
        network.deliver(network.under_way()[0])
    network.submit(1, [ask("a")])  # by an id that the coordinator has given up for "b"
    network.leave(1, "done")
    network.submit(0, [ask("a")])
    network.settle()
    assert [len(state.buckets) for state in network.ranks] == [3, 3]
    assert network.ranks[1].end is not None


def test_an_id_evicted_by_the_same_message_is_given_anew_by_name() -> None:
    network = Network(Settings(1, world_of(1), capacity=2))
    for names in (["a"], ["b", "c", "a"], ["a", "b", "c"]):
        network.submit(0, [ask(name) for name in names])
        network.settle()
    assert not network.ranks[0].open
    assert not network.ranks[0].failed


@pytest.mark.parametrize("field", ["prescale", "postscale"])
def test_a_scale_that_is_not_a_number_fails_the_operation_only(field: str) -> None:
    signature = Signature(FLOATS.kind, FLOATS.tensors, **{field: float("nan")})  # type: ignore[arg-type]
    network = Network(Settings(2, world_of(2)))
    for rank in (0, 1):
        network.submit(rank, [ask("x", signature)])
    network.settle()
    assert [len(state.failed) for state in network.ranks] == [1, 1]
    for rank in (0, 1):
        network.submit(rank, [ask("x")])
    network.settle()
    assert [len(state.buckets) for state in network.ranks] == [1, 1]


def test_rows_that_do_not_fit_the_signature_fail_the_operation_only() -> None:
    gather = Signature(Kind.ALLGATHER, (TensorSpec("int8", (0,)),))
    network = Network(Settings(2, world_of(2)))
    network.submit(0, [ask("x", gather, rows=(1,))])
    network.submit(1, [ask("x", gather, rows=())])
    network.settle()
    assert [len(state.failed) for state in network.ranks] == [1, 1]


def test_absent_is_what_no_rank_has() -> None:
    network = Network(Settings(3, world_of(3)))
    signature = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (1,)),) * 3)
    for absent in ([(0, 1), (1, 2), (1,)], [(0,), (), (0,)], [(), (), ()], [(0, 1, 2)] * 3):
        for rank in range(3):
            network.submit(rank, [ask("x", signature, absent=absent[rank])])
        network.settle()
    found = [bucket.operations[0].absent for bucket in network.ranks[0].buckets]
    assert found == [(1,), (), (), (0, 1, 2)]


def test_rows_come_in_the_order_of_the_sets_ranks() -> None:
    gather = Signature(Kind.ALLGATHER, (TensorSpec("int8", (0, 2)),))
    network = Network(Settings(3, world_of(3, (0, 2))))
    for rows in ((5, 7), (0, 1), (5, 7)):
        for place, rank in ((1, 2), (0, 0)):
            network.submit(rank, [ask("x", gather, 1, rows=(rows[place],))])
        network.settle()
    buckets = network.ranks[2].buckets
    assert [b.operations[0].rows for b in buckets] == [((5, 7),), ((0, 1),), ((5, 7),)]


def test_a_rank_outside_the_set_is_refused() -> None:
    network = Network(Settings(3, world_of(3, (0, 1))))
    network.submit(2, [ask("x", set_id=1), ask("x", set_id=9)])
    network.settle()
    texts = [str(fail.error) for fail in network.ranks[2].failed]
    assert texts == ["rank 2 is not in process set 1", "rank 2 is not in process set 9"]


def test_all_are_welcome_when_the_last_has_come() -> None:
    network = Network(Settings(3, world_of(3)))
    network.hello(0)
    network.hello(2)
    network.settle()
    assert not any(state.started for state in network.ranks)
    network.hello(1)
    network.settle()
    assert all(state.started for state in network.ranks)


def test_a_late_rank_is_named_once_to_those_who_wait() -> None:
    network = Network(Settings(3, world_of(3), warn=60.0, fail=600.0))
    network.submit(0, [ask("x")])
    network.submit(2, [ask("x"), ask("y")])
    network.settle()
    for seconds in (59.0, 1.0, 100.0):
        network.advance(seconds)
        network.settle()
    assert network.ranks[1].warnings == []
    for rank in (0, 2):
        [text] = network.ranks[rank].warnings
        assert "rank 1 (on host1) did not submit 'x' for 60 s" in text
        assert "ranks 0 (on host0), 1 (on host1) did not submit 'y' for 60 s" in text


def test_a_stalled_operation_fails_everywhere_and_the_next_one_works() -> None:
    network = Network(Settings(2, world_of(2), warn=60.0, fail=600.0))
    network.submit(0, [ask("x")])
    network.settle()
    network.advance(600.0)
    network.settle()
    network.submit(1, [ask("x")])
    network.settle()
    for state in network.ranks:
        assert isinstance(state.failed[0].error, StallError)
        assert "rank 1 (on host1) did not submit 'x' for 600 s" in str(state.failed[0].error)
    for rank in (0, 1):
        network.submit(rank, [ask("x")])
    network.settle()
    assert [len(state.buckets) for state in network.ranks] == [1, 1]


def test_no_stall_limit_means_never() -> None:
    network = Network(Settings(2, world_of(2), warn=60.0, fail=0.0))
    network.submit(0, [ask("x")])
    network.settle()
    network.advance(1e9)
    network.settle()
    assert network.ranks[0].open


def test_a_member_names_a_coordinator_that_is_silent() -> None:
    network = Network(Settings(2, world_of(2), warn=60.0))
    network.submit(1, [ask("x")])
    network.advance(89.0)
    assert network.ranks[1].warnings == []
    network.advance(1.0)
    network.advance(100.0)
    [text] = network.ranks[1].warnings
    assert "rank 0 on host0 has not answered for 90 s" in text
    assert "'x'" in text


def test_an_operation_after_leaving_is_refused() -> None:
    network = Network(Settings(2, world_of(2)))
    network.submit(0, [ask("x")])
    network.leave(0, "done")
    network.submit(0, [ask("y")])
    network.settle()
    [failed] = network.ranks[0].failed
    assert isinstance(failed.error, ShutdownError)
    assert failed.name == "y"
    network.submit(1, [ask("x")])
    network.settle()
    assert [len(state.buckets) for state in network.ranks] == [1, 1]


@st.composite
def messages(draw: st.DrawFn) -> wire.Message:
    """Any message that a member of a job with three ranks and two sets might send."""
    sets = st.integers(-1, 3)
    names = st.sampled_from(("a", "b", ""))
    signature = st.deferred(lambda: signatures((0, 1)))
    few = st.lists(st.integers(-1, 4), max_size=3).map(tuple)
    requests = st.builds(Request, sets, names, st.booleans(), signature, few, few)
    ready = st.builds(
        wire.Ready,
        st.lists(requests, max_size=3).map(tuple),
        st.integers(-3, 5),
        st.binary(max_size=2),
        st.dictionaries(st.integers(-1, 5), few, max_size=2),
        st.dictionaries(st.integers(-1, 5), few, max_size=2),
    )
    others = st.one_of(
        st.builds(wire.Report, sets, names, st.just("bad")),
        st.builds(wire.Leaving, st.just("done"), st.booleans()),
        st.just(wire.Hello()),
        st.just(wire.Welcome()),
    )
    return draw(st.one_of(ready, ready, ready, others))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), messages()), max_size=8), CAPACITIES)
def test_no_message_of_a_rank_makes_the_coordinator_raise(
    sent: list[tuple[int, wire.Message]], capacity: int
) -> None:
    network = Network(Settings(3, world_of(3, (0, 1)), capacity=capacity))
    for rank, message in sent:
        network.inject(rank, message)
        network.deliver(("up", rank))
    network.advance(1000.0)


def test_reduce_ops_and_sets_keep_operations_apart() -> None:
    sets = world_of(3, (0, 1), (1, 2))
    network = Network(Settings(3, sets))
    average = Signature(FLOATS.kind, FLOATS.tensors, ReduceOp.AVERAGE)
    for rank in range(3):
        mine = [s.id for s in sets.values() if rank in s.ranks]
        network.submit(rank, [ask("x", s, set_id) for set_id in mine for s in (FLOATS,)])
        network.submit(rank, [ask("y", average, set_id) for set_id in mine])
    network.settle()
    check_order(network)
    assert [len(state.buckets) for state in network.ranks] == [4, 6, 4]
    assert isinstance(sets[1], ProcessSetSpec)

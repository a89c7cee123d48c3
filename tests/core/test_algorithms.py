"""Programs run on a machine of their own: no transport, every order, rendezvous only."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core import algorithms
from commrt.core.algorithms import Copy, Program
from core.machine import Array, Machine

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 1 << 32)
Reduction = Callable[[int, int, int], Program]


def ring(segment: int, lag: int) -> Reduction:
    return lambda rank, size, n: algorithms.ring_allreduce(rank, size, n, segment, lag)


REDUCTIONS = st.just(algorithms.doubling_allreduce) | st.builds(
    ring, st.integers(1, 12), st.integers(0, 9)
)


def run(
    programs: Sequence[Program], sources: Sequence[Array], outs: Sequence[Array], seed: int
) -> None:
    machine = Machine(programs, sources, outs)
    machine.run(random.Random(seed))
    assert machine.finished(), "deadlock"


def origins(size: int, n: int) -> list[Array]:
    """Return for each rank its input, each element as how often it holds each rank's value."""
    return [np.tile(np.eye(size, dtype=np.int64)[rank], (n, 1)) for rank in range(size)]


def check_origins(reduction: Reduction, size: int, n: int, seed: int, in_place: bool) -> None:
    """Every rank ends with every rank's value once; nothing final is written without all."""
    sources = origins(size, n)
    before = [source.copy() for source in sources]
    outs = sources if in_place else [np.full((n, size), -1) for _ in sources]
    run([reduction(r, size, n) for r in range(size)], sources, outs, seed)
    for out in outs:
        np.testing.assert_array_equal(out, np.ones((n, size)))
    if not in_place:
        np.testing.assert_array_equal(sources, before)


@settings(max_examples=600)
@given(REDUCTIONS, SIZES, st.integers(0, 40), SEEDS, st.booleans())
def test_an_allreduce_adds_every_rank_once_in_any_order_of_delivery(
    reduction: Reduction, size: int, n: int, seed: int, in_place: bool
) -> None:
    check_origins(reduction, size, n, seed, in_place)


@pytest.mark.parametrize("size", range(1, 10))
def test_an_allreduce_is_right_for_all_small_sizes(size: int) -> None:
    for n in sorted({0, 1, 2, 3, size - 1, size, size + 1, 2 * size + 1}):
        check_origins(algorithms.doubling_allreduce, size, n, n, True)
        for segment, lag in product((1, 2, 100), (0, 1, 4)):
            check_origins(ring(segment, lag), size, n, n, True)


@settings(max_examples=100)
@given(REDUCTIONS, SIZES, st.integers(0, 40), SEEDS, SEEDS)
def test_all_ranks_get_the_same_bits_whatever_the_order(
    reduction: Reduction, size: int, n: int, seed: int, other: int
) -> None:
    rng = np.random.default_rng(seed)
    sources = [
        rng.normal(size=n).astype(np.float32) * 10.0 ** rng.integers(-3, 3) for _ in range(size)
    ]
    programs = [reduction(r, size, n) for r in range(size)]
    found = []
    for order in (seed, other):
        outs = [np.zeros(n, np.float32) for _ in range(size)]
        run(programs, sources, outs, order)
        found += outs
    assert len({out.tobytes() for out in found}) == 1
    exact = np.sum([s.astype(np.float64) for s in sources], axis=0)
    weight = np.sum([abs(s).astype(np.float64) for s in sources], axis=0)
    assert np.all(abs(found[0] - exact) <= size * np.finfo(np.float32).eps * weight)


@settings(max_examples=200)
@given(REDUCTIONS, st.integers(2, 9), st.integers(0, 40), SEEDS, st.data())
def test_without_one_member_no_rank_writes_anything(
    reduction: Reduction, size: int, n: int, seed: int, data: st.DataObject
) -> None:
    absent = data.draw(st.integers(0, size - 1))
    sources = origins(size, n)
    before = [source.copy() for source in sources]
    programs = [reduction(r, size, n) if r != absent else Program((), ()) for r in range(size)]
    machine = Machine(programs, sources, sources)
    if n == 0:
        return
    machine.run(random.Random(seed))
    assert not machine.finished()
    np.testing.assert_array_equal(sources, before)


@settings(max_examples=200)
@given(REDUCTIONS, SIZES, st.integers(0, 40))
def test_every_element_of_an_allreduce_is_written_once(
    reduction: Reduction, size: int, n: int
) -> None:
    for rank in range(size):
        program = reduction(rank, size, n)
        written = [i for r in program.receives if r.final for i in range(r.lo, r.hi)]
        written += [i for c in program.copies for i in range(c.to, c.to + c.hi - c.lo)]
        assert sorted(written) == list(range(n))


@given(st.integers(2, 9), st.integers(0, 60), st.integers(1, 12), st.integers(0, 9))
def test_the_ring_sends_the_least_there_is_to_send(
    size: int, n: int, segment: int, lag: int
) -> None:
    for rank in range(size):
        program = algorithms.ring_allreduce(rank, size, n, segment, lag)
        sent = sum(send.hi - send.lo for send in program.sends)
        assert abs(sent - 2 * n * (size - 1) / size) <= 2
        assert all(send.hi - send.lo <= segment for send in program.sends)


@settings(max_examples=250)
@given(SIZES, SEEDS, st.data())
def test_an_alltoall_brings_each_rank_its_parts_in_rank_order(
    size: int, seed: int, data: st.DataObject
) -> None:
    rng = random.Random(seed)
    counts = [[rng.choice((0, 0, 1, 2, 5)) for _ in range(size)] for _ in range(size)]
    parts = [
        [np.array([(r, to, i) for i in range(counts[r][to])]).reshape(-1, 3) for to in range(size)]
        for r in range(size)
    ]
    sources = [np.concatenate(parts[r]) for r in range(size)]
    expected = [np.concatenate([parts[r][to] for r in range(size)]) for to in range(size)]
    outs = [np.full_like(e, -1) for e in expected]
    programs = [
        algorithms.alltoallv(r, size, counts[r], [c[r] for c in counts]) for r in range(size)
    ]
    run(programs, sources, outs, seed)
    for out, wanted in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(out, wanted)


@settings(max_examples=250)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 6), SEEDS)
def test_an_allgather_brings_every_block_in_rank_order(
    counts: list[int], segment: int, seed: int
) -> None:
    size = len(counts)
    sources = [np.array([(r, i) for i in range(n)]).reshape(-1, 2) for r, n in enumerate(counts)]
    outs = [np.full((sum(counts), 2), -1) for _ in counts]
    programs = [algorithms.ring_allgather(r, size, counts, segment) for r in range(size)]
    run(programs, sources, outs, seed)
    for out in outs:
        np.testing.assert_array_equal(out, np.concatenate(sources))


@settings(max_examples=250)
@given(SIZES, st.integers(0, 20), st.integers(1, 8), SEEDS, st.booleans(), st.data())
def test_a_broadcast_brings_the_root_s_input_to_all(
    size: int, n: int, segment: int, seed: int, in_place: bool, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, size - 1))
    sources = [np.arange(n) + 100 * r for r in range(size)]
    outs = sources if in_place else [np.full(n, -1) for _ in sources]
    expected = sources[root].copy()
    programs = [algorithms.tree_broadcast(r, size, root, n, segment) for r in range(size)]
    run(programs, sources, outs, seed)
    for out in outs:
        np.testing.assert_array_equal(out, expected)


@given(SIZES, st.integers(0, 8), st.integers(1, 20))
def test_a_broadcast_reaches_everyone_in_a_logarithm_of_hops(size: int, root: int, n: int) -> None:
    root %= size
    sources = {}
    for rank in range(size):
        program = algorithms.tree_broadcast(rank, size, root, n, n)
        sources[rank] = [receive.peer for receive in program.receives]
    for rank in range(size):
        hops = 0
        while rank != root:
            [rank] = sources[rank]
            hops += 1
        assert hops <= (size - 1).bit_length()


def test_one_rank_only_copies() -> None:
    for program in (algorithms.ring_allreduce(0, 1, 5, 2), algorithms.doubling_allreduce(0, 1, 5)):
        assert program == Program((), (), (Copy(0, 5, 0),))


def test_without_its_guards_the_machine_sees_input_overwritten_before_it_is_sent() -> None:
    wrong = 0
    for seed in range(50):
        sources = origins(4, 2)
        programs = []
        for rank in range(4):
            program = algorithms.doubling_allreduce(rank, 4, 2)
            receives = tuple(replace(r, guards=()) for r in program.receives)
            programs.append(Program(program.sends, receives))
        Machine(programs, sources, sources).run(random.Random(seed))
        wrong += any((source != 1).any() for source in sources)
    assert wrong


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    st.integers(1, 12),
    st.integers(0, 9),
    SEEDS,
)
def test_a_reduce_scatter_leaves_each_rank_its_own_chunk_of_every_rank_once(
    counts: list[int], segment: int, lag: int, seed: int
) -> None:
    size, n = len(counts), sum(counts)
    sources = origins(size, n)
    before = [source.copy() for source in sources]
    outs = [np.full((count, size), -1) for count in counts]
    programs = [
        algorithms.ring_reduce_scatter(rank, size, counts, segment, lag) for rank in range(size)
    ]
    run(programs, sources, outs, seed)
    for out in outs:
        np.testing.assert_array_equal(out, np.ones_like(out))
    np.testing.assert_array_equal(sources, before)


@pytest.mark.parametrize("absent", range(4))
def test_a_reduce_scatter_without_one_member_writes_nothing(absent: int) -> None:
    counts = [5, 3, 0, 7]
    programs = [
        algorithms.ring_reduce_scatter(r, 4, counts, 2) if r != absent else Program((), ())
        for r in range(4)
    ]
    outs = [np.full((count, 4), -1) for count in counts]
    Machine(programs, origins(4, 15), outs).run(random.Random(absent))
    assert all((out == -1).all() for out in outs)

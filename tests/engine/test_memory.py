from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commrt.engine.memory import MemoryMap

POOL = np.zeros(64, np.uint8)
SPANS = st.tuples(st.integers(0, 63), st.integers(0, 12)).map(
    lambda s: (s[0], min(64, s[0] + s[1]))
)
ARRAYS = st.lists(SPANS, max_size=2)
Spans = list[tuple[int, int]]


def arrays(spans: Spans) -> tuple[np.ndarray, ...]:
    return tuple(POOL[lo:hi] for lo, hi in spans)


def meet(a: Spans, b: Spans) -> bool:
    return any(max(x[0], y[0]) < min(x[1], y[1]) for x in a for y in b)


@given(st.lists(st.tuples(ARRAYS, ARRAYS, st.integers(0, 9)), max_size=20))
def test_conflicts_are_those_that_brute_force_finds(calls: list[tuple[Spans, Spans, int]]) -> None:
    memory, held = MemoryMap(), dict[str, tuple[Spans, Spans]]()
    for number, (sources, outs, victim) in enumerate(calls):
        found = memory.conflict(arrays(sources), arrays(outs))
        clashing = {
            name
            for name, (reads, writes) in held.items()
            if meet(outs, writes) or meet(outs, reads) or meet(sources, writes)
        }
        assert (found in clashing) if clashing else found is None
        if found is None:
            held[f"op{number}"] = (sources, outs)
            memory.add(f"op{number}", arrays(sources), arrays(outs))
        elif victim < len(held):
            name = list(held)[victim]
            reads, writes = held.pop(name)
            memory.remove(name, arrays(reads), arrays(writes))
    for name, (reads, writes) in held.items():
        memory.remove(name, arrays(reads), arrays(writes))
    assert memory.conflict((POOL,), (POOL,)) is None


def test_many_may_read_what_nobody_writes() -> None:
    memory = MemoryMap()
    memory.add("a", (POOL[:8],), ())
    assert memory.conflict((POOL[4:12],), (POOL[8:16],)) is None
    assert memory.conflict((), (POOL[7:8],)) == "a"


def test_an_operation_may_write_what_it_reads() -> None:
    memory = MemoryMap()
    memory.add("a", (POOL[:8],), (POOL[:8],))
    memory.remove("a", (POOL[:8],), (POOL[:8],))
    assert memory.conflict((POOL[:8],), (POOL[:8],)) is None


def test_empty_arrays_share_nothing() -> None:
    memory = MemoryMap()
    memory.add("a", (), (POOL[:8],))
    assert memory.conflict((POOL[3:3],), (POOL[4:4],)) is None

"""Which parts of a stretch are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commrt.transports.ranges import FreeRanges

GRAIN = 8


@given(st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=60), st.randoms())
def test_nothing_overlaps_and_everything_comes_back(orders: list[int | None], rng: object) -> None:
    ranges = FreeRanges(16, 416, GRAIN)
    taken: dict[int, int] = {}
    for n in orders:
        if n is None:
            if taken:
                start = rng.choice(sorted(taken))  # type: ignore[attr-defined]
                ranges.give(start, taken.pop(start))
            continue
        found = ranges.take(n)
        used = sum(max(1, -(-size // GRAIN)) * GRAIN for size in taken.values())
        if found is None:
            assert all(hi - lo < n for lo, hi in ranges.free())
            continue
        assert found % GRAIN == 0 and found >= 16 and found + n <= 416
        assert all(found + n <= lo or lo + size <= found for lo, size in taken.items())
        assert sum(hi - lo for lo, hi in ranges.free()) < 400 - used
        taken[found] = n
    for start, n in taken.items():
        ranges.give(start, n)
    assert ranges.free() == [(16, 416)]

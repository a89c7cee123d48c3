from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import integers

from commrt.core.chunks import chunk_bounds, cut


@given(n=integers(0, 200), size=integers(1, 9))
def test_chunks_cover_every_element_once(n: int, size: int) -> None:
    assert [i for lo, hi in chunk_bounds(n, size) for i in range(lo, hi)] == list(range(n))


@given(n=integers(0, 200), size=integers(1, 9))
def test_chunks_differ_by_at_most_one_and_the_first_is_the_longest(n: int, size: int) -> None:
    lengths = [hi - lo for lo, hi in chunk_bounds(n, size)]
    assert len(lengths) == size
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@given(lo=integers(0, 50), n=integers(0, 100), step=integers(1, 30))
def test_pieces_cover_every_element_once_and_none_is_empty(lo: int, n: int, step: int) -> None:
    pieces = cut(lo, lo + n, step)
    assert [i for a, b in pieces for i in range(a, b)] == list(range(lo, lo + n))
    assert all(0 < b - a <= step for a, b in pieces)
    assert all(b - a == step for a, b in pieces[:-1])

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commrt.core.bucketing import FixedBuckets

SIZES = st.lists(st.integers(0, 50), max_size=40)
LIMITS = st.integers(0, 100)


@given(SIZES, LIMITS, LIMITS)
def test_buckets_cover_every_gradient_once_in_order(sizes: list[int], n: int, first: int) -> None:
    ranges = FixedBuckets(n, first).cut(sizes)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(len(sizes)))
    assert all(lo < hi for lo, hi in ranges)


@given(SIZES, LIMITS, LIMITS)
def test_a_bucket_closes_as_soon_as_it_has_its_size(sizes: list[int], n: int, first: int) -> None:
    for place, (lo, hi) in enumerate(FixedBuckets(n, first).cut(sizes)):
        wanted = n if place else first
        assert sum(sizes[lo : hi - 1]) < wanted or hi - lo == 1
        assert hi == len(sizes) or sum(sizes[lo:hi]) >= wanted


def test_the_first_bucket_is_small() -> None:
    assert FixedBuckets(40, 10).cut([10] * 7) == [(0, 1), (1, 5), (5, 7)]

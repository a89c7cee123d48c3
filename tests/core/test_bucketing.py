from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.core.bucketing import FixedBuckets, FormulaBuckets, policy_of

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


@pytest.mark.parametrize(
    ("mib", "ranks", "bucket"),
    [(240, 2, 7.5), (240, 4, 4), (64, 1, 4), (1024, 2, 32), (1024, 64, 4)],
)
def test_the_formula_makes_sixteen_buckets_for_each_rank(
    mib: int, ranks: int, bucket: float
) -> None:
    sizes = [1 << 19] * (2 * mib)
    ranges = FormulaBuckets(ranks, 1 << 20).cut(sizes)
    assert ranges[0] == (0, 2)
    assert ranges[1] == (2, 2 + round(2 * bucket))
    assert ranges[-1][1] == len(sizes)


def test_a_policy_is_chosen_by_size_or_by_name() -> None:
    assert policy_of(40, 10, 2) == FixedBuckets(40, 10)
    assert policy_of("formula", 10, 2) == FormulaBuckets(2, 10)

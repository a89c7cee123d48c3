"""Bandwidth formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from commrt.core.perf import algbw, busbw, busbw_factor
from commrt.types import Kind


def test_a_gigabyte_a_second_is_a_thousand_million_bytes() -> None:
    assert algbw(10**9, 1.0) == 1.0
    assert algbw(10**9, 0.5) == 2.0


@pytest.mark.parametrize(
    ("kind", "factor"), [(Kind.ALLREDUCE, 1.5), (Kind.ALLGATHER, 0.75), (Kind.BROADCAST, 1.0)]
)
def test_factors_of_four_ranks_are_those_of_nccl_tests(kind: Kind, factor: float) -> None:
    assert busbw_factor(kind, 4) == factor
    assert busbw(kind, 10**9, 1.0, 4) == factor


@given(size=integers(2, 9))
def test_an_allreduce_costs_a_link_what_two_allgathers_cost(size: int) -> None:
    allgathers = 2 * busbw_factor(Kind.ALLGATHER, size)
    assert busbw_factor(Kind.ALLREDUCE, size) == pytest.approx(allgathers)


def test_one_rank_moves_nothing() -> None:
    assert busbw_factor(Kind.ALLREDUCE, 1) == busbw_factor(Kind.ALLGATHER, 1) == 0

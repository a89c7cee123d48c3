"""Medians, ratios, rounds in turn, tables."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists

from commrt.cli.bench.figures import fastest, quantile, ratio, series, speed_ratio
from commrt.cli.bench.rounds import interleave
from commrt.cli.bench.table import Column, header, number, row, sentence

TIMES = lists(floats(1e-6, 1e3), min_size=1, max_size=9)


@given(rounds=TIMES)
def test_a_series_has_its_median_between_its_ends(rounds: list[float]) -> None:
    found = series("commrt", "p50", "us", rounds)
    assert found.median == statistics.median(rounds)
    assert found.low <= found.median <= found.high


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_single_rounds() -> None:
    a, b = series("a", "", "s", [1, 2, 6]), series("b", "", "s", [4, 1, 3])
    found = ratio("time", a, b)
    assert (found.value, found.low, found.high) == (2 / 3, 0.25, 2)


@given(rounds=TIMES)
def test_the_ratio_of_speeds_is_the_ratio_of_times_turned_round(rounds: list[float]) -> None:
    ours, theirs = series("commrt", "", "s", rounds), series("gloo", "", "s", [1.0] * len(rounds))
    speed, time = speed_ratio("", ours, theirs), ratio("", theirs, ours)
    assert (speed.value, speed.low, speed.high) == (time.value, time.low, time.high)
    assert (speed.of, speed.to) == ("commrt", "gloo")


def test_figures_of_different_rounds_are_not_divided() -> None:
    with pytest.raises(ValueError):
        ratio("", series("a", "", "s", [1]), series("b", "", "s", [1, 2]))


def test_the_fastest_is_that_of_the_lowest_median() -> None:
    a, b = series("a", "", "s", [3, 3, 1]), series("b", "", "s", [2, 2, 9])
    assert fastest([a, b]) is b


@given(values=lists(integers(), min_size=1), percent=integers(1, 100))
def test_a_quantile_is_the_first_value_that_enough_do_not_exceed(
    values: list[int], percent: int
) -> None:
    ordered = sorted(values)
    found = quantile(ordered, percent / 100)
    assert sum(v <= found for v in ordered) >= percent / 100 * len(ordered) - 1e-6
    assert sum(v < found for v in ordered) < percent / 100 * len(ordered) + 1e-6


@given(rounds=integers(1, 9), sides=integers(1, 4))
def test_every_side_runs_once_a_round_and_begins_as_often_as_the_others(
    rounds: int, sides: int
) -> None:
    order: list[int] = []
    pauses: list[int] = []
    found = interleave(
        {str(i): lambda i=i: order.append(i) or len(order) for i in range(sides)},
        rounds, lambda: pauses.append(len(order)), lambda _: None,
    )  # fmt: skip
    by_round = [order[i : i + sides] for i in range(0, len(order), sides)]
    assert all(sorted(names) == list(range(sides)) for names in by_round)
    assert [names[0] for names in by_round] == [i % sides for i in range(rounds)]
    assert pauses == list(range(rounds * sides))  # before each
    assert all(len(results) == rounds for results in found.values())


def test_a_table_keeps_its_columns() -> None:
    columns = (Column("size", "B", 8), Column("busbw", "GB/s", 7))
    assert header(columns) == "#    size   busbw\n#     (B)  (GB/s)"
    assert row(columns, [4096, 1.5]) == "     4096    1.50"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (0.00461, "0.0046"), (0.5, "0.500"), (1.25, "1.25"), (345.67, "345.7"),
     (12345.6, "12346"), (-0.25, "-0.250")],
)  # fmt: skip
def test_numbers_show_the_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_ratio_says_what_was_divided_by_what() -> None:
    ours, theirs = series("commrt", "", "s", [1, 2, 4]), series("gloo", "", "s", [4, 4, 4])
    assert sentence(speed_ratio("speed", ours, theirs)) == (
        "# speed, commrt / gloo: 2.00 (single rounds 1.00 to 4.00)"
    )

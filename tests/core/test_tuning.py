"""Trials on links whose times are computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.core.tuning import SEGMENT, SMALL, TIMES, Choice, Timed, Trial, choose

Link = Callable[[Trial], float]


def link(ranks: int, latency: float, rate: float, waste: float = 0.0) -> Link:
    """An allreduce by its cost formula; `waste`: seconds that each segment of a ring costs."""

    def seconds(trial: Trial) -> float:
        if not trial.ring:
            rounds = (ranks - 1).bit_length()
            return rounds * (latency + trial.nbytes / rate)
        steps = 2 * (ranks - 1)
        chunk = trial.nbytes / ranks
        return steps * (latency + chunk / rate) + steps * waste * -(-chunk // trial.segment)

    return seconds


def run(
    links: dict[str, Link], allowed: float = 10.0, ranks: int = 4
) -> tuple[Choice, list[Trial]]:
    course, made = choose(list(links), ranks, allowed), []
    trial = next(course)
    while True:
        made.append(trial)
        best = links[trial.wire](trial)
        try:
            trial = course.send(Timed(best, TIMES * best))
        except StopIteration as end:
            choice: Choice = end.value
            return choice, made


@given(st.integers(3, 64), st.floats(1e-6, 1e-3), st.floats(1e6, 1e11))
def test_small_ends_where_the_ring_gets_faster(ranks: int, latency: float, rate: float) -> None:
    found = link(ranks, latency, rate)
    choice, _ = run({"tcp": found}, 1e9)

    def ring_wins(nbytes: int) -> bool:
        return found(Trial("tcp", True, nbytes)) < 0.9 * found(Trial("tcp", False, nbytes))

    assert choice.small == 1 << 20 or ring_wins(2 * choice.small)
    assert choice.small < 16 << 10 or not ring_wins(choice.small)


def test_two_ranks_exchange_halves_round_a_ring_no_faster_than_wholes() -> None:
    assert run({"tcp": link(2, 1e-4, 1e8)})[0].small == 1 << 20


@pytest.mark.parametrize(("better", "expected"), [(1.9, "tcp"), (2.1, "mpi"), (0.5, "tcp")])
def test_the_second_wire_must_be_twice_as_fast(better: float, expected: str) -> None:
    choice, _ = run({"tcp": link(4, 1e-4, 1e9), "mpi": link(4, 1e-4 / better, 1e9 * better)})
    assert choice.wire == expected
    assert dict(choice.rates).keys() == {"tcp", "mpi"}


def test_the_second_wire_must_be_faster_each_time() -> None:
    slow = link(4, 1e-4, 1e9)

    def late_for(nbytes: int) -> Link:  # noise in one trial
        return lambda trial: 3 * slow(trial) if trial.nbytes == nbytes else slow(trial)

    for nbytes in (64 << 10, 256 << 10, 1 << 20):
        assert run({"tcp": late_for(nbytes), "mpi": slow})[0].wire == "tcp"


@pytest.mark.parametrize(("waste", "expected"), [(0.0, SEGMENT), (1.0, 4 << 20)])
def test_larger_segments_are_used_where_each_costs_much(waste: float, expected: int) -> None:
    assert run({"tcp": link(2, 1e-6, 1e10, waste / 1000)}, 1e9, 2)[0].segment == expected


@pytest.mark.parametrize(("rate", "expected"), [(118e6, 2 << 20), (1e9, SEGMENT)])
def test_slow_links_get_long_segments_untried(rate: float, expected: int) -> None:
    choice, made = run({"tcp": link(4, 1e-4, rate)})
    assert choice.segment == expected
    assert any(trial.nbytes > 1 << 20 for trial in made) == (expected == SEGMENT)


@given(
    st.integers(2, 64), st.floats(1e-6, 1.0), st.floats(1e3, 1e11), st.sampled_from((0.05, 0.25))
)
def test_it_ends_in_time_but_for_what_small_trials_could_not_foretell(
    ranks: int, latency: float, rate: float, allowed: float
) -> None:
    links = {"tcp": link(ranks, latency, rate), "mpi": link(ranks, 2 * latency, rate)}
    _, made = run(links, allowed)
    spent = [TIMES * links[trial.wire](trial) for trial in made]
    assert sum(spent[:-1]) <= allowed or len(made) == 1
    first = TIMES * links["tcp"](made[0])
    assert sum(spent) <= allowed + max(first, max(spent[1:], default=0))


def test_where_there_is_no_time_it_stays_with_what_is_usual() -> None:
    choice, made = run({"tcp": link(4, 0.1, 1e4), "mpi": link(4, 0.01, 1e9)}, 0.25)
    assert choice == Choice("tcp", SMALL, SEGMENT)
    assert made == [Trial("tcp", False, 16 << 10)]

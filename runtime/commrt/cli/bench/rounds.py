"""Runs sides in turn, round by round, so that a machine's moods hit all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

import commrt

T = TypeVar("T")

_SETTLE = 0.002
"""Seconds after a barrier in which engines go back to sleep."""


def interleave(
    sides: Mapping[str, Callable[[], T]], rounds: int, pause: Callable[[], None],
    progress: Callable[[str], None],
) -> dict[str, list[T]]:  # fmt: skip
    """Run every side once a round, each round beginning with another one; `pause` before each."""
    names = list(sides)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            progress(f"round {number + 1} of {rounds}: {name}")
            pause()
            results[name].append(sides[name]())
    return results


def settle() -> None:
    """Wait until all ranks are here and no engine has anything to do."""
    commrt.barrier()
    time.sleep(_SETTLE)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by the clock, and by the processors that all threads of this process used."""

    clock: float
    processor: float


def spent_each(run: Callable[[], object], iterations: int, warm_up: int) -> Spent:
    """Return the mean of a call, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        run()
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(iterations):
        run()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return Spent(clock / iterations, processor / iterations)


def seconds_each(run: Callable[[], object], iterations: int, warm_up: int) -> float:
    """Return the mean seconds of a call, after `warm_up` calls that do not count."""
    return spent_each(run, iterations, warm_up).clock


def mean_over_ranks(values: Sequence[float]) -> list[float]:
    """Average each figure over ranks; a collective operation. All ranks get the same bits."""
    mean: list[float] = commrt.allreduce(np.array(values, np.float64)).tolist()
    return mean

"""What was measured, and what is made of it: medians, spreads, ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One figure of one side in every round, such as the `p50` of `gloo` in `us`."""

    side: str
    what: str
    unit: str
    rounds: tuple[float, ...]
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """`of` divided by `to`: `value` is that of the medians, `low` and `high` of single rounds."""

    what: str
    of: str
    to: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Findings:
    """What a benchmark found. `failures`: what was promised and not kept."""

    series: tuple[Series, ...]
    ratios: tuple[Ratio, ...] = ()
    failures: tuple[str, ...] = ()


def series(side: str, what: str, unit: str, rounds: Iterable[float]) -> Series:
    """Sum the rounds up; there must be at least one."""
    values = tuple(float(value) for value in rounds)
    return Series(side, what, unit, values, statistics.median(values), min(values), max(values))


def ratio(what: str, of: Series, to: Series) -> Ratio:
    """Divide two figures of the same rounds."""
    single = [a / b for a, b in zip(of.rounds, to.rounds, strict=True)]
    return Ratio(what, of.side, to.side, of.median / to.median, min(single), max(single))


def speed_ratio(what: str, ours: Series, theirs: Series) -> Ratio:
    """Divide speeds, given times: above 1 if ours takes less."""
    single = [b / a for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    return Ratio(
        what, ours.side, theirs.side, theirs.median / ours.median, min(single), max(single)
    )


def fastest(times: Sequence[Series]) -> Series:
    """Return the one with the lowest median; of equals the first."""
    return min(times, key=lambda candidate: candidate.median)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the ascending values do not exceed."""
    n = len(ordered)
    return ordered[max(0, min(n - 1, -int(-share * n // 1) - 1))]

"""Which trials tell how data should move between hosts, and what follows from them. Pure.

A trial is an allreduce of a given size in a given way. Small ones come first: what they took tells
what larger ones would, and one that would exceed the time allowed is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from math import inf

from commrt.core.perf import busbw_factor
from commrt.types import Kind

SMALL = 64 << 10
"""Bytes up to which recursive doubling is faster than the ring, unless measured."""

SEGMENT = 1 << 20
"""Bytes of a ring's segment, unless measured: few messages, yet they stay in the cache."""

TIMES = 4
"""Allreduces of one trial, at most."""

_FIRST = 16 << 10
_LARGEST_SMALL = 1 << 20
_RATES = (64 << 10, 256 << 10, 1 << 20)  # bytes of which a ring shows what a wire can carry
_LONG = 4 << 20  # bytes of which a ring shows what segments are good for
_SEGMENTS = (256 << 10, 4 << 20)
_SLOW = 250e6  # bytes/s through a link
_SLOW_SEGMENT = 2 << 20
_CLEARLY = 0.9
"""What is not the first choice must take less than this share of its time: trials are noisy."""

_WORTH_IT = 0.5
"""The same for another wire: MPI polls, and may end a process whose peer has died."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An allreduce to be timed. `ring`: else recursive doubling."""

    wire: str
    ring: bool
    nbytes: int
    segment: int = SEGMENT


@dataclass(frozen=True, slots=True)
class Timed:
    """What one allreduce of a trial took at best, and the whole trial. Seconds."""

    best: float
    all: float


@dataclass(frozen=True, slots=True)
class Choice:
    """How data moves. `rates`: bytes/s through each wire's ring, as far as measured."""

    wire: str
    small: int = SMALL
    segment: int = SEGMENT
    rates: tuple[tuple[str, float], ...] = ()


Trials = Generator[Trial, Timed, Choice]


def choose(wires: Sequence[str], ranks: int, allowed: float) -> Trials:
    """Yield trials, be sent their times, and return what is best. `wires`: the first choice first.

    `allowed`: seconds for all trials of so many ranks.
    """
    budget = _Budget(allowed)
    choice = Choice(wires[0])
    for wire in wires:
        yield from budget.run(Trial(wire, False, _FIRST))
    seen: list[dict[str, float]] = []
    for nbytes in _RATES:
        times = {}
        for wire in wires:
            seconds = yield from budget.run(Trial(wire, True, nbytes))
            if seconds is not None:
                times[wire] = seconds
        if len(times) < len(wires):
            break
        seen.append(times)
        rates = tuple((wire, nbytes / seconds) for wire, seconds in times.items())
        choice = replace(choice, rates=rates)
    choice = replace(choice, wire=_best(wires, seen))
    small = yield from _small(choice.wire, budget)
    rate = dict(choice.rates).get(choice.wire, inf)
    if busbw_factor(Kind.ALLREDUCE, ranks) * rate < _SLOW:
        # Time is the link's anyway, and half as many wake-ups took an eighth less of a processor.
        return replace(choice, small=small, segment=_SLOW_SEGMENT)
    segment = yield from _segment(choice.wire, budget)
    return replace(choice, small=small, segment=segment)


def _best(wires: Sequence[str], seen: Sequence[dict[str, float]]) -> str:
    """Return the fastest of those that were worth it each time, and more than once."""
    first = wires[0]
    worthy = [wire for wire in wires[1:] if all(t[wire] < _WORTH_IT * t[first] for t in seen)]
    if len(seen) < 2 or not worthy:
        return first
    return min(worthy, key=lambda wire: seen[-1][wire])


def _small(wire: str, budget: _Budget) -> Generator[Trial, Timed, int]:
    """Return the size up to which doubling is not clearly slower than the ring."""
    nbytes = _FIRST
    while nbytes <= _LARGEST_SMALL:
        doubling = yield from budget.run(Trial(wire, False, nbytes))
        ring = yield from budget.run(Trial(wire, True, nbytes))
        if doubling is None or ring is None:
            return SMALL
        if ring < _CLEARLY * doubling:
            return nbytes // 2
        nbytes *= 2
    return _LARGEST_SMALL


def _segment(wire: str, budget: _Budget) -> Generator[Trial, Timed, int]:
    """Return the segments in which a long ring is fastest."""
    best, fastest = SEGMENT, (yield from budget.run(Trial(wire, True, _LONG)))
    if fastest is None:
        return best
    for segment in _SEGMENTS:
        seconds = yield from budget.run(Trial(wire, True, _LONG, segment))
        if seconds is not None and seconds < _CLEARLY * fastest:
            best, fastest = segment, seconds
    return best


class _Budget:
    """Runs what is worth its time. A trial whose like is known is not run again."""

    def __init__(self, allowed: float) -> None:
        self._left = allowed
        self._known: dict[Trial, float] = {}
        self._pace = 0.0  # seconds that the last trial took for a byte, once there were connections

    def run(self, trial: Trial) -> Generator[Trial, Timed, float | None]:
        """Return the seconds of one allreduce; None if there is no time to find out."""
        if trial not in self._known:
            if self._pace * trial.nbytes > self._left:
                return None
            timed = yield trial
            self._left -= timed.all
            self._pace = TIMES * timed.best / trial.nbytes
            self._known[trial] = timed.best
        return self._known[trial]

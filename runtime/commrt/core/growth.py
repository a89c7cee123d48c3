"""How large buckets should be, found while the job runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

START: Final = 1 << 20
"""Bytes of a bucket at first."""

WINDOW: Final = 8
"""Steps with buckets of one size, of which the last `COUNTED` count: the first ones negotiate."""

COUNTED: Final = 4

_LARGEST = 32 << 20
_NOISE = 1.08
"""How much faster twice the size must be to be worth a later end of the last bucket."""

_CHANGE = 1.6
"""How much the rate must have changed for the link to be another one."""

_FIRST_LOOK, _LAST_LOOK = 64, 512
"""Steps between looks at whether it has, at first and in the end."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Buckets of `nbytes` for the next `steps`, after which there is another decision."""

    nbytes: int
    steps: int


@dataclass(slots=True)
class Search:
    """Sizes tried since the last beginning, with the rate of each in bytes/s."""

    rates: dict[int, float] = field(default_factory=dict)
    look: int = _FIRST_LOOK


class Growth:
    """Doubles the size while a larger bucket uses the link better than noise does. Pure.

    The rate of a step is bytes per second in which anything was on the wire. Waiting for a late
    peer makes it smaller, never larger, so the best of a few steps counts. `most`: bytes of all
    gradients, beyond which there is but one bucket.
    """

    def __init__(self, most: int) -> None:
        self._most = min(_LARGEST, max(START, most))
        self._nbytes = START
        self._search = Search()
        self._settled = False
        self._best = 0.0

    def observe(self, rate: float) -> None:
        """Note the rate of a step that counts."""
        self._best = max(self._best, rate)

    def decide(self) -> Decision:
        """Return what follows from what was seen since the last decision."""
        best, self._best = self._best, 0.0
        if self._settled:
            return self._look(best)
        if not best:  # nothing was seen
            return Decision(self._nbytes, WINDOW)
        rates = self._search.rates
        before = rates.get(self._nbytes // 2, 0.0)
        rates[self._nbytes] = best
        if before and best < _NOISE * before:
            return self._settle(self._nbytes // 2)
        if 2 * self._nbytes > self._most:
            return self._settle(self._nbytes)
        self._nbytes *= 2
        return Decision(self._nbytes, WINDOW)

    def text(self) -> str:
        """Say what was chosen, and why."""
        seen = ", ".join(
            f"{size / (1 << 20):g} MiB {rate / 1e6:.0f} MB/s"
            for size, rate in self._search.rates.items()
        )
        state = "settled at" if self._settled else "trying"
        return f"{state} {self._nbytes / (1 << 20):g} MiB (seen so far: {seen or 'nothing'})"

    def _settle(self, nbytes: int) -> Decision:
        self._settled, self._nbytes = True, nbytes
        return Decision(nbytes, self._search.look)

    def _look(self, best: float) -> Decision:
        """Begin anew if the link has changed; look ever more rarely while it does not."""
        rate = self._search.rates[self._nbytes]
        if best and not rate / _CHANGE < best < rate * _CHANGE:
            self._settled, self._nbytes = False, START
            self._search = Search(look=min(_LAST_LOOK, 2 * self._search.look))
            return Decision(START, WINDOW)
        self._search.look = min(_LAST_LOOK, 2 * self._search.look)
        return Decision(self._nbytes, self._search.look)

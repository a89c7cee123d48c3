"""How long the engine stays awake, and how politely it polls what cannot wake it."""

from __future__ import annotations

_SPIN = 0.0003
_LIVELY = 0.0003
_SHORTEST = 0.00002
_FLOWING = 0.0002
_LONGEST = 0.001


class Pace:
    """Spins shortly after data has moved, then naps, longer and longer until data moves.

    With nothing to move it stays awake for a moment while somebody waits: a core that falls asleep
    between two messages takes longer to wake than the message takes. Pure.
    """

    def __init__(self, spin: bool) -> None:
        self._spin = _SPIN if spin else 0.0
        self._moved_at = 0.0
        self._steps = -1
        self._flowing = False
        self._lively_until = 0.0

    def stir(self, now: float) -> None:
        """Note that something has happened while somebody waited."""
        if self._spin:
            self._lively_until = now + _LIVELY

    def lively(self, now: float) -> bool:
        """Stay awake?"""
        return now < self._lively_until

    def begin(self, now: float) -> None:
        """Start over: a bucket has come, nothing has moved yet."""
        self._moved_at = now
        self._steps = -1
        self._flowing = False

    def nap(self, steps: int, now: float) -> float:
        """Return the seconds to sleep before the next look; 0: look again at once."""
        if steps != self._steps:
            self._flowing = self._flowing or self._steps >= 0
            self._steps = steps
            self._moved_at = now
        idle = now - self._moved_at
        if idle < self._spin:
            return 0.0
        longest = _FLOWING if self._flowing else _LONGEST
        return min(longest, max(_SHORTEST, idle / 4))

"""How politely the engine polls a transport that cannot wake it."""

from __future__ import annotations

_SPIN = 0.0001
_SHORTEST = 0.00002
_FLOWING = 0.0002
_LONGEST = 0.001


class Pace:
    """Spins shortly after data has moved, then naps, longer and longer until data moves. Pure."""

    def __init__(self, spin: bool) -> None:
        self._spin = _SPIN if spin else 0.0
        self._moved_at = 0.0
        self._steps = -1
        self._flowing = False

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

"""A clock that a test moves."""

from __future__ import annotations

import threading


class FakeClock:
    """Call it for the time in seconds; it stands still between calls of `advance`.

    Thread safety: any thread.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on. Raises ValueError where that would go back."""
        if seconds < 0:
            raise ValueError(f"a clock never goes back, so not by {seconds} s")
        with self._lock:
            self._now += seconds

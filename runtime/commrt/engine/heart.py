"""Signs of life of the background thread, and how long others waited for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from commrt.clock import monotonic
from commrt.errors import CommError, EngineError

_STUCK = 30.0


class Heart:
    """Thread safety: `beat`, `rest` and `describe` background thread only, the rest any thread.

    `describe()` says what the thread is at, `wake()` wakes it. `blocked`: since when
    something can't begin before the callers of this process do more; `asked`: one of them waits
    for something since the thread last looked who does.
    """

    def __init__(self) -> None:
        self.describe: Callable[[], str] = lambda: "starting"
        self.wake: Callable[[], None] = lambda: None
        self.blocked: float | None = None
        self.asked = False
        self._busy_since: float | None = None
        self._lock = threading.Lock()
        self._exposed = 0.0
        self._waiters = 0
        self._dead: CommError | None = None

    def beat(self) -> None:
        """Note that the thread has come round once more and is at work."""
        self._busy_since = monotonic()

    def rest(self) -> None:
        """Note that the thread sleeps until something happens."""
        self._busy_since = None

    def die(self, error: CommError) -> None:
        """Have waiters raise `error`: this process has no engine any more."""
        self._dead = error
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise EngineError if one step has taken 30 s."""
        if self._dead is not None:
            raise self._dead
        since = self._busy_since
        if since is not None and (stuck_for := monotonic() - since) > _STUCK:
            stuck = f"the background thread has been in one call for {stuck_for:.0f} s"
            raise EngineError(f"{stuck}, moving {self.describe()}")

    def wait_begins(self) -> None:
        """Note that a caller waits."""
        with self._lock:
            self._waiters += 1
        self.ask()

    def ask(self) -> None:
        """Have the thread look who waits for what, if that matters."""
        self.asked = True
        if self.blocked is not None:
            self.wake()

    def wait_ended(self, seconds: float) -> None:
        """Note that it does no more, and add up its time."""
        with self._lock:
            self._waiters = max(0, self._waiters - 1)  # Ctrl-C may come before it was counted
            self._exposed += seconds

    def awaited(self) -> bool:
        """Does any caller wait?"""
        return self._waiters > 0

    def exposed(self) -> float:
        """Seconds that callers have waited in all."""
        return self._exposed

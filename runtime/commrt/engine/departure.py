"""What user threads ask of the engine beside operations: to end, to report an error."""

from __future__ import annotations

import threading
from collections.abc import Callable

from commrt.core.actions import Action, Stop
from commrt.core.member import Member
from commrt.errors import CommError, PeerLostError, ShutdownError

_FREEING = 2.0
"""Seconds to wait until the job negotiates again, so that nobody waits for what we have begun."""

_PATIENCE = 5.0
"""Seconds to wait for an engine that may have just ended."""


class Departure:
    """Thread safety: `ask`, `abort` and `report` any thread, the rest background only.

    `started` is called when every rank is connected.
    """

    def __init__(self, rank: int, patience: float, started: Callable[[], None]) -> None:
        self._rank = rank
        self._patience = patience
        self.started = started
        self._lock = threading.Lock()
        self._asked: tuple[str, bool] | None = None
        self._aborted: CommError | None = None
        self._until: float | None = None
        self._detained = False
        self._reports: list[tuple[int, str, str, threading.Event]] = []

    def ask(self, why: str, final: bool, wake: Callable[[], None]) -> None:
        """Ask to leave: after what is open, or at once if `final`."""
        with self._lock:
            if self._asked is None:
                self._asked = (why, final)
        wake()

    def abort(self, error: CommError, wake: Callable[[], None]) -> None:
        """End the engine with an error, now."""
        with self._lock:
            self._aborted = self._aborted or error
        wake()

    def report(self, set_id: int, name: str, text: str, wake: Callable[[], None]) -> None:
        """Fail an operation on every rank with this text; return when it is on its way."""
        taken = threading.Event()
        with self._lock:
            self._reports.append((set_id, name, text, taken))
        wake()
        taken.wait(_PATIENCE)

    def actions(self, member: Member, idle: bool, settled: bool, now: float) -> list[Action]:
        """Return what follows from what was asked.

        `idle`: nothing is open. `settled`: what was taken back has come to its end.
        """
        if self._aborted is not None:
            return [Stop(self._aborted, ours=not isinstance(self._aborted, PeerLostError))]
        reported: list[Action] = []
        while self._reports:
            set_id, name, text, taken = self._reports.pop(0)
            reported += member.report(set_id, name, text, now)
            taken.set()  # later submissions are drained in a later round
        if self._asked is None:
            return reported
        why, final = self._asked
        if self._until is None:
            self._until = now + (0.0 if final else self._patience)
            return reported + member.leave(why, now)
        free = member.negotiates() and settled
        if now < self._until and not (self._detained and free):
            return reported
        if not (free or self._detained):
            self._detained, self._until = True, now + _FREEING
            return reported
        text = f"rank {self._rank} has shut down ({why})"
        if not idle:
            text += f" with operations still open after {self._patience:.0f} s"
        reported += member.leave(why, now, final=True)
        return [*reported, Stop(ShutdownError(text), ours=True)]

    def asked(self) -> bool:
        """Has this rank asked to leave?"""
        return self._asked is not None

    def deadline(self) -> float | None:
        """When `actions` is next needed."""
        return self._until

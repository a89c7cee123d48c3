"""Notices what takes too long on one rank, and that the coordinator does not say why."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from commrt.core.actions import Warn
from commrt.core.wire import COORDINATOR

_SHOWN = 6
_EARLY, _LATE = 0.8, 1.5
"""Shares of the time until late ranks are named: what waits so long is told to the coordinator,
which then has said who is late."""


class Silence:
    """Times what waits. Pure.

    `hosts[r]` is where rank r runs. `warn`, `fail`: seconds after which late ranks are named, and
    what waits for them fails; `fail` 0 means never.
    """

    def __init__(self, hosts: Sequence[str], warn: float, fail: float) -> None:
        self._hosts = tuple(hosts)
        self._warn = warn
        self._early = _EARLY * min(warn, fail or inf)
        self._warned = False
        self._looked = 0.0

    def broken(self) -> None:
        """Note that it has told who is late."""
        self._warned = True

    def tick(self, since: float | None, names: Sequence[str], now: float) -> list[Warn]:
        """Return what to say if an answer was due `since` then; None: none is due."""
        if now < self.deadline(since):
            return []
        self._warned = True
        waiting = ", ".join(repr(name) for name in names[:_SHOWN])
        return [
            Warn(
                f"rank {COORDINATOR} on {self._hosts[COORDINATOR]} has not answered for "
                f"{now - (since or 0.0):.0f} s; it is stopped, or busy outside Python. "
                f"Waiting for {waiting}"
            )
        ]

    def deadline(self, since: float | None) -> float:
        """Return when `tick` is next needed."""
        if since is None:
            self._warned = False
        return inf if since is None or self._warned else since + _LATE * self._warn

    def overdue(self, since: float | None, now: float) -> bool:
        """Has something waited since then for so long that the coordinator must know?"""
        self._looked = now
        return since is not None and now >= since + self._early

    def next_look(self) -> float:
        """Return when `overdue` should next be asked."""
        return self._looked + (1 - _EARLY) / 2 * self._early

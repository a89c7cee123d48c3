"""Notices buckets that have started and do not move."""

from __future__ import annotations

from collections.abc import Sequence

from commrt.core.actions import Action, Stop, Warn
from commrt.engine.executor import Executor
from commrt.errors import StallError

_LOOK = 0.1


class TransferWatch:
    """Warns, then fails, when no byte has moved for too long. Seconds; `fail` 0 means never."""

    def __init__(self, warn: float, fail: float, hosts: Sequence[str]) -> None:
        self._warn = warn
        self._fail = fail
        self._hosts = tuple(hosts)
        self._steps = -1
        self._since = 0.0
        self._warned = False
        self._looked = 0.0

    def tick(self, executor: Executor, now: float) -> list[Action]:
        """Look at what is on the wire."""
        self._looked = now
        steps = executor.steps() if executor.busy() else -1
        if steps < 0 or steps != self._steps:
            self._steps, self._since, self._warned = steps, now, False
            return []
        waited = now - self._since
        if self._fail and waited >= self._fail:
            return [Stop(StallError(self._text(executor, waited)))]
        if waited >= self._warn and not self._warned:
            self._warned = True
            return [Warn(self._text(executor, waited))]
        return []

    def deadline(self, executor: Executor) -> float | None:
        """When `tick` is next needed: now and then while anything is on the wire."""
        return self._looked + _LOOK if executor.busy() else None

    def _text(self, executor: Executor, waited: float) -> str:
        late = sorted({rank for _, ranks in executor.late() for rank in ranks})
        who = ", ".join(f"rank {r} (on {self._hosts[r]})" for r in late) or "nobody"
        return (
            f"no data has moved for {waited:.0f} s in the transfer of {executor.current()}; "
            f"waiting for {who}. Is that process stopped?"
        )

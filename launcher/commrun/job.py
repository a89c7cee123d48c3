"""What to do as a job goes on: events in, actions out. Pure; times are seconds of one clock."""

from __future__ import annotations

import dataclasses
import enum
import signal
from dataclasses import dataclass

from commrun.environment import Seat
from commrun.events import (
    Action,
    Announce,
    Begin,
    CommandEnded,
    Dismissed,
    Event,
    MpirunEnded,
    Release,
    Reported,
    Signalled,
    SignalMpirun,
    SignalRanks,
    Tick,
    Vanished,
)
from commrun.ledger import Ended, Verdict, judge

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE})
_BY_MPIRUN = frozenset({signal.SIGTERM, signal.SIGKILL})


class Stage(enum.IntEnum):
    """How far a job has come. It only climbs; each stage from TERMINATED on is a last resort."""

    STARTING = 0
    RUNNING = 1
    TERMINATED = 2
    KILLED = 3
    LOST = 4
    RELEASED = 5
    MPIRUN_TERMINATED = 6
    MPIRUN_KILLED = 7
    ABANDONED = 8


_NEXT = {
    Stage.TERMINATED: (Stage.KILLED, 2.0),
    Stage.KILLED: (Stage.LOST, 5.0),
    Stage.RELEASED: (Stage.MPIRUN_TERMINATED, 10.0),
    Stage.MPIRUN_TERMINATED: (Stage.MPIRUN_KILLED, 2.0),
    Stage.MPIRUN_KILLED: (Stage.ABANDONED, 2.0),
}
"""Where a stage leads, and after how many seconds, if nothing else happens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many ranks there must be, and how many seconds they get."""

    np: int
    grace: float
    start_timeout: float


class Job:
    """Decides for one job. Outlives any order of events."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._begun: float | None = None
        self._sent: set[int] = set()
        self._alarm: tuple[float, Stage] | None = None
        self.stage = Stage.STARTING
        self.signum = 0
        self.seats: dict[int, Seat] = {}
        self.ends: list[Ended] = []
        self._set_alarm(now + limits.start_timeout, Stage.MPIRUN_TERMINATED)

    @property
    def begun(self) -> bool:
        """Whether all ranks were there, so that the command was started."""
        return self._begun is not None

    @property
    def deadline(self) -> float | None:
        """When a Tick is due."""
        return self._alarm[0] if self._alarm else None

    def running(self) -> list[int]:
        """Return the ranks whose command has not ended."""
        ended = {end.rank for end in self.ends}
        return [rank for rank in self.seats if rank not in ended]

    def verdict(self) -> Verdict:
        """Return the outcome so far; of a job that never began only if a signal ended it."""
        if self.signum and not self.begun:
            return Verdict(128 + self.signum, None, self.signum)
        return judge(self.ends, self.signum)

    def receive(self, event: Event, now: float) -> list[Action]:
        """Note what happened; return what follows from it. Never raises."""
        match event:
            case Reported(seat):
                return self._seat(seat, now)
            case CommandEnded(rank, code, tail, consequence):
                return self._end(rank, code, now, tail, consequence)
            case Vanished(rank):
                return self._vanish(rank, now)
            case Signalled(signum):
                return self._on_signal(signum, now)
            case Dismissed():
                self._sent |= _BY_MPIRUN
            case MpirunEnded():
                return self._on_mpirun_end(now)
            case Tick():
                pass
        if self._alarm is not None and now >= self._alarm[0]:
            return self._climb(self._alarm[1], now)
        return []

    def _seat(self, seat: Seat, now: float) -> list[Action]:
        if self.stage != Stage.STARTING or not 0 <= seat.rank < self._limits.np:
            return []
        self.seats[seat.rank] = seat
        if len(self.seats) < self._limits.np:
            return []
        self._begun = now
        self._alarm = None
        self.stage = Stage.RUNNING
        return [Begin()]

    def _end(
        self,
        rank: int,
        code: int | None,
        now: float,
        tail: tuple[str, ...] = (),
        consequence: str = "",
    ) -> list[Action]:
        if self._begun is None or rank not in self.running():
            return []
        end = Ended(rank, self.seats[rank].host, code, now - self._begun, tail, consequence)
        if self._stopped(end):
            end = dataclasses.replace(end, stopped=True)
        self.ends.append(end)
        if end.failed:
            self._set_alarm(now + self._limits.grace, Stage.TERMINATED)
        if self.running():
            return [Announce(end)]
        return [Announce(end), *self._climb(Stage.RELEASED, now)]

    def _stopped(self, end: Ended) -> bool:
        if self.stage >= Stage.TERMINATED or self.signum:
            return True
        return signal.SIGKILL in self._sent if end.code is None else end.status - 128 in self._sent

    def _vanish(self, rank: int, now: float) -> list[Action]:
        if self._begun is None:
            self.seats.pop(rank, None)
            return []
        return self._end(rank, None, now)

    def _on_signal(self, signum: int, now: float) -> list[Action]:
        running = Stage.RUNNING <= self.stage < Stage.RELEASED
        if signum not in _ENDING:
            self._sent.add(signum)
            return [SignalRanks(signum)] if running else []
        again = bool(self.signum)
        self.signum = self.signum or signum
        if not running:
            killed = self.stage >= Stage.MPIRUN_TERMINATED
            return self._climb(Stage.MPIRUN_KILLED if killed else Stage.MPIRUN_TERMINATED, now)
        if again:
            return self._climb(Stage.KILLED, now)
        if signum == signal.SIGPIPE:
            return self._climb(Stage.TERMINATED, now)
        return [SignalRanks(signum)]

    def _on_mpirun_end(self, now: float) -> list[Action]:
        if self._begun is None:
            self.stage = max(self.stage, Stage.RELEASED)
        else:  # its shims notice and end too
            self._set_alarm(now + _NEXT[Stage.KILLED][1], Stage.LOST)
        return []

    def _set_alarm(self, at: float, stage: Stage) -> None:
        """Climb to `stage` at that time, unless the job has come as far or climbs sooner."""
        if stage > self.stage and (self._alarm is None or at < self._alarm[0]):
            self._alarm = (at, stage)

    def _climb(self, stage: Stage, now: float) -> list[Action]:
        if stage <= self.stage:
            return []
        self.stage = stage
        self._alarm = None
        if stage in _NEXT:
            after, wait = _NEXT[stage]
            self._set_alarm(now + wait, after)
        match stage:
            case Stage.TERMINATED:
                return [SignalRanks(signal.SIGTERM)]
            case Stage.KILLED:
                return [SignalRanks(signal.SIGKILL)]
            case Stage.LOST:
                return [action for rank in self.running() for action in self._end(rank, None, now)]
            case Stage.RELEASED:
                return [Release()]
            case Stage.MPIRUN_TERMINATED:
                return [SignalMpirun(signal.SIGTERM)]
            case Stage.MPIRUN_KILLED:
                return [SignalMpirun(signal.SIGKILL)]
        return []

"""What can happen to a job, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass

from commrun.environment import Seat
from commrun.ledger import Ended


@dataclass(frozen=True, slots=True)
class Reported:
    """A shim is there and waits for its command."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """A rank's command ended, with an exit status or minus a signal."""

    rank: int
    code: int
    tail: tuple[str, ...]
    consequence: str


@dataclass(frozen=True, slots=True)
class Dismissed:
    """mpirun has told this rank's shim to end."""

    rank: int


@dataclass(frozen=True, slots=True)
class Vanished:
    """The connection to this rank's shim is gone."""

    rank: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal reached commrun; SIGPIPE if nobody reads its output any more."""

    signum: int


@dataclass(frozen=True, slots=True)
class MpirunEnded:
    """mpirun is gone."""

    status: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Reported | CommandEnded | Dismissed | Vanished | Signalled | MpirunEnded | Tick


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the command on all ranks."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the other ranks of this end."""

    end: Ended


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Signal the process groups of all ranks that have not ended."""

    signum: int


@dataclass(frozen=True, slots=True)
class Release:
    """Let the shims go."""


@dataclass(frozen=True, slots=True)
class SignalMpirun:
    """Signal mpirun itself."""

    signum: int


Action = Begin | Announce | SignalRanks | Release | SignalMpirun

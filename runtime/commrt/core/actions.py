"""What cores decide. `engine/cycle.py` carries it out and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from commrt.core.wire import Message
from commrt.errors import CommError
from commrt.types import Bucket


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message to a rank, this one included."""

    rank: int
    message: Message


@dataclass(frozen=True, slots=True)
class Execute:
    """Move a bucket; buckets start in the order in which they are given."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take a bucket back that not all members have begun, as they all do: this one may not have."""

    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the user, once."""

    text: str


@dataclass(frozen=True, slots=True)
class Inform:
    """Note something for those who want to know."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail one operation; the runtime goes on."""

    set_id: int
    name: str
    error: CommError


@dataclass(frozen=True, slots=True)
class Stop:
    """End the runtime. `error` is None after an orderly goodbye; `ours`: we ended it ourselves."""

    error: CommError | None
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """Every rank is connected: `init()` may return."""


@dataclass(frozen=True, slots=True)
class CountAnew:
    """Count unnamed operations from 0 again, under other names."""


@dataclass(frozen=True, slots=True)
class PeersLeft:
    """These ranks have said goodbye; do not take their end for a loss."""

    ranks: tuple[int, ...]


Action = (
    SendControl | Execute | Revoke | Warn | Inform | Fail | Stop | Started | PeersLeft | CountAnew
)

"""The two interfaces of the control plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a rank."""

    rank: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The kernel or the launcher says that a rank has ended or its connection is closed.

    The launcher knows the host as well; otherwise it is ''. `hung_up`: all that is known is that a
    connection was closed, which who loses another rank does as well.
    """

    rank: int
    why: str
    host: str = ""
    hung_up: bool = False


Event = Received | PeerGone


class ControlLink(Protocol):
    """Ordered messages between rank 0 and every rank. It is where the engine sleeps.

    Thread safety: `wake` any thread; the rest background thread only.
    """

    def send(self, rank: int, data: bytes) -> None:
        """Queue a message; never blocks. A rank that is gone is reported by `poll`."""

    def poll(self, timeout: float | None) -> list[Event]:
        """Return what has come; sleep at most `timeout` seconds (None: for ever) if nothing has.

        Returns early, perhaps with nothing, after `wake`.
        """

    def wake(self) -> None:
        """Make a sleeping or the next `poll` return. Never blocks."""

    def watch(self, *fds: int) -> None:
        """Let `poll` return when one of these descriptors is readable."""

    def inherited(self) -> list[int]:
        """Return the descriptors by which a forked child would keep our connections open."""

    def close(self, linger: float) -> None:
        """Deliver what is queued for at most `linger` seconds, then close. Idempotent."""


class Rendezvous(Protocol):
    """Brings one blob of every rank to every rank, before there is a link."""

    def exchange(self, blob: bytes) -> list[bytes]:
        """Return the blobs of all ranks, in order. Blocks; raises InitError or PeerLostError."""

"""The interface of a transport, and the point-to-point wire most of them stand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commrt.kernels.reduction import Reduction

Flat = npt.NDArray[Any]
"""A one-dimensional C-contiguous array of any supported dtype."""


@dataclass(frozen=True, slots=True)
class Members:
    """A process set as one of its members sees it: world ranks in order, and our position."""

    ranks: tuple[int, ...]
    index: int


@dataclass(frozen=True, slots=True)
class Channel:
    """Sets one operation's messages apart from all others that may be in flight.

    `number` is the bucket's number in the job's order, which is never given twice, `stage` the step
    of its conversation.
    """

    generation: int
    number: int
    stage: int


WINDOW = 512
"""Buckets after which messages may look alike again: two in flight must lie closer together."""


class Work(Protocol):
    """A collective under way. Thread safety: background thread only."""

    def progress(self) -> bool:
        """Move on without blocking; True when the result is there and our sends have drained.

        Nothing is sent before the first call. Raises PeerLostError.
        """

    def steps(self) -> int:
        """A number that has grown if `progress` got anywhere. If not, only others can help."""

    def cancel(self) -> None:
        """Take it back, on every member, whether it has started or not.

        Then `progress` throws away what arrives until the channel is clean and returns True.
        Inputs are as submitted if some member had not started.
        """

    def waiting_for(self) -> tuple[int, ...]:
        """World ranks whose data is missing now."""


class Transport(Protocol):
    """Moves flat arrays between the members of a set. Every member makes the same calls.

    Each call returns at once. Callers keep arrays as they are until the work is done. No byte of
    a reduction's `source` or `out` is written before every member's data has arrived.
    Thread safety: background thread only.
    """

    revocable: bool
    wide: bool
    """Are 16-bit floats joined in float32 and rounded once?"""
    swift: bool
    """May data come sooner than a sleeper wakes? Then it pays to look again for a moment first."""

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros, shape (nbytes,), where data moves best. Thread safety: any thread."""

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable when data may have moved; none: look again and again."""

    def sleep(self, asleep: bool) -> bool:
        """Say that we are about to sleep, or have woken up; must work be moved on once more?"""

    def arm(self) -> None:
        """Make a descriptor readable once what is awaited now can move. Right before sleeping."""

    def after_fork(self) -> None:
        """In a child: keep nothing open, and keep the parent's memory as it is."""

    def allreduce(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        reduction: Reduction,
    ) -> Work:
        """Join `source`, shape (n,), of all members in `out`, which may be the same array."""

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> Work:
        """Join `source`, shape (sum(counts),); member r gets the r-th `counts[r]` elements.

        `out` does not overlap `source`.
        """

    def allgather(
        self, members: Members, channel: Channel, source: Flat, out: Flat, counts: Sequence[int]
    ) -> Work:
        """Gather `counts[r]` elements of each member r in `out`, in order."""

    def alltoallv(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        sent: Sequence[int],
        received: Sequence[int],
    ) -> Work:
        """Send `sent[r]` elements to member r and get `received[r]` of it, in order."""

    def broadcast(
        self, members: Members, channel: Channel, source: Flat, out: Flat, root: int
    ) -> Work:
        """Copy `source` of member number `root` to everyone's `out`."""

    def close(self, orderly: bool) -> None:
        """Give everything back; not `orderly`: touch no communicator, peers are lost."""


class OwnMemory:
    """What a transport says whose memory is its process's own."""

    wide = False

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros; see `Transport`."""
        return np.zeros(nbytes, np.uint8)


class Unwakeable:
    """What a transport or a wire says that wakes nobody: it is looked at again and again."""

    swift = True

    def descriptors(self) -> tuple[int, ...]:
        """Return none."""
        return ()

    def arm(self) -> None:
        """Do nothing."""

    def sleep(self, asleep: bool) -> bool:
        """Do nothing."""
        return False

    def after_fork(self) -> None:
        """Do nothing."""


Test = Callable[[], bool]
"""Is the message through? Never blocks."""


class Incoming(Protocol):
    """A message that was asked for."""

    def test(self) -> bool:
        """Has it arrived? Never blocks."""

    def cancel(self) -> None:
        """Take the request back: the message was never sent."""


class Wire(Protocol):
    """Messages between world ranks, in order per (peer, tag). Background thread only."""

    swift: bool
    """See `Transport`."""

    def send(self, peer: int, tag: int, data: Flat) -> Test:
        """Start sending `data`."""

    def receive(self, peer: int, tag: int, data: Flat) -> Incoming:
        """Start receiving into `data`, whose size is the message's."""

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable, once armed; none: test messages again and again."""

    def arm(self) -> None:
        """Make a descriptor readable once a message moves that was last tested in vain."""

    def sleep(self, asleep: bool) -> bool:
        """See `Transport`; once awake, nobody needs to be woken."""

    def after_fork(self) -> None:
        """In a child: keep nothing open."""

    def close(self, orderly: bool) -> None:
        """Give the wire back; not `orderly`: touch no communicator."""


def as_bytes(data: Flat) -> npt.NDArray[np.uint8]:
    """View a flat array as bytes."""
    return data.view(np.uint8)

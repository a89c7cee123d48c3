"""Empties the channel of a cancelled program, so that the next operation finds it clean."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.core.algorithms import Program
from commrt.transports.base import Incoming, Members, Test, Wire


class Drain:
    """Peers tell each other how much they had sent; that much is received and thrown away.

    Then the receiver says so: until then it may have asked for more, and would take the next
    operation's messages for this one's. Every member makes one, whether it had started or not.
    """

    def __init__(
        self,
        wire: Wire,
        tag: int,
        members: Members,
        program: Program,
        sends: tuple[int, list[Test]],
        receives: tuple[int, list[Incoming]],
        dtype: np.dtype[Any],
    ) -> None:
        posted, self._sends = sends
        finished, open_receives = receives
        self._counts = []
        for peer in sorted({send.peer for send in program.sends}):
            count = sum(send.peer == peer for send in program.sends[:posted])
            message = np.array([count], np.int64)
            self._counts.append((message, wire.send(members.ranks[peer], tag + 1, message)))
        self._peers = []
        for peer in sorted({receive.peer for receive in program.receives}):
            mine = [i for i, receive in enumerate(program.receives) if receive.peer == peer]
            sizes = [program.receives[i].hi - program.receives[i].lo for i in mine]
            done = sum(i < finished for i in mine)
            started = [
                open_receives[i - finished]
                for i in mine
                if finished <= i < finished + len(open_receives)
            ]
            source = PeerSource(wire, members.ranks[peer], tag, dtype)
            self._peers.append(PeerDrain(source, sizes, done, started))
        self._thanks = []  # asked for after the counts, in the order in which they are sent
        for peer in sorted({send.peer for send in program.sends}):
            self._thanks.append(wire.receive(members.ranks[peer], tag + 1, np.zeros(1, np.int64)))

    def progress(self) -> bool:
        """Throw away what arrives; True when nothing more can."""
        clean = [peer.progress() for peer in self._peers]
        self._sends = [test for test in self._sends if not test()]
        self._counts = [(message, test) for message, test in self._counts if not test()]
        self._thanks = [thanks for thanks in self._thanks if not thanks.test()]
        return all(clean) and not self._sends and not self._counts and not self._thanks


class PeerSource:
    """One peer's end of the channel."""

    def __init__(self, wire: Wire, rank: int, tag: int, dtype: np.dtype[Any]) -> None:
        self._wire = wire
        self._rank = rank
        self._tag = tag
        self._dtype = dtype

    def count(self, into: np.ndarray[Any, Any]) -> Incoming:
        """Receive how many messages the peer had sent."""
        return self._wire.receive(self._rank, self._tag + 1, into)

    def thank(self) -> Test:
        """Tell the peer that nothing more is asked of it."""
        return self._wire.send(self._rank, self._tag + 1, np.zeros(1, np.int64))

    def message(self, n: int) -> Incoming:
        """Receive a message of n elements to throw it away."""
        return self._wire.receive(self._rank, self._tag, np.empty(n, self._dtype))


class PeerDrain:
    """What one peer had sent before it cancelled: `done` have arrived, `started` were asked for."""

    def __init__(
        self, source: PeerSource, sizes: list[int], done: int, started: list[Incoming]
    ) -> None:
        self._source = source
        self._sizes = sizes
        self._done = done
        self._open = started
        self._count = np.zeros(1, np.int64)
        self._told: Incoming | None = source.count(self._count)
        self._thanked: Test | None = None

    def progress(self) -> bool:
        """Has everything that the peer had sent arrived, and does it know?"""
        if self._told is not None:
            if not self._told.test():
                return False
            self._told = None
            coming = int(self._count[0]) - self._done
            for incoming in self._open[coming:]:
                incoming.cancel()
            self._open = self._open[:coming]
            first = self._done + len(self._open)
            self._open += [
                self._source.message(n) for n in self._sizes[first : self._done + coming]
            ]
        self._open = [incoming for incoming in self._open if not incoming.test()]
        if not self._open and self._thanked is None:
            self._thanked = self._source.thank()
        return self._thanked is not None and self._thanked()

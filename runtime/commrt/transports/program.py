"""Runs a program of sends and receives over a wire. The transport contract is kept here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from commrt.core.algorithms import Program, Receive, Send
from commrt.kernels.reduction import Reduction
from commrt.transports.arrays import Arrays, Scratch
from commrt.transports.base import Flat, Incoming, Members, Test, Wire
from commrt.transports.drain import Drain

_AHEAD = 4
"""Receives posted ahead; twice as many sends may be under way."""

_BUDGET = 8
"""Messages handled in one call of `progress`, so that the engine gets to its inbox."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a program's messages go: `tag` and `tag + 1` are its own."""

    wire: Wire
    tag: int
    members: Members


class ProgramWork:
    """A program under way; see `Work`. Partial sums stay in scratch, final values are output."""

    def __init__(
        self,
        route: Route,
        program: Program,
        source: Flat,
        out: Flat,
        scratch: Scratch,
        reduction: Reduction,
    ) -> None:
        self._route = route
        self._program = program
        self._arrays = Arrays(source, out, reduction, program, scratch)
        self._outbox = Outbox(program.sends)
        self._inbox = Inbox(program.receives)
        self._drain: Drain | None = None

    def progress(self) -> bool:
        """Move on; see `Work`."""
        if self._drain is not None:
            return self._drain.progress()
        copied = self._arrays.copy()
        for _ in range(_BUDGET):
            posted = self._post_receives()
            sent = self._post_sends()
            if not (self._take_in() or posted or sent):
                break
        self._reap()
        return copied and self._inbox.done() and self._outbox.done()

    def steps(self) -> int:
        """Messages received and sent, and slices copied; see `Work`."""
        return self._inbox.finished + self._outbox.finished() + self._arrays.copied

    def cancel(self) -> None:
        """Take it back; see `Work`."""
        if self._drain is None:
            self._drain = Drain(
                self._route.wire,
                self._route.tag,
                self._route.members,
                self._program,
                self._outbox.take_back(),
                self._inbox.take_back(),
                self._arrays.dtype,
            )

    def waiting_for(self) -> tuple[int, ...]:
        """World ranks whose data is missing now."""
        peers = self._inbox.peers() or self._outbox.peers()
        return tuple(sorted({self._route.members.ranks[p] for p in peers}))

    def _post_receives(self) -> bool:
        moved = False
        inbox = self._inbox
        while (receive := inbox.next()) is not None:
            if receive.add is None and not self._unguarded(receive):
                break
            target = self._arrays.landing(inbox.posted)
            inbox.post(self._route.wire.receive(self._peer(receive), self._route.tag, target))
            moved = True
        return moved

    def _post_sends(self) -> bool:
        moved = False
        outbox = self._outbox
        while (send := outbox.next()) is not None:
            if send.value >= self._inbox.finished:
                break
            data = self._arrays.value(send.value, send.lo, send.hi)
            outbox.post(self._route.wire.send(self._peer(send), self._route.tag, data))
            moved = True
        return moved

    def _take_in(self) -> bool:
        due = self._inbox.due()
        if due is None or (due.add is not None and not self._unguarded(due)):
            return False
        index = self._inbox.take()
        if index is None:
            return False
        self._arrays.combine(index)
        return True

    def _unguarded(self, receive: Receive) -> bool:
        """May the output be written? Not while our own input is still read from there."""
        if self._outbox.drained(receive.guards):
            return True
        self._reap()
        return self._outbox.drained(receive.guards)

    def _reap(self) -> None:
        for send in self._outbox.reap():
            self._arrays.release(send.value)

    def _peer(self, message: Send | Receive) -> int:
        return self._route.members.ranks[message.peer]


class Outbox:
    """Sends in program order."""

    def __init__(self, sends: tuple[Send, ...]) -> None:
        self._sends = sends
        self._posted = 0
        self._open: dict[int, Test] = {}

    def next(self) -> Send | None:
        """Return the next send, if there is room for it on the wire."""
        if self._posted == len(self._sends) or len(self._open) >= 2 * _AHEAD:
            return None
        return self._sends[self._posted]

    def post(self, test: Test) -> None:
        """Note that the next send has started."""
        self._open[self._posted] = test
        self._posted += 1

    def drained(self, numbers: tuple[int, ...]) -> bool:
        """Have these sends gone out and been reaped?"""
        return all(n < self._posted and n not in self._open for n in numbers)

    def reap(self) -> list[Send]:
        """Forget the sends that have drained and return them."""
        gone = [number for number, test in self._open.items() if test()]
        for number in gone:
            del self._open[number]
        return [self._sends[number] for number in gone]

    def done(self) -> bool:
        """Has everything been sent and drained?"""
        return self._posted == len(self._sends) and not self._open

    def finished(self) -> int:
        """Sends that have drained."""
        return self._posted - len(self._open)

    def peers(self) -> set[int]:
        """Set positions that have not taken what we sent."""
        return {self._sends[number].peer for number in self._open}

    def take_back(self) -> tuple[int, list[Test]]:
        """Return how many sends have started, and those that have not drained."""
        return self._posted, list(self._open.values())


class Inbox:
    """Receives in program order: `posted`, and of these `finished`."""

    def __init__(self, receives: tuple[Receive, ...]) -> None:
        self._receives = receives
        self.posted = 0
        self.finished = 0
        self._open: deque[Incoming] = deque()

    def next(self) -> Receive | None:
        """Return the next receive, if it is due."""
        if self.posted == len(self._receives) or len(self._open) >= _AHEAD:
            return None
        return self._receives[self.posted]

    def post(self, incoming: Incoming) -> None:
        """Note that the next receive has started."""
        self._open.append(incoming)
        self.posted += 1

    def due(self) -> Receive | None:
        """Return the oldest receive that is open."""
        return self._receives[self.finished] if self._open else None

    def take(self) -> int | None:
        """Return the number of the oldest receive if it has arrived."""
        if not self._open or not self._open[0].test():
            return None
        self._open.popleft()
        self.finished += 1
        return self.finished - 1

    def done(self) -> bool:
        """Has everything arrived?"""
        return self.finished == len(self._receives)

    def peers(self) -> set[int]:
        """Set positions whose data is due next."""
        return set() if self.done() else {self._receives[self.finished].peer}

    def take_back(self) -> tuple[int, list[Incoming]]:
        """Return how many receives have finished, and those that are open, in order."""
        return self.finished, list(self._open)

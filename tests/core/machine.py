"""Runs the programs of all ranks of a collective, one action at a time, in any order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from commrt.core.algorithms import INPUT, Program

Array = npt.NDArray[Any]


class Rank:
    """One rank's memory and how far its program has come. One send and one receive at a time.

    The first axis of `source` and `out`, perhaps the same array, is that of the elements.
    """

    def __init__(self, number: int, program: Program, source: Array, out: Array) -> None:
        self.number = number
        self.program = program
        self.source = source
        self.out = out
        self.values: dict[int, Array] = {}
        self.sent = 0
        self.posted = False
        self.received = 0
        self.landed: Array | None = None
        for copy in program.copies:
            out[copy.to : copy.to + copy.hi - copy.lo] = source[copy.lo : copy.hi]

    def can_post(self) -> bool:
        sends = self.program.sends
        if self.posted or self.sent == len(sends):
            return False
        return sends[self.sent].value < self.received

    def outgoing(self) -> Array:
        """What the posted send holds now: read late, as a slow wire would."""
        send = self.program.sends[self.sent]
        if send.value == INPUT:
            return self.source[send.lo : send.hi].copy()
        receive = self.program.receives[send.value]
        assert (receive.lo, receive.hi) == (send.lo, send.hi)
        return self.values[send.value].copy()

    def waits_for(self) -> int | None:
        """The peer whose message can be taken in now: into scratch, or where it may be written."""
        if self.received == len(self.program.receives) or self.landed is not None:
            return None
        receive = self.program.receives[self.received]
        return receive.peer if receive.add is not None or self.may_write() else None

    def may_write(self) -> bool:
        guards = self.program.receives[self.received].guards
        return all(guard < self.sent for guard in guards)

    def land(self, arrived: Array) -> None:
        receive = self.program.receives[self.received]
        assert len(arrived) == receive.hi - receive.lo > 0
        self.landed = arrived

    def combine(self) -> None:
        index, receive = self.received, self.program.receives[self.received]
        arrived, self.landed = self.landed, None
        assert arrived is not None
        self.received += 1
        result = arrived
        if receive.add is not None:
            if receive.add == INPUT:
                other = self.source[receive.lo : receive.hi]
            else:
                earlier = self.program.receives[receive.add]
                assert receive.add < index
                assert (earlier.lo, earlier.hi) == (receive.lo, receive.hi)
                other = self.values[receive.add]
            result = arrived + other if receive.arrived_first else other + arrived
        if receive.final:
            origin = self.program.origin
            self.out[receive.lo - origin : receive.hi - origin] = result
            result = self.out[receive.lo - origin : receive.hi - origin]
        self.values[index] = result

    def done(self) -> bool:
        program = self.program
        return self.sent == len(program.sends) and self.received == len(program.receives)


class Machine:
    """Sends drain only when their receiver takes them in, so every message is a rendezvous."""

    def __init__(
        self, programs: Sequence[Program], sources: Sequence[Array], outs: Sequence[Array]
    ) -> None:
        parts = zip(programs, sources, outs, strict=True)
        self.ranks = [Rank(r, *part) for r, part in enumerate(parts)]
        self._offers: dict[tuple[int, int], deque[Rank]] = {}

    def run(self, rng: random.Random) -> None:
        """Let ranks act in random order until nothing can happen any more."""
        while actions := [(r, what) for r in self.ranks for what in self._able(r)]:
            rank, what = rng.choice(actions)
            if what == "post":
                rank.posted = True
                to = rank.program.sends[rank.sent].peer
                self._offers.setdefault((rank.number, to), deque()).append(rank)
            elif what == "combine":
                rank.combine()
            else:
                peer = rank.waits_for()
                assert peer is not None
                sender = self._offers[peer, rank.number].popleft()
                rank.land(sender.outgoing())
                sender.posted = False
                sender.sent += 1

    def finished(self) -> bool:
        """Have all ranks come to their end?"""
        return all(rank.done() for rank in self.ranks)

    def _able(self, rank: Rank) -> list[str]:
        able = ["post"] if rank.can_post() else []
        peer = rank.waits_for()
        if peer is not None and self._offers.get((peer, rank.number)):
            able.append("land")
        if rank.landed is not None and rank.may_write():
            able.append("combine")
        return able

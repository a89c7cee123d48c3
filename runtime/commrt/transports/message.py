"""A transport that runs the algorithms of `core/algorithms.py` over a wire."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from commrt.core import algorithms
from commrt.core.algorithms import Program
from commrt.core.tuning import SEGMENT, SMALL
from commrt.kernels.reduction import Reduction
from commrt.transports.arrays import Scratch
from commrt.transports.base import WINDOW, Channel, Flat, Members, OwnMemory, Wire, Work
from commrt.transports.program import ProgramWork, Route
from commrt.types import ReduceOp

_PROGRAMS = 64
"""Programs kept: a training step asks for the same ones again and again."""

_STAGES = 16
_TAGS = WINDOW * _STAGES  # MPI promises 32767, and there are two for each


class MessageTransport(OwnMemory):
    """See `Transport`. A set costs no communicator: its members use world ranks and tags.

    Allreduces of up to `small` bytes go by recursive doubling, others by rings whose segments have
    `segment` bytes.
    """

    revocable = True

    def __init__(self, wire: Wire, small: int = SMALL, segment: int = SEGMENT) -> None:
        self._wire = wire
        self.swift = wire.swift
        self._small = small
        self._segment = segment
        self._scratch = Scratch(segment)
        self._doubling = lru_cache(_PROGRAMS)(algorithms.doubling_allreduce)
        self._ring = lru_cache(_PROGRAMS)(algorithms.ring_allreduce)

    def allreduce(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        reduction: Reduction,
    ) -> Work:
        """Recursive doubling for small vectors, a pipelined ring for others."""
        size, n = len(members.ranks), source.size
        if source.nbytes <= self._small or n < size:
            program = self._doubling(members.index, size, n)
        else:
            program = self._ring(members.index, size, n, self._elements(source))
        return self._start(members, channel, program, source, out, reduction)

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> Work:
        """Pass partial sums round the ring to their owners."""
        program = algorithms.ring_reduce_scatter(
            members.index, len(members.ranks), counts, self._elements(source)
        )
        return self._start(members, channel, program, source, out, reduction)

    def allgather(
        self, members: Members, channel: Channel, source: Flat, out: Flat, counts: Sequence[int]
    ) -> Work:
        """Pass blocks round the ring."""
        program = algorithms.ring_allgather(
            members.index, len(members.ranks), counts, self._elements(source)
        )
        return self._start(members, channel, program, source, out, _MOVE)

    def alltoallv(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        sent: Sequence[int],
        received: Sequence[int],
    ) -> Work:
        """Exchange directly with every member."""
        program = algorithms.alltoallv(members.index, len(members.ranks), sent, received)
        return self._start(members, channel, program, source, out, _MOVE)

    def broadcast(
        self, members: Members, channel: Channel, source: Flat, out: Flat, root: int
    ) -> Work:
        """Send segments down a binomial tree."""
        program = algorithms.tree_broadcast(
            members.index, len(members.ranks), root, source.size, self._elements(source)
        )
        return self._start(members, channel, program, source, out, _MOVE)

    def descriptors(self) -> tuple[int, ...]:
        """Return the wire's."""
        return self._wire.descriptors()

    def sleep(self, asleep: bool) -> bool:
        """Tell the wire."""
        return self._wire.sleep(asleep)

    def arm(self) -> None:
        """Arm the wire."""
        self._wire.arm()

    def after_fork(self) -> None:
        """Leave the wire to the parent."""
        self._wire.after_fork()

    def close(self, orderly: bool) -> None:
        """Give the wire back."""
        self._wire.close(orderly)

    def _start(
        self,
        members: Members,
        channel: Channel,
        program: Program,
        source: Flat,
        out: Flat,
        reduction: Reduction,
    ) -> ProgramWork:
        route = Route(self._wire, _tag(channel), members)
        return ProgramWork(route, program, source, out, self._scratch, reduction)

    def _elements(self, source: Flat) -> int:
        return max(1, self._segment // source.itemsize)


def _tag(channel: Channel) -> int:
    """Return an even tag that no other operation in flight has.

    Stages of one bucket come one after the other, so they may take turns.
    """
    return 2 * ((channel.number * _STAGES + channel.stage % _STAGES) % _TAGS)


_MOVE = Reduction(ReduceOp.SUM)
"""For what is only moved."""

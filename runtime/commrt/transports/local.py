"""The transport of one rank: every collective is the identity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Flat, Members, OwnMemory, Unwakeable

_SLICE = 4 << 20
"""Bytes copied in one call: below 2 ms."""


class LocalWork:
    """Work that is done when it first makes progress."""

    def __init__(self, source: Flat, out: Flat, reduction: Reduction | None) -> None:
        self._source = source
        self._out = out
        self._reduction = reduction
        self._place = 0

    def progress(self) -> bool:
        """Copy the next slice."""
        if self._place < self._source.size:
            lo = self._place
            hi = self._place = min(self._source.size, lo + max(1, _SLICE // self._source.itemsize))
            source, out = self._source[lo:hi], self._out[lo:hi]
            if source.ctypes.data != out.ctypes.data:
                np.copyto(out, source)
            if self._reduction is not None:
                self._reduction.finish(out)
        return self._place >= self._source.size

    def steps(self) -> int:
        """Elements copied so far."""
        return self._place

    def cancel(self) -> None:
        """Leave the output as it is."""
        self._place = self._source.size

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody."""
        return ()


class LocalTransport(OwnMemory, Unwakeable):
    """See `Transport`; sets of one member only."""

    revocable = True

    def allreduce(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        reduction: Reduction,
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, reduction)

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, reduction)

    def allgather(
        self, members: Members, channel: Channel, source: Flat, out: Flat, counts: Sequence[int]
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, None)

    def alltoallv(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        sent: Sequence[int],
        received: Sequence[int],
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, None)

    def broadcast(
        self, members: Members, channel: Channel, source: Flat, out: Flat, root: int
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, None)

    def close(self, orderly: bool) -> None:
        """Do nothing."""

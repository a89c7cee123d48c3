"""The transport of one rank: every collective is the identity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from commrt.transports.base import Channel, Flat, Members


class LocalWork:
    """Work that is done when it first makes progress."""

    def __init__(self, source: Flat, out: Flat, finish: Callable[[Flat], None] | None) -> None:
        self._source = source
        self._out = out
        self._finish = finish
        self._over = False

    def progress(self) -> bool:
        """Copy, once."""
        if not self._over:
            self._over = True
            if self._source.ctypes.data != self._out.ctypes.data:
                np.copyto(self._out, self._source)
            if self._finish is not None:
                self._finish(self._out)
        return True

    def steps(self) -> int:
        """Nothing travels."""
        return 0

    def cancel(self) -> None:
        """Leave the output as it is."""
        self._over = True

    def waiting_for(self) -> tuple[int, ...]:
        """Nobody."""
        return ()


class LocalTransport:
    """See `Transport`; sets of one member only."""

    revocable = True

    def allreduce(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        finish: Callable[[Flat], None] | None = None,
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, finish)

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

"""A transport whose reductions move nothing: to measure what all the rest costs."""

from __future__ import annotations

from collections.abc import Sequence

from commrt.transports.base import Channel, Flat, Members, Reduction
from commrt.transports.local import LocalWork
from commrt.transports.message import MessageTransport


class IdleTransport(MessageTransport):
    """See `Transport`. Every rank gets its own values back as if they were the others' too."""

    def allreduce(  # type: ignore[override]
        self, members: Members, channel: Channel, source: Flat, out: Flat, reduction: Reduction
    ) -> LocalWork:
        """Copy."""
        return LocalWork(source, out, reduction.finish)

    def reduce_scatter(  # type: ignore[override]
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> LocalWork:
        """Copy this rank's share."""
        start = sum(counts[: members.index])
        return LocalWork(source[start : start + out.size], out, reduction.finish)

"""A transport whose reductions move nothing: to measure what all the rest costs."""

from __future__ import annotations

from collections.abc import Sequence

from commrt.core.chunks import chunk_bounds
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Flat, Members, Wire, Work
from commrt.transports.local import LocalTransport
from commrt.transports.message import MessageTransport


class IdleTransport(MessageTransport):
    """See `Transport`. Every rank gets its own values back as if they were the others' too."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._local = LocalTransport()

    def allreduce(
        self, members: Members, channel: Channel, source: Flat, out: Flat, reduction: Reduction
    ) -> Work:
        """Copy; a rank finishes only the share that it would own in a ring."""
        if source is out:
            lo, hi = chunk_bounds(out.size, len(members.ranks))[members.index]
            source = out = out[lo:hi]
        return self._local.allreduce(members, channel, source, out, reduction)

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> Work:
        """Copy this rank's share."""
        start = sum(counts[: members.index])
        share = source[start : start + out.size]
        return self._local.reduce_scatter(members, channel, share, out, counts, reduction)

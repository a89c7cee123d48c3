"""The transport of several ranks on each of several hosts: inside the hosts first, then across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from commrt.core.chunks import chunk_bounds
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Flat, Members, Transport, Work

_SETS = 64  # whose layouts are kept

PIECE = 4 << 20
"""Bytes of a piece, at least."""

_PIECES = 8
"""Pieces at most."""

_DEPTH = 2
"""Pieces under way at once: one is joined and gathered in the host while the other travels."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A set by hosts. `near`: its members on our host, which is number `home` of `hosts`.

    A lane has one member of each host; there are as many as the host with the fewest has. `lane` is
    ours, None if we are beyond.
    """

    hosts: tuple[tuple[int, ...], ...]
    home: int
    near: Members
    lanes: int
    lane: Members | None

    def heads(self, root: int) -> tuple[int, ...]:
        """Return one rank of each host: `root` of its own, the first of the others."""
        return tuple(root if root in host else host[0] for host in self.hosts)


class Stages:
    """Works in order as one, `at_once` under way; see `Work`. All members have a part of each."""

    def __init__(self, works: Sequence[Work], at_once: int = 1) -> None:
        self._works = works
        self._at_once = at_once
        self._at = 0
        self._cancelled = False

    def progress(self) -> bool:
        """Move on; see `Work`."""
        if self._cancelled:
            clean = [work.progress() for work in self._works]  # each of them
            return all(clean)
        while self._at < len(self._works):
            first, *others = self._works[self._at : self._at + self._at_once]
            ended = first.progress()
            for work in others:
                work.progress()
            if not ended:
                return False
            self._at += 1
        return True

    def steps(self) -> int:
        """See `Work`."""
        return self._at + sum(work.steps() for work in self._works)

    def cancel(self) -> None:
        """Take back all of them: others may be in any."""
        self._cancelled = True
        for work in self._works:
            work.cancel()

    def waiting_for(self) -> tuple[int, ...]:
        """World ranks whose data is missing now."""
        return () if self._at == len(self._works) else self._works[self._at].waiting_for()


@dataclass(frozen=True, slots=True)
class _Channels:
    """The channels of a piece of an operation of a set that is on several hosts."""

    channel: Channel
    piece: int = 0

    def far(self) -> Channel:
        """Return the one across hosts."""
        return replace(self.channel, stage=_PIECES * self.channel.stage + self.piece)

    def near(self, last: bool = False) -> Channel:
        """Return the first or last one inside the host."""
        return replace(self.channel, stage=2 * self.far().stage + last)


class HierarchicalTransport:
    """See `Transport`. `hosts`: the world ranks of each host, as `near` and `far` number them.

    An allreduce joins each lane's share in the host, all lanes' shares across hosts at once, and
    gathers them in the host: what a host sends is what one rank would. A large one is cut into
    pieces, so that the hosts' memory and the network are busy at the same time. A broadcast goes to
    one rank of each host first. The rest goes across as if all ranks were far.
    """

    revocable = True
    wide = False
    swift = False

    def __init__(
        self, near: Transport, far: Transport, hosts: Sequence[Sequence[int]], piece: int = PIECE
    ) -> None:
        self._near = near
        self._piece = piece
        self._far = far
        self._host_of = {rank: number for number, ranks in enumerate(hosts) for rank in ranks}
        self._layout = lru_cache(_SETS)(self._lay_out)

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros that every rank of the host can see."""
        return self._near.allocate(nbytes)

    def descriptors(self) -> tuple[int, ...]:
        """Return those of both; none if nothing wakes us when data comes from other hosts."""
        far = self._far.descriptors()
        return (*self._near.descriptors(), *far) if far else ()

    def sleep(self, asleep: bool) -> bool:
        """Tell both."""
        return self._near.sleep(asleep) | self._far.sleep(asleep)

    def arm(self) -> None:
        """Arm both."""
        self._near.arm()
        self._far.arm()

    def after_fork(self) -> None:
        """Leave both to the parent."""
        self._near.after_fork()
        self._far.after_fork()

    def allreduce(
        self, members: Members, channel: Channel, source: Flat, out: Flat, reduction: Reduction
    ) -> Work:
        """Join shares in the host, across hosts, and gather them."""
        layout = self._layout(members)
        if len(layout.hosts) == 1:
            return self._near.allreduce(members, channel, source, out, reduction)
        count = max(1, min(_PIECES, source.nbytes // self._piece))
        works = [
            self._join(layout, _Channels(channel, i), source[lo:hi], out[lo:hi], reduction)
            for i, (lo, hi) in enumerate(chunk_bounds(source.size, count))
        ]
        return Stages(works, _DEPTH) if count > 1 else works[0]

    def _join(
        self, layout: Layout, channels: _Channels, source: Flat, out: Flat, reduction: Reduction
    ) -> Work:
        near, join = layout.near, Reduction(reduction.op)
        counts = [hi - lo for lo, hi in chunk_bounds(source.size, layout.lanes)]
        counts += [0] * (len(near.ranks) - layout.lanes)
        share = np.empty(counts[near.index], source.dtype)
        works: list[Work] = [
            self._near.reduce_scatter(near, channels.near(), source, share, counts, join)
        ]
        if layout.lane is not None:
            works.append(self._far.allreduce(layout.lane, channels.far(), share, share, reduction))
        works.append(self._near.allgather(near, channels.near(last=True), share, out, counts))
        return Stages(works)

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> Work:
        """See `Transport`."""
        transport, channel = self._flat(members, channel)
        return transport.reduce_scatter(members, channel, source, out, counts, reduction)

    def allgather(
        self, members: Members, channel: Channel, source: Flat, out: Flat, counts: Sequence[int]
    ) -> Work:
        """See `Transport`."""
        transport, channel = self._flat(members, channel)
        return transport.allgather(members, channel, source, out, counts)

    def alltoallv(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        sent: Sequence[int],
        received: Sequence[int],
    ) -> Work:
        """See `Transport`."""
        transport, channel = self._flat(members, channel)
        return transport.alltoallv(members, channel, source, out, sent, received)

    def broadcast(
        self, members: Members, channel: Channel, source: Flat, out: Flat, root: int
    ) -> Work:
        """Reach one rank of each host, then the others of the host."""
        layout = self._layout(members)
        if len(layout.hosts) == 1:
            return self._near.broadcast(members, channel, source, out, root)
        near, channels = layout.near, _Channels(channel)
        heads = layout.heads(members.ranks[root])
        head = heads[layout.home]
        works: list[Work] = []
        if members.ranks[members.index] == head:
            lane, start = Members(heads, layout.home), heads.index(members.ranks[root])
            works.append(self._far.broadcast(lane, channels.far(), source, out, start))
        works.append(self._near.broadcast(near, channels.near(), out, out, near.ranks.index(head)))
        return Stages(works)

    def close(self, orderly: bool) -> None:
        """Close both."""
        self._far.close(orderly)
        self._near.close(orderly)

    def _flat(self, members: Members, channel: Channel) -> tuple[Transport, Channel]:
        if len(self._layout(members).hosts) == 1:
            return self._near, channel
        return self._far, _Channels(channel).far()

    def _lay_out(self, members: Members) -> Layout:
        by_host: dict[int, list[int]] = {}
        for rank in members.ranks:
            by_host.setdefault(self._host_of[rank], []).append(rank)
        hosts = tuple(tuple(ranks) for ranks in by_host.values())
        rank = members.ranks[members.index]
        home = list(by_host).index(self._host_of[rank])
        place = hosts[home].index(rank)
        lanes = min(len(ranks) for ranks in hosts)
        lane = Members(tuple(ranks[place] for ranks in hosts), home) if place < lanes else None
        return Layout(hosts, home, Members(hosts[home], place), lanes, lane)

"""Collectives as programs: for each rank a list of sends and receives, in order.

A program never lets a byte of the output be written before data of every member has arrived
(reductions), so that a member which never runs its program has cost the others nothing.
Peers and ranks are positions in the process set. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from commrt.core.chunks import chunk_bounds, cut

INPUT = -1
"""In place of a receive's index: this rank's own input."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send elements [lo, hi) of the input, or what receive number `value` resulted in."""

    peer: int
    lo: int
    hi: int
    value: int = INPUT


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive elements [lo, hi); its result is a partial value in scratch unless `final`.

    `add`: what is added to what arrives, the input's [lo, hi) or an earlier receive's result;
    None adds nothing. `arrived_first`: it is the left operand. A final result is the output's
    [lo, hi), written once the sends numbered `guards` have drained.
    """

    peer: int
    lo: int
    hi: int
    add: int | None = None
    final: bool = True
    arrived_first: bool = True
    guards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy elements [lo, hi) of the input to the output from `to` on. Comes first."""

    lo: int
    hi: int
    to: int


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's part. Sends go out and receives are taken in, each in their own order.

    The output begins with element `origin` of the numbering that receives use. `users`: how many
    sends and receives use each receive's partial result.
    """

    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]
    copies: tuple[Copy, ...] = ()
    origin: int = 0
    users: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        used = [send.value for send in self.sends]
        used += [receive.add for receive in self.receives if receive.add is not None]
        users = Counter(i for i in used if i != INPUT and not self.receives[i].final)
        object.__setattr__(self, "users", users)


def ring_allreduce(rank: int, size: int, n: int, segment: int, lag: int = 4) -> Program:
    """Reduce-scatter, then allgather, round a ring in segments of at most `segment` elements.

    Chunk r is completed by rank r, in ring order, so all ranks get the same bits. Segments of
    later steps start `lag` segments behind: they are sent on while they are in cache.
    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters".
    """
    return _ring(rank, chunk_bounds(n, size), 2 * size - 2, segment, lag)


def ring_reduce_scatter(
    rank: int, size: int, counts: Sequence[int], segment: int, lag: int = 4
) -> Program:
    """Do the first half of `ring_allreduce` with chunks of `counts[r]` elements; keep our own."""
    chunks = list(pairwise(_offsets(counts)))
    return replace(_ring(rank, chunks, size - 1, segment, lag), origin=chunks[rank][0])


def _ring(
    rank: int, chunks: Sequence[tuple[int, int]], steps: int, segment: int, lag: int
) -> Program:
    """Pass chunks to the right; the first size - 1 steps add this rank's part to what passes."""
    size = len(chunks)
    if size == 1:
        return Program((), (), (Copy(*chunks[0], 0),))
    longest = max(hi - lo for lo, hi in chunks)
    pieces = [_equal_pieces(lo, hi, longest, segment) for lo, hi in chunks]
    count = len(pieces[0])
    right, left = (rank + 1) % size, (rank - 1) % size
    order = sorted((g + s * lag, s, g) for s in range(steps) for g in range(count))
    sends: list[Send] = []
    receives: list[Receive] = []
    received: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    for _, s, g in order:  # receive numbers first: a send names the receive before it
        lo, hi = pieces[(rank - 2 - s) % size][g]
        if lo < hi:
            received[s, g] = len(received)
    for _, s, g in order:
        lo, hi = pieces[(rank - 1 - s) % size][g]
        if lo < hi:
            sent[s, g] = len(sends)
            sends.append(Send(right, lo, hi, received[s - 1, g] if s else INPUT))
    for _, s, g in order:
        chunk = (rank - 2 - s) % size
        lo, hi = pieces[chunk][g]
        if lo == hi:
            continue
        final = s >= size - 2
        add = INPUT if s <= size - 2 else None
        # The input's [lo, hi) left us raw in step 0 if it is chunk rank - 1.
        raw = final and chunk == (rank - 1) % size
        receives.append(Receive(left, lo, hi, add, final, guards=(sent[0, g],) if raw else ()))
    return Program(tuple(sends), tuple(receives))


def doubling_allreduce(rank: int, size: int, n: int) -> Program:
    """Exchange whole vectors with partners 1, 2, 4 … away; ranks above a power of two fold in.

    Operands are added in rank order, so all ranks get the same bits.
    Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations".
    """
    power = 1 << (size.bit_length() - 1)
    extra = size - power
    if n == 0 or size == 1:
        return Program((), (), (Copy(0, n, 0),))
    if rank >= power:
        return Program((Send(rank - power, 0, n),), (Receive(rank - power, 0, n, guards=(0,)),))
    sends: list[Send] = []
    receives: list[Receive] = []
    value = INPUT
    if rank < extra:
        receives.append(Receive(rank + power, 0, n, INPUT, final=False, arrived_first=False))
        value = 0
    mask = 1
    while mask < power:
        partner = rank ^ mask
        sends.append(Send(partner, 0, n, value))
        last = mask * 2 == power
        guards = tuple(i for i, send in enumerate(sends) if send.value == INPUT) if last else ()
        receives.append(Receive(partner, 0, n, value, last, partner < rank, guards))
        value = len(receives) - 1
        mask *= 2
    if rank < extra:
        sends.append(Send(rank + power, 0, n, value))
    return Program(tuple(sends), tuple(receives))


def alltoallv(rank: int, size: int, sent: Sequence[int], received: Sequence[int]) -> Program:
    """Send `sent[r]` elements of the input to rank r, receive `received[r]` of it, in rank order.

    Step i goes to rank + i and comes from rank - i, so that no rank is everybody's first.
    """
    starts, landing = _offsets(sent), _offsets(received)
    copies = (Copy(starts[rank], starts[rank] + sent[rank], landing[rank]),)
    sends: list[Send] = []
    receives: list[Receive] = []
    for i in range(1, size):
        to, source = (rank + i) % size, (rank - i) % size
        if sent[to]:
            sends.append(Send(to, starts[to], starts[to] + sent[to]))
        if received[source]:
            receives.append(Receive(source, landing[source], landing[source] + received[source]))
    return Program(tuple(sends), tuple(receives), copies)


def ring_allgather(rank: int, size: int, counts: Sequence[int], segment: int) -> Program:
    """Pass blocks of `counts[r]` elements round a ring; the output holds them in rank order."""
    starts = _offsets(counts)
    right, left = (rank + 1) % size, (rank - 1) % size
    copies = (Copy(0, counts[rank], starts[rank]),)
    if size == 1:
        return Program((), (), copies)
    sends: list[Send] = []
    receives: list[Receive] = []
    for lo, hi in cut(0, counts[rank], segment):
        sends.append(Send(right, lo, hi))
    for step in range(size - 1):
        block = (left - step) % size
        for lo, hi in cut(starts[block], starts[block] + counts[block], segment):
            if step < size - 2:
                sends.append(Send(right, lo, hi, len(receives)))
            receives.append(Receive(left, lo, hi))
    return Program(tuple(sends), tuple(receives), copies)


def tree_broadcast(rank: int, size: int, root: int, n: int, segment: int) -> Program:
    """Send the root's input down a binomial tree in segments; outputs are written as they come."""
    place = (rank - root) % size
    parent, children = _binomial(place, size)
    pieces = cut(0, n, segment)
    sends = tuple(
        Send((child + root) % size, lo, hi, INPUT if parent is None else g)
        for g, (lo, hi) in enumerate(pieces)
        for child in children
    )
    if parent is None:
        return Program(sends, (), (Copy(0, n, 0),))
    source = (parent + root) % size
    return Program(sends, tuple(Receive(source, lo, hi) for lo, hi in pieces))


def _binomial(place: int, size: int) -> tuple[int | None, list[int]]:
    mask = 1
    while mask < size and not place & mask:
        mask *= 2
    parent = None if place == 0 else place & ~mask
    children = []
    mask //= 2
    while mask:
        if place + mask < size:
            children.append(place + mask)
        mask //= 2
    return parent, children


def _equal_pieces(lo: int, hi: int, longest: int, segment: int) -> list[tuple[int, int]]:
    """Cut a chunk into as many pieces as the longest chunk needs: step s has them all in common."""
    count = max(1, -(-longest // segment))
    return [(lo + a, lo + b) for a, b in chunk_bounds(hi - lo, count)]


def _offsets(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts

"""Collectives in which ranks read pieces of one another's stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from commrt.kernels import shared
from commrt.kernels.numba_ import Recipe, reduce_span
from commrt.transports.base import Flat, Members, as_bytes
from commrt.transports.board import Entry
from commrt.transports.shared_works import DEPTH

_BUDGET = 4
"""Pieces moved in one go."""


class Flow(Protocol):
    """What is put into pieces, and what is taken out of everybody's.

    `given`, `wanted`: how many pieces of `nbytes`. The others may have fewer or more.
    """

    nbytes: int
    given: int
    wanted: int

    def put(self, number: int, piece: Flat) -> None:
        """Fill a piece, bytes."""

    def take(self, number: int, pieces: Sequence[int]) -> None:
        """Take what is ours out of everybody's pieces, of which we get the addresses."""


class Relay:
    """Moves the pieces of a flow. See `Task`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._stage = np.empty(0, np.uint8)
        self._filled = self._taken = 0

    def fill(self, stage: Flat) -> int:
        """Fill the first pieces."""
        self._stage = stage
        while self._filled < min(DEPTH, self._flow.given):
            self._put()
        return self._ended(self._filled, self._flow.given)

    def move(self, entry: Entry) -> bool:
        """Take and fill as far as the others are."""
        flow = self._flow
        if not flow.wanted and not self._taken:
            self._taken = shared.ENDLESS
            entry.announce(shared.WORKED, shared.ENDLESS)
        for _ in range(_BUDGET):
            moved = False
            if self._taken < flow.wanted and entry.come(shared.FILLED, self._taken + 1):
                pieces = entry.stages() + self._taken % DEPTH * flow.nbytes
                flow.take(self._taken, pieces.tolist())
                self._taken += 1
                entry.announce(shared.WORKED, self._ended(self._taken, flow.wanted))
                moved = True
            if self._filled < flow.given and entry.come(shared.WORKED, self._filled - DEPTH + 1):
                self._put()
                entry.announce(shared.FILLED, self._ended(self._filled, flow.given))
                moved = True
            if not moved:
                break
        return self._taken >= flow.wanted and self._filled >= flow.given

    def steps(self) -> int:
        """Pieces filled and taken."""
        return self._filled + min(self._taken, self._flow.wanted)

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """Who has not filled what we want, or not taken what we have filled."""
        if self._taken < self._flow.wanted:
            return entry.late(shared.FILLED, self._taken + 1)
        return entry.late(shared.WORKED, self._filled - DEPTH + 1)

    def _put(self) -> None:
        start = self._filled % DEPTH * self._flow.nbytes
        self._flow.put(self._filled, self._stage[start : start + self._flow.nbytes])
        self._filled += 1

    @staticmethod
    def _ended(count: int, whole: int) -> int:
        return count if count < whole else shared.ENDLESS


class Gather:
    """Allgather: everybody takes all of everybody's."""

    def __init__(self, source: Flat, out: Flat, counts: Sequence[int], nbytes: int) -> None:
        self.nbytes = nbytes
        self._source, self._out = as_bytes(source), as_bytes(out)
        self._lengths = [n * source.itemsize for n in counts]
        self._starts = list(accumulate(self._lengths, initial=0))
        self.given = -(-source.nbytes // nbytes)
        self.wanted = -(-max(self._lengths) // nbytes)

    def put(self, number: int, piece: Flat) -> None:
        """Fill a piece."""
        _put_next(self._source, number, piece)

    def take(self, number: int, pieces: Sequence[int]) -> None:
        """Copy."""
        done = number * self.nbytes
        for start, length, piece in zip(self._starts, self._lengths, pieces, strict=False):
            n = min(self.nbytes, length - done)
            if n > 0:
                shared.fetch(self._out, start + done, piece, n)


class Broadcast:
    """Everybody but the root takes what the root has."""

    def __init__(self, members: Members, source: Flat, out: Flat, root: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._source, self._out, self._root = as_bytes(source), as_bytes(out), root
        whole = -(-source.nbytes // nbytes)
        self.given, self.wanted = (whole, 0) if members.index == root else (0, whole)
        if members.index == root and source.ctypes.data != out.ctypes.data:
            np.copyto(out, source)

    def put(self, number: int, piece: Flat) -> None:
        """Fill a piece."""
        _put_next(self._source, number, piece)

    def take(self, number: int, pieces: Sequence[int]) -> None:
        """Copy."""
        done = number * self.nbytes
        n = min(self.nbytes, self._out.size - done)
        shared.fetch(self._out, done, pieces[self._root], n)


class Exchange:
    """Alltoall: a piece has an equal part for each member."""

    def __init__(
        self, members: Members, source: Flat, out: Flat, sent: Sequence[int],
        received: Sequence[int], nbytes: int,
    ) -> None:  # fmt: skip
        self.nbytes = nbytes
        width = source.itemsize
        self._me = members.index
        self._source, self._out = as_bytes(source), as_bytes(out)
        self._sent = [n * width for n in sent]
        self._received = [n * width for n in received]
        self._from = list(accumulate(self._sent, initial=0))
        self._to = list(accumulate(self._received, initial=0))
        self._part = nbytes // len(members.ranks) // width * width
        self.given = -(-max(self._sent) // self._part)
        self.wanted = -(-max(self._received) // self._part)

    def put(self, number: int, piece: Flat) -> None:
        """Fill a piece."""
        done = number * self._part
        for r, (start, length) in enumerate(zip(self._from, self._sent, strict=False)):
            n = min(self._part, length - done)
            if n > 0:
                here = r * self._part
                piece[here : here + n] = self._source[start + done : start + done + n]

    def take(self, number: int, pieces: Sequence[int]) -> None:
        """Copy."""
        done = number * self._part
        for start, length, piece in zip(self._to, self._received, pieces, strict=False):
            n = min(self._part, length - done)
            if n > 0:
                shared.fetch(self._out, start + done, piece + self._me * self._part, n)


class Scatter:
    """Reduce-scatter: everybody joins its own part of everybody's pieces."""

    def __init__(
        self, members: Members, source: Flat, out: Flat, counts: Sequence[int], how: Recipe,
        nbytes: int,
    ) -> None:  # fmt: skip
        self.nbytes = nbytes
        self._sending = Exchange(members, source, source, counts, (0,) * len(counts), nbytes)
        self._out, self._how = out, how
        self._part = nbytes // len(counts) // out.itemsize
        self._me = members.index
        self.given = self._sending.given
        self.wanted = -(-out.size // self._part)

    def put(self, number: int, piece: Flat) -> None:
        """Fill a piece."""
        self._sending.put(number, piece)

    def take(self, number: int, pieces: Sequence[int]) -> None:
        """Join."""
        lo = number * self._part
        part = self._out[lo : lo + self._part]
        inside = self._me * self._part * part.itemsize
        sources = np.array(pieces, np.int64) + inside
        reduce_span(self._how, sources, np.array([part.ctypes.data], np.int64), 0, part.size)
        self._how.complete(part)


def _put_next(source: Flat, number: int, piece: Flat) -> None:
    """Fill a piece with the bytes that follow those of the earlier ones."""
    part = source[number * piece.size : (number + 1) * piece.size]
    piece[: part.size] = part

"""Reductions in memory that the ranks of a host share.

Nobody reads what another rank has not filled, and nobody writes to an output before all have
entered: that is what the slots of `kernels/shared.py` are for.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from commrt.core.chunks import cut
from commrt.kernels import shared
from commrt.kernels.numba_ import Addresses, Recipe, reduce_span
from commrt.transports.base import Flat, as_bytes
from commrt.transports.board import Entry

PIECE = 256 << 10
"""Bytes of a piece, unless told: the pieces under way fit a core's second cache."""

DEPTH = 4
"""Pieces that a rank may be ahead."""

_TURN = 8 << 20
"""Bytes read and written in one go: about a millisecond."""


class Task(Protocol):
    """What is done between an entry and its end."""

    def fill(self, stage: Flat) -> int:
        """Fill our stage as far as goes without the others; return how many pieces that is."""

    def move(self, entry: Entry) -> bool:
        """Move on; True once our output is there and nobody touches our arrays any more."""

    def steps(self) -> int:
        """How much has been done."""

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """World ranks that are late."""


class Mailbox:
    """A small allreduce: everybody reads what all have put into their stages."""

    def __init__(self, source: Flat, out: Flat, how: Recipe) -> None:
        self._source, self._out, self._how = source, out, how
        self._done = False

    def fill(self, stage: Flat) -> int:
        """Put our values there."""
        stage[: self._source.nbytes].view(self._source.dtype)[:] = self._source
        return 1

    def move(self, entry: Entry) -> bool:
        """Read all of them."""
        here = np.array([self._out.ctypes.data], np.int64)
        reduce_span(self._how, entry.stages(), here, 0, self._out.size)
        self._how.complete(self._out)
        self._done = True
        return True

    def steps(self) -> int:
        """Done or not."""
        return int(self._done)

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """Nobody: all have entered."""
        return ()


class Spread:
    """An allreduce of arrays that all ranks see: each joins its share and writes it to all."""

    def __init__(
        self, entry: Entry, tables: tuple[Addresses, Addresses], out: Flat, how: Recipe
    ) -> None:
        self._how = how
        self._tables = tables
        self._place, self._stop = shared.share(out.size, entry.n, entry.me)
        self._step = max(64, _TURN // (2 * entry.n * out.itemsize))
        self._said = False

    def move(self, entry: Entry) -> bool:
        """Join the next part; at the end wait for the others, who write here too."""
        if self._place < self._stop:
            lo, hi = self._place, min(self._stop, self._place + self._step)
            reduce_span(self._how, *self._tables, lo, hi)
            self._place = hi
        if self._place < self._stop:
            return False
        if not self._said:
            self._said = True
            entry.phase(shared.DONE)
        return entry.have(shared.DONE)

    def steps(self) -> int:
        """Elements so far."""
        return int(self._place)

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """Who has not joined its share."""
        return entry.late_for(shared.DONE)


class Staged:
    """An allreduce of arrays that others cannot see."""

    def __init__(self, source: Flat, out: Flat, how: Recipe, piece: int) -> None:
        self._source, self._out, self._how = source, out, how
        self._nbytes = piece
        self._piece = even_piece(out.size, piece // out.itemsize)
        self._came = np.zeros(3, np.int64)
        self._job = np.zeros(0, np.int64)
        self._pieces = np.zeros((0, 0), np.int64)

    def fill(self, stage: Flat) -> int:
        """Copy the first pieces."""
        pieces = cut(0, self._source.size, self._piece)[:DEPTH]
        for k, (lo, hi) in enumerate(pieces):
            part = as_bytes(self._source[lo:hi])
            stage[k * self._nbytes : k * self._nbytes + part.size] = part
        self._came[0] = len(pieces)
        return len(pieces)

    def move(self, entry: Entry) -> bool:
        """Move pieces on."""
        if not self._job.size:
            self._begin(entry)
        how = self._how
        shared.reduce_staged(
            how.code, how.like, self._job, self._pieces, self._came, how.divisor, how.factor,
            entry.spins, max(1, _TURN // self._nbytes),
        )  # fmt: skip
        taken = int(self._came[2])
        return bool(taken * self._piece >= self._out.size)

    def steps(self) -> int:
        """Pieces filled, worked on, taken back."""
        return int(self._came.sum())

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """Who is behind us."""
        _, worked, taken = self._came.tolist()
        word, place = (shared.WORKED, taken) if taken < worked else (shared.FILLED, worked)
        return entry.late(word, place + 1)

    def _begin(self, entry: Entry) -> None:
        out = self._out
        self._job = np.array(
            [entry.slots.ctypes.data, entry.bells.ctypes.data, entry.n, entry.me,
             self._source.ctypes.data, out.ctypes.data, out.size, self._piece, out.itemsize],
            np.int64,
        )  # fmt: skip
        steps = self._nbytes * np.arange(DEPTH, dtype=np.int64)
        self._pieces = entry.stages()[None, :] + steps[:, None]


def even_piece(n: int, most: int) -> int:
    """Return the length of pieces of n elements that are about equal and have at most `most`."""
    count = max(1, -(-n // most))
    return min(most, -(-max(1, -(-n // count)) // 64) * 64)


class Large:
    """A large allreduce in the way that its arrays allow, which shows when all have entered."""

    def __init__(self, source: Flat, out: Flat, how: Recipe, piece: int, seen: bool) -> None:
        self._out, self._how = out, how
        self._staged = Staged(source, out, how, piece)
        self._way: Staged | Spread = self._staged
        self._chosen = not seen

    def fill(self, stage: Flat) -> int:
        """Fill our stage, if it is certain that it is used."""
        return self._staged.fill(stage) if self._chosen else 0

    def move(self, entry: Entry) -> bool:
        """Move on; what is left to numpy is done at the end, by each rank for itself."""
        if not self._chosen:
            self._chosen = True
            sources, outs = entry.addresses(shared.SOURCE), entry.addresses(shared.OUT)
            if sources is not None and outs is not None:
                self._way = Spread(entry, (sources, outs), self._out, self._how)
        if not self._way.move(entry):
            return False
        self._how.complete(self._out)
        return True

    def steps(self) -> int:
        """How much has been done."""
        return self._way.steps()

    def waiting_for(self, entry: Entry) -> tuple[int, ...]:
        """World ranks that are late."""
        return self._way.waiting_for(entry)

"""A codec's algorithm is a conversation: it asks for collectives and never sees a transport."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commrt.core.chunks import chunk_bounds
from commrt.kernels.reduction import Reduction
from commrt.types import ReduceOp, Segment

Flat = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Ask for `source` of all ranks, joined, in `out`; see `Transport.allreduce`."""

    source: Flat
    out: Flat
    reduction: Reduction


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Ask for our `counts[index]` elements of all ranks' `source`, joined, in `out`."""

    source: Flat
    out: Flat
    counts: tuple[int, ...]
    reduction: Reduction


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Ask to send `sent[r]` elements to rank r and to get `received[r]` of it, in order."""

    source: Flat
    out: Flat
    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllGather:
    """Ask for `counts[r]` elements of every rank r in `out`, in order."""

    source: Flat
    out: Flat
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Yield:
    """Ask for nothing: let the engine look at its inbox between two slices of work."""


Collective = Reduce | ReduceScatter | AllToAll | AllGather
Step = Collective | Yield
Conversation = Generator[Step, None, None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Reduce `source` to `out`, perhaps the same, over `size` ranks of which we are number `index`.

    `scale` is what the result is multiplied by. With `counts` each rank gets only its own
    `counts[index]` elements, in rank order. `segments` tells the tensors in `source`, if asked.
    """

    source: Flat
    out: Flat
    size: int
    index: int
    op: ReduceOp
    scale: float = 1.0
    counts: tuple[int, ...] | None = None
    segments: Callable[[], Sequence[Segment]] = tuple

    @property
    def mean(self) -> bool:
        """Is the sum divided by the size?"""
        return self.op is ReduceOp.AVERAGE

    def shares(self) -> tuple[int, ...]:
        """Return how many elements each rank owns."""
        if self.counts is not None:
            return self.counts
        return tuple(hi - lo for lo, hi in chunk_bounds(self.source.size, self.size))


class Codec(Protocol):
    """One way to reduce an array over ranks. Stateless: one object serves all buckets."""

    def exchange(self, job: Exchange) -> Conversation:
        """Converse until `job.out` holds the result, with the same bits on every rank.

        No byte of `job.out` is written before data of every rank has arrived.
        """

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Bytes that one rank sends for n elements."""

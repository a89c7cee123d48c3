"""Reduce by direct exchange: owners join in a wider dtype, so there are two roundings in all.

Every rank sends its chunks, as `wire` dtype, to their owners; the owner joins them in rank order
in `wide` dtype, scales, rounds once; all ranks decode the same gathered bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from commrt.codecs.base import AllGather, AllToAll, Conversation, Exchange, Flat, Step, Yield
from commrt.core.chunks import cut
from commrt.kernels import numpy_ as kernels

_SLICE = 256 << 10
"""Elements converted at a time: well below 2 ms."""

Owner = Callable[[Flat, Flat], Conversation]
"""Joins `parts`, shape (size, m), of all ranks and writes the result to `block`, shape (m,)."""


class DirectFloat:
    """See `Codec`. 16-bit floats, native or as the wire form of wider ones."""

    def __init__(self, wire: np.dtype[Any], wide: np.dtype[Any]) -> None:
        self._wire = wire
        self._wide = wide

    def exchange(self, job: Exchange) -> Conversation:
        """Scatter, join, gather."""

        def own(parts: Flat, block: Flat) -> Conversation:
            for lo, hi in cut(0, block.size, max(1, _SLICE // job.size)):
                self._join(parts[:, lo:hi], block[lo:hi], job)
                yield Yield()

        yield from through_owners(job, self._wire, own)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Return what `through_owners` sends."""
        return sent_nbytes(n, self._wire, size)

    def _join(self, parts: Flat, block: Flat, job: Exchange) -> None:
        total = parts[0].astype(self._wide)
        for part in parts[1:]:
            kernels.fold_cast(job.op, total, part)
        if job.mean:
            kernels.divide(total, job.size)
        if job.scale != 1.0:
            kernels.scale(total, job.scale)
        kernels.cast(total, block)


class DirectIntegerMean:
    """See `Codec`. Averages of integers: exact, rounded toward zero."""

    def exchange(self, job: Exchange) -> Conversation:
        """Scatter, divide, gather."""

        def own(parts: Flat, block: Flat) -> Conversation:
            for lo, hi in cut(0, block.size, max(1, _SLICE // job.size)):
                kernels.integer_mean([part[lo:hi] for part in parts], block[lo:hi])
                yield Yield()
            if job.scale != 1.0:
                kernels.scale(block, job.scale)

        yield from through_owners(job, job.source.dtype, own)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Return what `through_owners` sends."""
        return sent_nbytes(n, dtype, size)


def through_owners(job: Exchange, wire: np.dtype[Any], own: Owner) -> Conversation:
    """Send chunks, as `wire` dtype, to their owners, let them join, and send results back."""
    counts = job.shares()
    mine = counts[job.index]
    coded = yield from _convert(job.source, wire)
    parts = np.empty((job.size, mine), wire)
    yield AllToAll(coded, parts.reshape(-1), counts, (mine,) * job.size)
    block = np.empty(mine, wire)
    yield from own(parts, block)
    gathered = block
    if job.counts is None:
        gathered = job.out if job.out.dtype == wire else np.empty(job.out.size, wire)
        yield AllGather(block, gathered, counts)
    if gathered is not job.out:
        for lo, hi in cut(0, job.out.size, _SLICE):
            kernels.cast(gathered[lo:hi], job.out[lo:hi])
            yield Yield()


def sent_nbytes(n: int, wire: np.dtype[Any], size: int) -> int:
    """Return the bytes that a rank sends: all chunks but its own out, its own to everyone."""
    return 2 * n * wire.itemsize * (size - 1) // size


def _convert(source: Flat, wire: np.dtype[Any]) -> Generator[Step, None, Flat]:
    if source.dtype == wire:
        return source
    coded = np.empty(source.size, wire)
    for lo, hi in cut(0, source.size, _SLICE):
        kernels.cast(source[lo:hi], coded[lo:hi])
        yield Yield()
    return coded

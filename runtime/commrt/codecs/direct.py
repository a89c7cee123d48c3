"""Sum by direct exchange: owners add in a wider dtype, so there are two roundings in all.

Every rank sends its chunks, as `wire` dtype, to their owners; the owner adds them in rank order
in `wide` dtype, scales, rounds once; all ranks decode the same gathered bytes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from commrt.codecs.base import AllGather, AllToAll, Conversation, Exchange, Flat, Step, Yield
from commrt.core.chunks import chunk_bounds, cut
from commrt.kernels import numpy_ as kernels

_SLICE = 256 << 10
"""Elements converted at a time: well below 2 ms."""


class DirectFloat:
    """See `Codec`. 16-bit floats, native or as the wire form of wider ones."""

    def __init__(self, wire: np.dtype[Any], wide: np.dtype[Any]) -> None:
        self._wire = wire
        self._wide = wide

    def exchange(self, job: Exchange) -> Conversation:
        """Scatter, add, gather."""
        bounds = chunk_bounds(job.source.size, job.size)
        counts = tuple(hi - lo for lo, hi in bounds)
        mine = counts[job.index]
        coded = yield from self._convert(job.source)
        parts = np.empty((job.size, mine), self._wire)
        yield AllToAll(coded, parts.reshape(-1), counts, (mine,) * job.size)
        block = np.empty(mine, self._wire)
        for lo, hi in cut(0, mine, max(1, _SLICE // job.size)):
            self._add(parts[:, lo:hi], block[lo:hi], job)
            yield Yield()
        gathered = job.out if job.out.dtype == self._wire else np.empty(job.out.size, self._wire)
        yield AllGather(block, gathered, counts)
        if gathered is not job.out:
            for lo, hi in cut(0, job.out.size, _SLICE):
                kernels.cast(gathered[lo:hi], job.out[lo:hi])
                yield Yield()

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """All chunks but our own out, ours to everyone."""
        return 2 * n * self._wire.itemsize * (size - 1) // size

    def _convert(self, source: Flat) -> Generator[Step, None, Flat]:
        if source.dtype == self._wire:
            return source
        coded = np.empty(source.size, self._wire)
        for lo, hi in cut(0, source.size, _SLICE):
            kernels.cast(source[lo:hi], coded[lo:hi])
            yield Yield()
        return coded

    def _add(self, parts: Flat, block: Flat, job: Exchange) -> None:
        total = parts[0].astype(self._wide)
        for part in parts[1:]:
            kernels.add_cast(total, part)
        if job.mean:
            kernels.divide(total, job.size)
        if job.scale != 1.0:
            kernels.scale(total, job.scale)
        kernels.cast(total, block)


class DirectIntegerMean:
    """See `Codec`. Averages of integers: exact, rounded toward zero."""

    def exchange(self, job: Exchange) -> Conversation:
        """Scatter, divide, gather."""
        bounds = chunk_bounds(job.source.size, job.size)
        counts = tuple(hi - lo for lo, hi in bounds)
        mine = counts[job.index]
        parts = np.empty((job.size, mine), job.source.dtype)
        yield AllToAll(job.source, parts.reshape(-1), counts, (mine,) * job.size)
        block = np.empty(mine, job.source.dtype)
        for lo, hi in cut(0, mine, max(1, _SLICE // job.size)):
            kernels.integer_mean([part[lo:hi] for part in parts], block[lo:hi])
            yield Yield()
        if job.scale != 1.0:
            kernels.scale(block, job.scale)
        yield AllGather(block, job.out, counts)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """All chunks but our own out, ours to everyone."""
        return 2 * n * dtype.itemsize * (size - 1) // size

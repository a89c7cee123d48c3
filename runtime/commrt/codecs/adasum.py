"""Adasum: joins gradients by how far they agree, so that the rate need not change with the ranks.

Two vectors become a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2): their sum where they are
orthogonal, their mean where they are equal. Pairs, then pairs of pairs, in rank order.
Maleki et al. 2021, "Scaling distributed training with adaptive summation", arXiv:2006.02924.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.codecs.base import AllGather, Conversation, Exchange, Flat, Yield
from commrt.codecs.direct import sent_nbytes, through_owners
from commrt.core.chunks import cut
from commrt.kernels import numpy_ as kernels
from commrt.types import Segment

_SLICE = 256 << 10
"""Elements handled at a time: well below 2 ms."""

Products = npt.NDArray[np.float64]
Span = tuple[int, int]


class Adasum:
    """See `Codec`. Every tensor of a bucket has coefficients of its own. Any number of ranks.

    Owners of chunks hold all ranks' parts of them. At each level ranks exchange the products of
    their chunks, three numbers a pair and tensor, and add them in rank order.
    """

    def __init__(self, wire: np.dtype[Any]) -> None:
        self._wire = wire
        self._wide = np.dtype(np.float64 if wire == np.float64 else np.float32)

    def exchange(self, job: Exchange) -> Conversation:
        """Scatter; join level by level; gather."""
        shares = job.shares()
        lo = sum(shares[: job.index])
        hi = lo + shares[job.index]
        spans = _within(job.segments() or (Segment(0, job.source.size),), lo, hi)

        def own(parts: Flat, block: Flat) -> Conversation:
            wide = parts.astype(self._wide)
            while len(wide) > 1:
                yield from _join_level(wide, spans, job.size)
                wide = wide[::2]
            if job.scale != 1.0:
                kernels.scale(wide[0], job.scale)
            kernels.cast(wide[0], block)

        yield from through_owners(job, self._wire, own)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Return what `through_owners` sends; the products are few."""
        return sent_nbytes(n, self._wire, size)


def _join_level(wide: Flat, spans: Sequence[Span], size: int) -> Conversation:
    """Join parts 0 and 1, 2 and 3, …; the results are parts 0, 2, …"""
    pairs = [(wide[i], wide[i + 1]) for i in range(0, len(wide) - 1, 2)]
    products = np.zeros((len(pairs), len(spans), 3))
    for pair, rows in zip(pairs, products, strict=True):
        yield from _multiply(*pair, spans, rows)
    everyones = np.empty((size, products.size))
    yield AllGather(products.reshape(-1), everyones.reshape(-1), (products.size,) * size)
    totals = everyones.sum(axis=0).reshape(products.shape)
    for pair, rows in zip(pairs, totals, strict=True):
        yield from _join(*pair, spans, rows)


def _within(segments: Sequence[Segment], lo: int, hi: int) -> list[Span]:
    """Return what of each tensor lies in [lo, hi), counted from lo."""
    spans = [(max(s.start, lo) - lo, min(s.stop, hi) - lo) for s in segments]
    return [(a, max(a, b)) for a, b in spans]


def _multiply(a: Flat, b: Flat, spans: Sequence[Span], products: Products) -> Conversation:
    """Put a.b, |a|^2 and |b|^2 of every span in its row of `products`."""
    for row, span in zip(products, spans, strict=True):
        for lo, hi in cut(*span, _SLICE):
            x, y = a[lo:hi].astype(np.float64), b[lo:hi].astype(np.float64)
            row += (x @ y, x @ x, y @ y)
            yield Yield()


def _join(a: Flat, b: Flat, spans: Sequence[Span], products: Products) -> Conversation:
    """Write the joined vector over `a`. A vector of zeros leaves the other one as it is."""
    for (dot, aa, bb), span in zip(products, spans, strict=True):
        of_a = a.dtype.type(1.0 - dot / (2.0 * aa) if aa else 1.0)
        of_b = b.dtype.type(1.0 - dot / (2.0 * bb) if bb else 1.0)
        for lo, hi in cut(*span, _SLICE):
            x, y = a[lo:hi], b[lo:hi]
            np.multiply(x, of_a, out=x)
            np.multiply(y, of_b, out=y)
            np.add(x, y, out=x)
            yield Yield()

"""The memory in which gradients lie side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commrt.transports.base import Flat
from commrt.types import Segment

ALIGNMENT = 128
"""Spans start at multiples of this many bytes: two cache lines, which processors fetch in pairs."""

Allocate = Callable[[int], Flat]
"""Returns so many bytes of zeros."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Memory of one dtype, zero at first, with a span for each tensor.

    `flat` has shape (n,). What lies between two spans is padding: keep it zero.
    """

    flat: Flat
    segments: tuple[Segment, ...]

    def span(self, first: int, stop: int) -> Flat:
        """Return the memory of tensors [first, stop), with the padding between them."""
        return self.flat[self.segments[first].start : self.segments[stop - 1].stop]

    def layout(self, first: int, stop: int) -> tuple[Segment, ...]:
        """Return where tensors [first, stop) lie in their span."""
        start = self.segments[first].start
        return tuple(Segment(s.start - start, s.stop - start) for s in self.segments[first:stop])


def make_arena(lengths: Sequence[int], dtype: np.dtype[Any], allocate: Allocate) -> Arena:
    """Lay tensors of these numbers of elements out, in order, in zeros that are `allocate`d."""
    step = ALIGNMENT // dtype.itemsize
    segments: list[Segment] = []
    start = 0
    for length in lengths:
        segments.append(Segment(start, start + length))
        start += -(-length // step) * step
    nbytes = start * dtype.itemsize
    memory = allocate(nbytes + ALIGNMENT)
    skipped = -memory.ctypes.data % ALIGNMENT
    return Arena(memory[skipped : skipped + nbytes].view(dtype), tuple(segments))

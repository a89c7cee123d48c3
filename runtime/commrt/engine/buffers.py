"""Fusion buffers, used again and again."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.engine.arena import Allocate
from commrt.transports.base import Flat

_KEPT = 4
_SMALLEST = 64 << 10


class FusionBuffers:
    """Arrays in sizes of powers of two. Background thread only."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._free: dict[int, list[Flat]] = {}

    def take(self, n: int, dtype: np.dtype[Any]) -> Flat:
        """Return an array of n elements with any content."""
        nbytes = n * dtype.itemsize
        block = self._size(nbytes)
        free = self._free.get(block)
        found = free.pop() if free else self._allocate(block)
        return found[:nbytes].view(dtype)

    def give(self, array: Flat) -> None:
        """Take an array back that nobody uses any more."""
        free = self._free.setdefault(self._size(array.nbytes), [])
        if len(free) < _KEPT:
            base = array
            while isinstance(base.base, np.ndarray):
                base = base.base
            free.append(base)

    @staticmethod
    def _size(nbytes: int) -> int:
        return max(_SMALLEST, 1 << (nbytes - 1).bit_length()) if nbytes else _SMALLEST

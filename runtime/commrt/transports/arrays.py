"""The memory of a program under way: input, output, and scratch for values that are not final."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.core.algorithms import INPUT, Program
from commrt.core.chunks import cut
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Flat

_KEPT = 16
_SLICE = 4 << 20


class Scratch:
    """Buffers of one segment, used again and again: fresh pages cost as much as moving the data."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[Flat] = []

    def take(self, n: int, dtype: np.dtype[Any]) -> Flat:
        """Return an array of n elements with any content."""
        wanted = n * dtype.itemsize
        if wanted > self._nbytes:
            return np.empty(n, dtype)
        block = self._free.pop() if self._free else np.empty(self._nbytes, np.uint8)
        return block[:wanted].view(dtype)

    def give(self, array: Flat) -> None:
        """Take an array back that nobody uses any more."""
        block = array
        while isinstance(block.base, np.ndarray):
            block = block.base
        if block.nbytes == self._nbytes and block.dtype == np.uint8 and len(self._free) < _KEPT:
            self._free.append(block)


class Arrays:
    """Knows where every value of a program lives, and when its scratch is free again."""

    def __init__(
        self,
        source: Flat,
        out: Flat,
        reduction: Reduction,
        program: Program,
        scratch: Scratch,
    ) -> None:
        self._source = source
        self._out = out
        self._reduction = reduction
        self._program = program
        self._scratch = scratch
        self._partial: dict[int, Flat] = {}
        self._users = dict(program.users)
        self._copies = _slices(program, source, out)
        self.copied = 0
        """Slices of local copies that are made."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all values."""
        return self._source.dtype

    def copy(self) -> bool:
        """Make the next slice of the local copies; are all made?"""
        if self._copies:
            source, out = self._copies.pop()
            self.copied += 1
            if source.ctypes.data != out.ctypes.data:
                np.copyto(out, source)
            self._reduction.finish(out)
        return not self._copies

    def landing(self, index: int) -> Flat:
        """Return where a receive's bytes arrive."""
        receive = self._program.receives[index]
        if receive.final and receive.add is None:
            return self._final(receive.lo, receive.hi)
        target = self._scratch.take(receive.hi - receive.lo, self._source.dtype)
        self._partial[index] = target
        return target

    def combine(self, index: int) -> None:
        """Turn what arrived into the receive's result."""
        receive = self._program.receives[index]
        if receive.add is None:
            return
        arrived = self._partial[index]
        other = self.value(receive.add, receive.lo, receive.hi)
        result = self._final(receive.lo, receive.hi) if receive.final else arrived
        if receive.arrived_first:
            self._reduction.fold(arrived, other, out=result)
        else:
            self._reduction.fold(other, arrived, out=result)
        self.release(receive.add)
        if receive.final:
            self._reduction.finish(result)
            self._scratch.give(self._partial.pop(index))

    def value(self, index: int, lo: int, hi: int) -> Flat:
        """Return the input's [lo, hi), or what receive `index` resulted in."""
        if index == INPUT:
            return self._source[lo:hi]
        if self._program.receives[index].final:
            return self._final(lo, hi)
        return self._partial[index]

    def _final(self, lo: int, hi: int) -> Flat:
        origin = self._program.origin
        return self._out[lo - origin : hi - origin]

    def release(self, index: int) -> None:
        """Note that one user of a value is done with it."""
        if index in self._partial and index in self._users:
            self._users[index] -= 1
            if not self._users[index]:
                self._scratch.give(self._partial.pop(index))


def _slices(program: Program, source: Flat, out: Flat) -> list[tuple[Flat, Flat]]:
    step = max(1, _SLICE // source.itemsize)
    return [
        (source[lo:hi], out[lo + copy.to - copy.lo : hi + copy.to - copy.lo])
        for copy in program.copies
        for lo, hi in cut(copy.lo, copy.hi, step)
    ]

"""Which memory is in flight."""

from __future__ import annotations

from bisect import bisect_left, insort

from commrt.transports.base import Flat

Span = tuple[int, int, str]
"""First byte, byte after the last, name of the operation."""


class MemoryMap:
    """Finds operations that would write what another one reads or writes. Caller locks."""

    def __init__(self) -> None:
        self._reads = Spans()
        self._writes = Spans()

    def conflict(self, sources: tuple[Flat, ...], outs: tuple[Flat, ...]) -> str | None:
        """Return the name of an operation in flight that these arrays would collide with."""
        for array in outs:
            found = self._writes.overlap(array) or self._reads.overlap(array)
            if found:
                return found
        for array in sources:
            found = self._writes.overlap(array)
            if found:
                return found
        return None

    def add(self, name: str, sources: tuple[Flat, ...], outs: tuple[Flat, ...]) -> None:
        """Note that an operation is in flight."""
        for array in sources:
            self._reads.add(array, name)
        for array in outs:
            self._writes.add(array, name)

    def remove(self, name: str, sources: tuple[Flat, ...], outs: tuple[Flat, ...]) -> None:
        """Note that it has ended."""
        for array in sources:
            self._reads.remove(array, name)
        for array in outs:
            self._writes.remove(array, name)


class Spans:
    """Spans of memory in order of their first byte."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._longest = 0

    def overlap(self, array: Flat) -> str | None:
        """Return the name behind a span that shares a byte with the array."""
        if not self._spans or not array.nbytes:
            return None
        start, stop, _ = _span(array, "")
        i = bisect_left(self._spans, (start - self._longest, 0, ""))
        while i < len(self._spans) and self._spans[i][0] < stop:
            if self._spans[i][1] > start:
                return self._spans[i][2]
            i += 1
        return None

    def add(self, array: Flat, name: str) -> None:
        """Put an array's span in."""
        if array.nbytes:
            span = _span(array, name)
            insort(self._spans, span)
            self._longest = max(self._longest, span[1] - span[0])

    def remove(self, array: Flat, name: str) -> None:
        """Take an array's span out."""
        if array.nbytes:
            span = _span(array, name)
            i = bisect_left(self._spans, span)
            if i < len(self._spans) and self._spans[i] == span:
                del self._spans[i]
        if not self._spans:
            self._longest = 0


def _span(array: Flat, name: str) -> Span:
    start = stop = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, start + array.nbytes, name
    for length, stride in zip(array.shape, array.strides, strict=True):
        start += min(0, (length - 1) * stride)
        stop += max(0, (length - 1) * stride)
    return start, stop + array.itemsize, name

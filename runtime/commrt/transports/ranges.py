"""Which parts of a stretch of memory are free."""

from __future__ import annotations

from bisect import bisect_left


class FreeRanges:
    """First fit over [start, stop), in units of `grain`. Pure. Thread safety: one at a time."""

    def __init__(self, start: int, stop: int, grain: int) -> None:
        self._grain = grain
        self._free = [(start, stop)]

    def take(self, n: int) -> int | None:
        """Return where n bytes were free, or None."""
        wanted = self._rounded(n)
        for i, (lo, hi) in enumerate(self._free):
            if hi - lo >= wanted:
                self._free[i : i + 1] = [(lo + wanted, hi)] if hi - lo > wanted else []
                return lo
        return None

    def give(self, start: int, n: int) -> None:
        """Take back what `take(n)` returned."""
        lo, hi = start, start + self._rounded(n)
        i = bisect_left(self._free, (lo, hi))
        if i < len(self._free) and self._free[i][0] == hi:
            hi = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == lo:
            i -= 1
            lo = self._free.pop(i)[0]
        self._free.insert(i, (lo, hi))

    def free(self) -> list[tuple[int, int]]:
        """Return what is free, in order."""
        return list(self._free)

    def _rounded(self, n: int) -> int:
        return max(1, -(-n // self._grain)) * self._grain

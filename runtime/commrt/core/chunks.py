"""How n elements are shared out."""

from __future__ import annotations

from itertools import pairwise


def chunk_bounds(n: int, size: int) -> list[tuple[int, int]]:
    """Split n elements into `size` half-open chunks whose lengths differ by at most one."""
    base, extra = divmod(n, size)
    starts = [rank * base + min(rank, extra) for rank in range(size + 1)]
    return list(pairwise(starts))


def cut(lo: int, hi: int, step: int) -> list[tuple[int, int]]:
    """Cut [lo, hi) into pieces of at most `step` elements, none of them empty."""
    return [(start, min(start + step, hi)) for start in range(lo, hi, step)]

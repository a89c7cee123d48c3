"""Bandwidth figures as NVIDIA's nccl-tests defines them (doc/PERFORMANCE.md)."""

from __future__ import annotations

from commrt.types import Kind


def algbw(nbytes: int, seconds: float) -> float:
    """Return GB/s (1e9 bytes): the bytes of the whole result over the time.

    For an allgather `nbytes` counts the rows of all ranks.
    """
    return nbytes / seconds / 1e9


def busbw_factor(kind: Kind, size: int) -> float:
    """Return how much of `nbytes` the slowest link carries at best.

    With it, figures of different kinds and numbers of ranks can be compared with a link's speed.
    One rank moves nothing: 0, but for a broadcast, whose factor is 1 throughout.
    """
    match kind:
        case Kind.ALLREDUCE:
            return 2 * (size - 1) / size
        case Kind.ALLGATHER | Kind.ALLTOALL | Kind.REDUCESCATTER:
            return (size - 1) / size
        case Kind.BROADCAST:
            return 1.0
        case _:
            return 0.0


def busbw(kind: Kind, nbytes: int, seconds: float, size: int) -> float:
    """Return GB/s on the slowest link."""
    return algbw(nbytes, seconds) * busbw_factor(kind, size)

"""A codec's algorithm is a conversation: it asks for collectives and never sees a transport."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Flat = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Ask for the sum of `source` over all ranks in `out`; see `Transport.allreduce`."""

    source: Flat
    out: Flat
    finish: Callable[[Flat], None] | None = None


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Ask to send `sent[r]` elements to rank r and to get `received[r]` of it, in order."""

    source: Flat
    out: Flat
    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllGather:
    """Ask for `counts[r]` elements of every rank r in `out`, in order."""

    source: Flat
    out: Flat
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Yield:
    """Ask for nothing: let the engine look at its inbox between two slices of work."""


Collective = Reduce | AllToAll | AllGather
Step = Collective | Yield
Conversation = Generator[Step, None, None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Sum `source` into `out`, perhaps the same, over `size` ranks of which we are number `index`.

    `mean`: divide by the size. `scale` is what the result is multiplied by.
    """

    source: Flat
    out: Flat
    size: int
    index: int
    mean: bool
    scale: float = 1.0


class Codec(Protocol):
    """One way to sum an array over ranks. Stateless: one object serves all buckets."""

    def exchange(self, job: Exchange) -> Conversation:
        """Converse until `job.out` holds the result, with the same bits on every rank."""

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Bytes that one rank sends for n elements."""

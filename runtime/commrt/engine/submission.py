"""One rank's operation with its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from commrt.core.ids import Key
from commrt.engine.handle import Handle
from commrt.transports.base import Flat
from commrt.types import Request


@dataclass(slots=True)
class Submission:
    """What to move and where to.

    `sources` and `outs` are flat arrays; an out may be its source. An allgather has
    no outs: they are made when all ranks' rows are known. `restore` lists (target, array) pairs:
    an array's values are copied to its target, of any layout, before the handle completes.
    `request.name` of an unnamed one is filled in on acceptance. `neutral`: it stands in for a rank
    that has joined, and is not scaled.
    """

    request: Request
    sources: tuple[Flat, ...]
    outs: tuple[Flat, ...]
    handle: Handle
    restore: tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], ...] = ()
    submitted: float = field(default=0.0)
    neutral: bool = False

    @property
    def written(self) -> tuple[npt.NDArray[Any], ...]:
        """All memory that the operation writes."""
        return (*self.outs, *(target for target, _ in self.restore))

    @property
    def key(self) -> Key:
        """What it is matched by."""
        return self.request.set_id, self.request.name

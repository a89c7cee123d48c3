"""Subsets of the world."""

from __future__ import annotations

from collections.abc import Iterable

from commrt.errors import InitError
from commrt.types import WORLD


class ProcessSet:
    """Ranks that communicate among themselves. Give it to `init(process_sets=[…])` on all ranks.

    `ranks` are world ranks; after `init()` `process_set_id` is set.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = tuple(sorted({int(r) for r in ranks}))
        self.process_set_id: int | None = None

    def __repr__(self) -> str:
        return f"ProcessSet({list(self.ranks)}, id={self.process_set_id})"

    def id(self) -> int:
        """Return the id. Raises InitError for a set that was not given to `init()`."""
        if self.process_set_id is None:
            raise InitError(f"{self!r} was not given to init(process_sets=[…])")
        return self.process_set_id

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)


class WorldSet(ProcessSet):
    """The set of all ranks; its ranks are known after `init()`."""

    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = WORLD

"""Subsets of the world."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from commrt.errors import ArgumentError, InitError
from commrt.types import WORLD


class ProcessSet:
    """Ranks that communicate among themselves.

    Give it to `init(process_sets=[…])` or to `add_process_set()`, on all ranks of the job.
    `ranks` are world ranks; an mpi4py communicator stands for those of its members. Once it is
    registered, `process_set_id` is set.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        is_comm = hasattr(ranks_or_comm, "Get_group")
        members = _ranks_of(ranks_or_comm) if is_comm else ranks_or_comm
        try:
            self.ranks = tuple(sorted({operator.index(r) for r in members}))
        except TypeError:
            raise ArgumentError(f"a process set is of ranks, not {ranks_or_comm!r}") from None
        self.process_set_id: int | None = None
        self._me = -1

    def __repr__(self) -> str:
        return f"ProcessSet({list(self.ranks)}, id={self.process_set_id})"

    def attach(self, id: int | None, me: int = -1) -> None:
        """Note the id that the runtime has given it, and this process's world rank."""
        self.process_set_id = id
        self._me = me

    def id(self) -> int:
        """Return the id. Raises InitError for a set that is not registered."""
        if self.process_set_id is None:
            raise InitError(
                f"{self!r} is not registered; give it to init(process_sets=[…]) or call "
                "add_process_set() on all ranks"
            )
        return self.process_set_id

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def rank(self) -> int | None:
        """Return this process's number in the set; None if it is no member."""
        self.id()
        return self.ranks.index(self._me) if self._me in self.ranks else None

    def included(self) -> bool:
        """Tell whether this process is a member."""
        self.id()
        return self._me in self.ranks


class WorldSet(ProcessSet):
    """The set of all ranks; its ranks are known after `init()`."""

    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = WORLD


def _ranks_of(comm: Any) -> list[int]:
    from mpi4py import MPI

    group = comm.Get_group()
    return list(group.Translate_ranks(range(group.Get_size()), MPI.COMM_WORLD.Get_group()))

"""What commrun needs to know of an MPI launcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from commrun.hosts import Host


@dataclass(frozen=True, slots=True)
class Layout:
    """What a launcher is asked for. No `hosts`: all ranks on this machine.

    `forward` names variables that ranks on other hosts need from mpirun's environment.
    """

    np: int
    hosts: tuple[Host, ...] = ()
    crowded: bool = False
    forward: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


class Flavour(Protocol):
    """One family of mpirun. Pure: a layout in, words and variables out."""

    @property
    def name(self) -> str:
        """The family and its version, for people."""

    @property
    def rank_variables(self) -> tuple[str, str, str]:
        """Variables that give a process its rank, local rank and local size."""

    @property
    def shared_memory(self) -> tuple[str, ...]:
        """Variables, all of one meaning: in which directory a rank puts its shared memory."""

    def arguments(self, layout: Layout) -> tuple[str, ...]:
        """Return the words between mpirun and the program."""

    def variables(self, root: bool) -> dict[str, str]:
        """Return what mpirun's environment needs."""

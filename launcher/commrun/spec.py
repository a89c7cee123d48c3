"""What the user asked for."""

from __future__ import annotations

from dataclasses import dataclass


class UsageError(Exception):
    """What was asked can't be done; the message says what to change."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job as the command line gives it. `np` None: as many ranks as `hosts` has slots.

    `forward` holds `NAME` or `NAME=VALUE`; `mpi_args` are words for mpirun; times in seconds.
    """

    command: tuple[str, ...]
    np: int | None = None
    hosts: str = ""
    grace: float = 5.0
    start_timeout: float = 60.0
    forward: tuple[str, ...] = ()
    mpi_args: tuple[str, ...] = ()
    verbose: bool = False
    dry_run: bool = False

"""Keeps the background thread on one core, where the user wants that."""

from __future__ import annotations

import os
from collections.abc import Sequence

from commrt.errors import InitError
from commrt.types import Topology


def pin(cores: Sequence[int], here: Topology) -> None:
    """Keep the calling thread on the core of its local rank; no cores: leave it to the system.

    Raises InitError.
    """
    if not cores:
        return
    if len(cores) < here.local_size:
        raise InitError(
            f"COMMRT_AFFINITY names {len(cores)} core{'s' * (len(cores) > 1)}, but "
            f"{here.hosts[here.rank]} has {here.local_size} ranks: name one for each"
        )
    core, allowed = cores[here.local_rank], sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError):
        core_list = ", ".join(map(str, allowed))
        raise InitError(
            f"COMMRT_AFFINITY: the background thread of rank {here.rank} can't run on core {core}; "
            f"this process may use {core_list}"
        ) from None

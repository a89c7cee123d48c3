"""A rendezvous by MPI that can be given up: nothing blocks inside MPI."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from commrt.errors import InitError

_NAP = 0.0005


class MpiRendezvous:
    """Exchanges blobs over an mpi4py communicator. It calls `check` while waiting."""

    def __init__(self, comm: Any, timeout: float, check: Callable[[], None]) -> None:
        self._comm = comm
        self._timeout = timeout
        self._check = check

    def exchange(self, blob: bytes) -> list[bytes]:
        """Return the blobs of all ranks."""
        size = self._comm.Get_size()
        mine = np.array([len(blob)], np.int64)
        lengths = np.empty(size, np.int64)
        self.wait(self._comm.Iallgather(mine, lengths), "exchanging sizes")
        longest = int(lengths.max())
        padded = np.zeros(longest, np.uint8)
        padded[: len(blob)] = np.frombuffer(blob, np.uint8)
        everyone = np.empty((size, longest), np.uint8)
        self.wait(self._comm.Iallgather(padded, everyone), "exchanging introductions")
        return [everyone[r, : lengths[r]].tobytes() for r in range(size)]

    def wait(self, request: Any, what: str) -> None:
        """Drive an MPI request to its end with naps. Raises InitError after the time limit."""
        deadline = time.monotonic() + self._timeout
        while not request.Test():
            self._check()
            if time.monotonic() > deadline:
                raise InitError(
                    f"{what} with the other ranks took more than {self._timeout:.0f} s "
                    "(COMMRT_INIT_TIMEOUT). Did every rank call init()?"
                )
            time.sleep(_NAP)

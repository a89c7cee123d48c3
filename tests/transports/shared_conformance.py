"""The conformance checks in shared memory: a script for several ranks."""

from __future__ import annotations

import sys
import zlib
from typing import Any

from conformance import CHECKS, Numbers
from mpi4py import MPI

from commrt.control.mpi_rendezvous import MpiRendezvous
from commrt.engine.neighbours import Neighbours, share_memory
from commrt.transports.shared_memory import SharedTransport


class SharedParty:
    """One rank of a job of processes."""

    def __init__(self, comm: Any, spin: bool) -> None:
        self._comm = comm
        self.size, rank = comm.Get_size(), comm.Get_rank()
        self.numbers = Numbers()
        near = Neighbours(tuple(range(self.size)), rank, spin)
        found = share_memory(near, MpiRendezvous(comm, 60.0, lambda: None), lambda: None)
        assert isinstance(found, SharedTransport), found
        self.transport = found
        self.transports = {rank: found}

    def share(self, values: dict[int, bytes]) -> dict[int, bytes]:
        return {r: v for found in self._comm.allgather(values) for r, v in found.items()}

    def clean(self) -> bool:
        return True


def main(seeds: int) -> None:
    for spin in (True, False):
        party = SharedParty(MPI.COMM_WORLD, spin)
        for check in CHECKS:
            for seed in range(seeds):
                # Another seed for each case, the same in every process.
                check(party, zlib.crc32(f"{check.__name__} {spin} {seed}".encode()))
        party.transport.close(orderly=True)
    print("conforms", len(CHECKS))


main(int(sys.argv[1]))

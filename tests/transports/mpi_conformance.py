"""The conformance checks over MPI: a script for several ranks."""

from __future__ import annotations

import sys
import zlib
from typing import Any

from conformance import CHECKS, Numbers
from mpi4py import MPI

from commrt.transports.message import MessageTransport
from commrt.transports.mpi import MpiWire


class MpiParty:
    """One rank of a job of processes."""

    def __init__(self, comm: Any, small: int, segment: int) -> None:
        self._comm = comm
        self._wired = comm.Dup()
        self.size = comm.Get_size()
        self.numbers = Numbers()
        self.transport = MessageTransport(MpiWire(self._wired), small, segment)
        self.transports = {comm.Get_rank(): self.transport}

    def share(self, values: dict[int, bytes]) -> dict[int, bytes]:
        return {r: v for found in self._comm.allgather(values) for r, v in found.items()}

    def clean(self) -> bool:
        self._comm.Barrier()
        left = self._wired.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self._comm.Barrier()  # before others send again
        return not left


def main(seeds: int) -> None:
    for small, segment in ((64 << 10, 1 << 20), (0, 100)):
        party = MpiParty(MPI.COMM_WORLD, small, segment)
        for check in CHECKS:
            for seed in range(seeds):
                # Another seed for each case, the same in every process.
                check(party, zlib.crc32(f"{check.__name__} {segment} {seed}".encode()))
        party.transport.close(orderly=True)
    print("conforms", len(CHECKS))


main(int(sys.argv[1]))

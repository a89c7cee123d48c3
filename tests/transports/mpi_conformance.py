"""The conformance checks over MPI: a script for several ranks."""

from __future__ import annotations

import sys
from typing import Any

from conformance import CHECKS, OneRank, run_checks
from mpi4py import MPI

from commrt.transports.message import MessageTransport
from commrt.transports.mpi import MpiWire


class MpiParty(OneRank):
    """One rank, which sees what is left on the wire."""

    def __init__(self, comm: Any, small: int, segment: int) -> None:
        self._wired = comm.Dup()
        self.transport = MessageTransport(MpiWire(self._wired), small, segment)
        super().__init__(comm, self.transport)

    def clean(self) -> bool:
        self._comm.Barrier()
        left = self._wired.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self._comm.Barrier()  # before others send again
        return not left


def main(seeds: int) -> None:
    for small, segment in ((64 << 10, 1 << 20), (0, 100)):
        party = MpiParty(MPI.COMM_WORLD, small, segment)
        run_checks(party, segment, seeds)
        party.transport.close(orderly=True)
    print("conforms", len(CHECKS))


main(int(sys.argv[1]))

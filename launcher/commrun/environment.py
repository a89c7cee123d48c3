"""What variables mpirun and the ranks get, and the launcher's only reader of the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from commrun.directories import is_private
from commrun.spec import UsageError

CONNECT = "COMMRUN_CONNECT"
SECRET = "COMMRUN_SECRET"
RANK_FROM = "COMMRUN_RANK_FROM"
TMPDIR = "COMMRUN_TMPDIR"
"""TMPDIR as it was, or nothing: mpirun gets another one. Not for other hosts."""
FOR_SHIM = (CONNECT, SECRET, RANK_FROM)
"""What mpirun carries to the shims; no rank sees them."""

_FORWARDED = (
    "PATH", "PYTHON", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_", "COMMRT_", "HOROVOD_", "NCCL_",
    "CUDA_",
)  # fmt: skip
_OF_OUTER_JOB = ("PMIX_", "PRTE_", "OMPI_", "PMI_", "COMMRUN_")
_SET_BY_USERS = ("PMIX_MCA_", "PRTE_MCA_", "OMPI_MCA_", "OMPI_ALLOW_RUN_AS_ROOT")
_OUTER_MCA = ("OMPI_MCA_ess_", "OMPI_MCA_orte_", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine, the user and the variables that commrun was started with."""

    environ: Mapping[str, str]
    root: bool
    cores: int
    host: str
    python: str
    temporary: str


def surroundings() -> Surroundings:
    """Read them."""
    return Surroundings(
        environ=MappingProxyType(dict(os.environ)),
        root=os.geteuid() == 0,
        cores=len(os.sched_getaffinity(0)),
        host=os.uname().nodename,
        python=sys.executable,
        temporary=os.environ.get("TMPDIR", ""),
    )


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what mpirun inherits: all, less what ties this process to an outer MPI job."""
    if not any(name in environ for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")):
        return dict(environ)
    return {name: value for name, value in environ.items() if not _ties(name, value)}


def _ties(name: str, value: str) -> bool:
    if name.startswith(_SET_BY_USERS):
        return name.startswith(_OUTER_MCA) or is_private(value)
    return name.startswith(_OF_OUTER_JOB)


def with_temporary(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the variables by which mpirun, but no rank, keeps its files in `directory`.

    Not by its own parameters: they would override, or clash with, what a file of theirs sets.
    """
    return {"TMPDIR": directory, TMPDIR: environ.get("TMPDIR", "")}


def path_with(python: str, environ: Mapping[str, str]) -> str:
    """Return PATH with the interpreter's directory in front, where the MPI wheel puts mpirun."""
    own = os.path.dirname(python)
    words = [own, *environ.get("PATH", os.defpath).split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(words))


def forwarded(environ: Mapping[str, str], wishes: Iterable[str], remote: bool) -> dict[str, str]:
    """Return what each rank gets besides its host's environment.

    The allow-list only if ranks run on other hosts. Raises UsageError if a wish names an unset
    variable.
    """
    chosen = {n: v for n, v in environ.items() if remote and n.startswith(_FORWARDED)}
    for wish in wishes:
        name, equals, value = wish.partition("=")
        if not name or (not equals and name not in environ):
            raise UsageError(f"-x {wish}: there is no such variable")
        chosen[name] = value if equals else environ[name]
    return chosen


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one rank sits, as its shim reports it.

    `cores` are those the rank may use, `address` is its host's. `port` is free there for the job
    to use, on rank 0; elsewhere 0.
    """

    rank: int
    local_rank: int
    local_size: int
    host: str
    cores: int
    address: str
    port: int


def rank_variables(seat: Seat, size: int, head: Seat) -> dict[str, str]:
    """Return the variables that torch.distributed's `env://` reads; `head` is rank 0's seat."""
    return {
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_size),
        "MASTER_ADDR": head.address,
        "MASTER_PORT": str(head.port),
    }


_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""glibc's malloc otherwise gives autograd's gradients back to the kernel in each step, and touching
them again in the next costs more than moving them to the peers."""


def rank_defaults(seat: Seat) -> dict[str, str]:
    """Return what a rank gets only where the variable is not set."""
    defaults = {"PYTHONUNBUFFERED": "1", **_KEEP_MEMORY}
    if seat.local_size > 1:
        defaults["OMP_NUM_THREADS"] = str(max(1, seat.cores // seat.local_size))
    return defaults

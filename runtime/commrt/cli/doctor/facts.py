"""What `commrt doctor` looks at."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from importlib import metadata

from commrt.cli.bench.machine import Machine, this_machine
from commrt.cli.doctor.mpi import Library, Mpirun, find_library, find_mpirun
from commrt.config import LauncherEnv, Settings, read_settings
from commrt.control.interfaces import own_addresses
from commrt.errors import InitError

NEEDED = ("numpy", "mpi4py", "pyzmq", "msgspec", "ml-dtypes", "cloudpickle")
EXTRA = ("torch",)

UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are bytes. `shared_memory`: size and free space of /dev/shm, or None.

    `infiniband`: are there devices that need locked memory?
    """

    shared_memory: tuple[int, int] | None
    open_files: tuple[int, int]
    locked_memory: int
    infiniband: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found. A version is '' where nothing is; a text stands for what can't be read."""

    packages: dict[str, str]
    machine: Machine
    limits: Limits
    library: Library
    mpirun: Mpirun
    launcher: LauncherEnv | str
    addresses: tuple[str, ...]
    settings: Settings | str


def gather() -> Facts:
    """Look at this machine and this process. Takes as long as `mpirun --version`."""
    launcher: LauncherEnv | str
    settings: Settings | str
    try:
        launcher = LauncherEnv.from_environment()
    except InitError as exc:
        launcher = str(exc)
    try:
        settings = read_settings()
    except InitError as exc:
        settings = str(exc)
    return Facts(
        packages={name: _installed(name) for name in (*NEEDED, *EXTRA)},
        machine=this_machine(),
        limits=_limits(),
        library=find_library(),
        mpirun=find_mpirun(),
        launcher=launcher,
        addresses=own_addresses(),
        settings=settings,
    )


def _limits() -> Limits:
    try:
        disk = os.statvfs("/dev/shm")
        shm = (disk.f_frsize * disk.f_blocks, disk.f_frsize * disk.f_bavail)
    except OSError:
        shm = None
    return Limits(
        shared_memory=shm,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
        locked_memory=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        infiniband=_holds_something("/sys/class/infiniband"),
    )


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _holds_something(directory: str) -> bool:
    try:
        return bool(os.listdir(directory))
    except OSError:
        return False

"""Where a figure comes from: processor, memory, versions."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from commrt.version import __version__

_PACKAGES = ("numpy", "mpi4py", "pyzmq", "msgspec", "torch")


@dataclass(frozen=True, slots=True)
class Machine:
    """One host. `cores` are those that this process may use; `memory` is in bytes."""

    cpu: str
    cores: int
    memory: int
    kernel: str
    architecture: str


def this_machine() -> Machine:
    """Describe the host of this process."""
    return Machine(
        cpu=_value("/proc/cpuinfo", "model name"),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        kernel=platform.release(),
        architecture=platform.machine(),
    )


def versions(mpi: Any) -> dict[str, str]:
    """Return versions by name, '' for what is not there. `mpi`: the module mpi4py.MPI or None."""
    library = mpi.Get_library_version() if mpi is not None else ""
    return {
        "commrt": __version__,
        "python": platform.python_version(),
        **{name: _installed(name) for name in _PACKAGES},
        "mpi": library.strip("\0\n ").split("\n")[0].split(",")[0],
    }


def _value(path: str, key: str) -> str:
    with open(path) as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""

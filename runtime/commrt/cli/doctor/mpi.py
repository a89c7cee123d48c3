"""Finds the MPI library and its launcher without starting MPI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

_PATIENCE = 60.0

# In a process of its own: a library that crashes when it is loaded ends only that one.
_ASK = """
import json, re
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    path = re.search(r"(/.*/libmpi[^/\\n]*)", maps.read())
print(json.dumps([MPI.Get_library_version(), path[1] if path else ""]))
"""


@dataclass(frozen=True, slots=True)
class Library:
    """The MPI library that mpi4py loads; without one `version` is '' and `error` says why."""

    version: str
    path: str
    error: str

    @property
    def open_mpi(self) -> bool:
        """Is it Open MPI?"""
        return self.version.startswith("Open MPI")


@dataclass(frozen=True, slots=True)
class Mpirun:
    """The `mpirun` next to the interpreter, or else the first in PATH; '' if there is none.

    One that does not work has no `version`, but an `error`.
    """

    path: str
    version: str
    error: str

    @property
    def open_mpi(self) -> bool:
        """Is it Open MPI's?"""
        return "Open MPI" in self.version or "OpenRTE" in self.version


def find_library() -> Library:
    """Ask a process of its own to load the library."""
    try:
        asked = _run([sys.executable, "-c", _ASK])
    except OSError as exc:
        return Library("", "", str(exc))
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines()
        return Library("", "", lines[-1] if lines else f"exit status {asked.returncode}")
    version, path = json.loads(asked.stdout.splitlines()[-1])
    return Library(_first_words(version), path, "")


def find_mpirun() -> Mpirun:
    """Look where `commrun` looks."""
    own = os.path.dirname(sys.executable)
    path = shutil.which("mpirun", path=own) or shutil.which("mpirun")
    if path is None:
        return Mpirun("", "", "")
    try:
        asked = _run([path, "--version"])
    except OSError as exc:
        return Mpirun(path, "", str(exc))
    said = (asked.stdout or asked.stderr).strip().splitlines() or [""]
    if asked.returncode != 0:
        return Mpirun(path, "", said[-1] or f"exit status {asked.returncode}")
    return Mpirun(path, said[0], "")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Raises OSError, of which TimeoutError is one."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer in {_PATIENCE:.0f} s") from None


def _first_words(version: str) -> str:
    """Shorten what a library says of itself."""
    return version.strip("\0\n ").split("\n")[0].split(",")[0]

"""Network namespaces that belong to a process, and end with it or at the next one's start.

Their names, and those of their directories, tell the owner: its pid namespace, its pid, and when it
started, since numbers of processes come again.
"""

from __future__ import annotations

import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

DIRECTORIES = (Path("/tmp"), Path("/dev/shm"))
"""Where a lab has a directory of its name: for files, and for memory that ranks share."""

_SPACES = Path("/var/run/netns")  # iproute2's
_NAME = re.compile(r"(commrt-lab-([0-9a-f]+)-(\d+)-(\d+)-\d+)(?:-(?:switch|h\d+))?")
_PATIENCE = 10.0


class LabError(Exception):
    """The machine refused something that a lab needs."""


PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of every login: this Python's directory, where its mpirun is, comes first."""


def tool(name: str) -> str:
    """Return a tool's path, if it has one: root's tools need not be in the caller's PATH."""
    return shutil.which(name, path=PATH) or name


def call(argv: Sequence[str], script: str = "") -> None:
    """Run a tool out of reach of the terminal's Ctrl-C. Raises LabError with what it said."""
    try:
        done = subprocess.run(
            [tool(argv[0]), *argv[1:]],
            input=script,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
    except OSError as exc:
        raise LabError(f"{argv[0]}: {exc.strerror}") from exc
    if done.returncode != 0:
        said = "; ".join(done.stderr.splitlines()) or f"exit status {done.returncode}"
        raise LabError(f"`{' '.join(argv)}`: {said}")


def claim() -> str:
    """Choose a name that no other lab has, and make the first of its directories."""
    pid = os.getpid()
    for number in itertools.count():
        name = f"commrt-lab-{_pid_space():x}-{pid}-{_start_of(pid)}-{number}"
        try:
            (DIRECTORIES[0] / name).mkdir(0o700)
        except FileExistsError:
            continue
        return name
    raise AssertionError("unreachable")


def spaces_of(name: str) -> list[str]:
    """Return the namespaces of the lab `name`."""
    return [space for space in _entries(_SPACES) if _lab_of(space) == name]


def end_processes(spaces: Iterable[str]) -> None:
    """Kill everything that runs in these namespaces. Raises LabError if something goes on."""
    networks = {network for s in spaces if (network := _identity(_SPACES / s)) is not None}
    deadline = time.monotonic() + _PATIENCE
    while pids := _processes(networks):
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(pids)} do not end although they were killed")
        for pid in pids:
            _kill(pid, networks)


def remove(name: str) -> None:
    """Remove the lab `name` with all that runs in it. Does nothing for what is not there."""
    spaces = spaces_of(name)
    try:
        end_processes(spaces)
    finally:
        for space in spaces:
            _remove_space(space)
        for parent in DIRECTORIES:
            shutil.rmtree(parent / name, ignore_errors=True)


def remove_stale() -> None:
    """Remove the labs whose owner is dead. Leaves those of other pid namespaces: who knows?"""
    for place in (_SPACES, *DIRECTORIES):
        for name in {lab for entry in _entries(place) if (lab := _lab_of(entry))}:
            if _is_stale(name):
                remove(name)


def _is_stale(name: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None or int(match[2], 16) != _pid_space():
        return False
    return _start_of(int(match[3])) != int(match[4])


def _lab_of(entry: str) -> str | None:
    match = _NAME.fullmatch(entry)
    return match[1] if match else None


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _pid_space() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _processes(networks: set[tuple[int, int]]) -> set[int]:
    pids = {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}
    return {p for p in pids if p != os.getpid() and _identity(_network(p)) in networks}


def _network(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net")


def _kill(pid: int, networks: set[tuple[int, int]]) -> None:
    """Kill a process and wait until it is dead, if it is still one of these networks."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _identity(_network(pid)) in networks:  # the number may be another's by now
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(1000)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _remove_space(space: str) -> None:
    try:
        call(["ip", "netns", "del", space])
    except LabError:
        if (_SPACES / space).exists():  # else another start was quicker
            raise

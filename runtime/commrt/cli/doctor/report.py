"""Prints what `commrt doctor` found."""

from __future__ import annotations

import dataclasses
import platform
import socket
import sys
from collections.abc import Iterator

from commrt.cli.doctor.advice import Problem, problems
from commrt.cli.doctor.facts import UNLIMITED, Facts, gather
from commrt.config import Config, Settings, show, variable_of
from commrt.version import __version__


def run() -> int:
    """Look, print, and return the exit status: 1 if something is broken."""
    facts = gather()
    found = problems(facts)
    for line in lines(facts, found):
        print(line)
    return 1 if any(problem.broken for problem in found) else 0


def lines(facts: Facts, found: list[Problem]) -> Iterator[str]:
    """Write the report."""
    yield f"commrt {__version__}, Python {platform.python_version()} ({sys.executable})"
    for title, rows in (
        ("packages", _packages(facts)),
        ("machine", _machine(facts)),
        ("MPI", _mpi(facts)),
        ("network", _network(facts)),
    ):
        yield f"\n{title}"
        for name, value in rows:
            yield f"  {name:<16}{value}"
    yield "\nsettings"
    if isinstance(facts.settings, Settings):
        yield from _settings(facts.settings)
    else:
        yield "  can't be read"
    yield "\nproblems" if found else "\nno problems"
    for problem in found:
        yield f"  {'BROKEN: ' if problem.broken else ''}{problem.text}"
        yield f"    -> {problem.advice}"


def _packages(facts: Facts) -> Iterator[tuple[str, str]]:
    for name, version in facts.packages.items():
        yield name, version or "not installed"


def _machine(facts: Facts) -> Iterator[tuple[str, str]]:
    machine, limits = facts.machine, facts.limits
    yield "host", f"{socket.gethostname()}, Linux {machine.kernel} {machine.architecture}"
    yield "processor", f"{machine.cpu or 'unknown'}, {machine.cores} cores for this process"
    yield "memory", _size(machine.memory)
    shm = limits.shared_memory
    yield "/dev/shm", "missing" if shm is None else f"{_size(shm[0])}, {_size(shm[1])} of it free"
    yield "open files", " of at most ".join(map(_limit, limits.open_files))
    locked = limits.locked_memory
    yield "locked memory", "unlimited" if locked == UNLIMITED else _size(locked)


def _mpi(facts: Facts) -> Iterator[tuple[str, str]]:
    library, mpirun, launcher = facts.library, facts.mpirun, facts.launcher
    yield "library", f"{library.version} ({library.path})" if library.version else "none"
    yield "mpirun", f"{mpirun.version or 'broken'} ({mpirun.path})" if mpirun.path else "none"
    if isinstance(launcher, str):
        yield "started by", "unknown"
    elif launcher.family:
        shim = ", under commrun" if launcher.shim else ""
        yield "started by", f"{launcher.family}: rank {launcher.rank} of {launcher.size}{shim}"
    else:
        yield "started by", "no launcher: one rank of one"


def _network(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "interfaces", ", ".join(name for _, name in socket.if_nameindex()) or "none"
    yield "addresses", ", ".join(facts.addresses) or "none"
    if facts.limits.infiniband:
        yield "InfiniBand", "present"


def _settings(settings: Settings) -> Iterator[str]:
    for f in dataclasses.fields(Config):
        unit = f.metadata["unit"]
        value = show(getattr(settings.config, f.name), unit) or "none"
        default = show(f.default, unit) or "none"
        source = settings.sources.get(f.name)
        origin = f"from {source}; default: {default}" if source else "default"
        yield f"  {variable_of(f.name):<24}{value:<16}{origin}"
        yield f"    {f.metadata['help']}"


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)


def _size(nbytes: int) -> str:
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):.1f} GiB"
    return f"{nbytes / (1 << 20):.0f} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"

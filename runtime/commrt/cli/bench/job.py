"""Runs one benchmark on all ranks: starts the runtime, prints, writes the JSON file."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import commrt
from commrt import api
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Ratio, Series
from commrt.cli.bench.machine import Machine, this_machine, versions
from commrt.cli.bench.options import UsageError
from commrt.config import Config, LauncherEnv
from commrt.types import Topology

_ALONE = """\
# one rank, so nothing moves between processes: start several with
#     commrun -np 2 commrt bench ..."""
_NO_LAUNCHER = "# no launcher started this process"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The JSON file. Rank 0's machine; `settings` are commrt's, `options` the benchmark's."""

    command: str
    date: str
    benchmark: str
    ranks: int
    hosts: tuple[str, ...]
    machine: Machine
    versions: dict[str, str]
    options: Any
    settings: Config
    series: tuple[Series, ...]
    ratios: tuple[Ratio, ...]
    failures: tuple[str, ...]


def run(name: str, options: Any, path: str | None) -> int:
    """Run benchmark `name`; return the exit status: 1 if something promised was not kept.

    The runtime ends with the process, so that other ranks learn of an exception.
    """
    commrt.init()
    try:
        return _run(name, options, Path(path) if path else None)
    except UsageError as exc:
        return _refuse(str(exc))
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        return _refuse("this needs torch: pip install commrt[torch]")


def _run(name: str, options: Any, path: Path | None) -> int:
    runtime = api.session().runtime
    here = runtime.topology
    path = path if here.rank == 0 else None
    if path is not None and not path.absolute().parent.is_dir():  # before long work, not after
        raise FileNotFoundError(f"--json {path}: there is no such directory")
    console = Console(here.rank == 0)
    known = versions(runtime.mpi.MPI)
    _introduce(console, name, here, known)
    findings: Findings = importlib.import_module(f"commrt.cli.bench.{name}").run(options, console)
    for failure in findings.failures:
        console.say(f"# FAILED: {failure}")
    if path is not None:
        record = Record(
            shlex.join(sys.argv), datetime.datetime.now(datetime.timezone.utc).isoformat(), name,
            here.size, here.hosts, this_machine(), known, options, Config.from_environment(),
            findings.series, findings.ratios, findings.failures,
        )  # fmt: skip
        path.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")
    return 1 if findings.failures else 0


def _refuse(why: str) -> int:
    if commrt.rank() == 0:
        print(f"commrt bench: {why}", file=sys.stderr)
    return 2


def _introduce(console: Console, name: str, here: Topology, known: dict[str, str]) -> None:
    machine = this_machine()
    hosts = sorted(set(here.hosts))
    versions = ", ".join(f"{what} {which}" for what, which in known.items() if which)
    console.say(f"# commrt bench {name}: {here.size} ranks on {', '.join(hosts)}")
    console.say(f"# {versions}")
    console.say(f"# {machine.cpu or machine.architecture}, {machine.cores} cores, "
                f"{machine.memory / 2**30:.0f} GiB, Linux {machine.kernel}")  # fmt: skip
    if not LauncherEnv.from_environment().family:
        console.say(_NO_LAUNCHER)
    if here.size == 1:
        console.say(_ALONE)

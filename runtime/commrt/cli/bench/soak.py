"""`commrt bench soak`: whether memory and descriptors stay flat over many operations."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Series, series
from commrt.cli.bench.options import Soak
from commrt.cli.bench.procfs import descriptors, memory
from commrt.cli.bench.rounds import settle
from commrt.cli.bench.table import Column

_FIRST = 1000
_NAMES = 100
_GROWTH = 5e6
_COLUMNS = (
    Column("names", "", 9), Column("operations", "", 11), Column("rank", "", 5),
    Column("memory", "MB", 9), Column("growth", "MB", 9), Column("descriptors", "", 12),
    Column("time", "us", 9),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """One rank's state after so many operations. `seconds`: mean of one since the last mark."""

    operations: int
    memory: int
    descriptors: int
    seconds: float


def run(options: Soak, console: Console) -> Findings:
    """Run named operations, then unnamed ones; print what each rank held on the way."""
    stops = marks_at(options.operations, options.rounds)
    console.say(
        f"# blocking allreduces of 256 bytes, named (by {_NAMES} names in turn) and unnamed\n"
        f"# growth: since {stops[0]} operations; promised: {_GROWTH / 1e6:g} MB and no descriptor "
        f"more\n#\n{table.header(_COLUMNS)}"
    )
    found: list[Series] = []
    failures: list[str] = []
    for kind, name_of in _NAMINGS.items():
        marks = _soak(stops, name_of, console)
        for rank, own in enumerate(commrt.allgather_object(marks)):
            for mark in own:
                console.say(table.row(_COLUMNS, _cells(kind, rank, mark, own[0])))
            found.append(series(f"rank {rank}", f"memory, {kind}", "B", (m.memory for m in own)))
            failures += failures_of(f"rank {rank}, {kind}", own)
    return Findings(tuple(found), failures=tuple(failures))


def marks_at(operations: int, marks: int) -> list[int]:
    """Return where to look: after the first 1,000 operations, and `marks` times until the end."""
    first = min(_FIRST, max(1, operations // 10))
    stops = {first + (operations - first) * i // marks for i in range(marks + 1)}
    return sorted(stops)


def failures_of(who: str, marks: Sequence[Mark]) -> list[str]:
    """Say what grew between the first mark and the last."""
    grown = (marks[-1].memory - marks[0].memory) / 1e6
    more = marks[-1].descriptors - marks[0].descriptors
    failures = []
    if grown > _GROWTH / 1e6:
        failures.append(f"{who}: memory grew by {grown:.1f} MB")
    if more > 0:
        failures.append(f"{who}: {more} more file descriptors")
    return failures


def _soak(
    stops: Sequence[int], name_of: Callable[[int], str | None], console: Console
) -> list[Mark]:
    array = np.zeros(64, np.float32)
    marks = []
    done = 0
    for stop in stops:
        console.progress(f"{done} operations")
        settle()
        start = time.perf_counter()
        for i in range(done, stop):
            commrt.allreduce_(array, name=name_of(i))
        seconds = (time.perf_counter() - start) / (stop - done)
        done = stop
        gc.collect()
        marks.append(Mark(done, memory(), descriptors(), seconds))
    return marks


def _cells(kind: str, rank: int, mark: Mark, first: Mark) -> list[table.Cell]:
    growth = (mark.memory - first.memory) / 1e6
    return [kind, mark.operations, rank, mark.memory / 1e6, growth, mark.descriptors,
            1e6 * mark.seconds]  # fmt: skip


_NAMINGS: dict[str, Callable[[int], str | None]] = {
    "named": lambda i: f"soak.{i % _NAMES}",
    "unnamed": lambda i: None,
}

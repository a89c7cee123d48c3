"""`commrt bench idle`: what the runtime costs while nothing moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Series, series
from commrt.cli.bench.options import Idle
from commrt.cli.bench.procfs import usage
from commrt.cli.bench.rounds import settle
from commrt.cli.bench.table import Column

_OPERATIONS = 1000
_COLUMNS = (
    Column("while", "", 24), Column("rank", "", 5), Column("core", "%", 8),
    Column("at most", "%", 8), Column("wake-ups", "1/s", 9), Column("packets", "1/s", 9),
    Column("verdict", "", 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """A way of doing nothing for `seconds`. `limit`: percent of a core that it may cost."""

    name: str
    limit: float
    prepare: Callable[[], None]
    rest: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Share:
    """One rank over one measurement: share of a core in percent, events per second."""

    core: float
    wakeups: float
    packets: float


def run(options: Idle, console: Console) -> Findings:
    """Measure and print, phase by phase."""
    console.say(
        f"# {options.rounds} rounds of {options.seconds:g} s; core: user and system time of all "
        "threads; wake-ups: of all threads\n"
        "# packets: received on all interfaces of the rank's host, whoever they are for\n#\n"
        + table.header(_COLUMNS)
    )
    found: list[Series] = []
    failures: list[str] = []
    for phase in _phases():
        console.progress(phase.name)
        phase.prepare()
        rounds = [_over_ranks(phase, options.seconds) for _ in range(options.rounds)]
        for rank, shares in enumerate(zip(*rounds, strict=True)):
            core = series(f"rank {rank}", phase.name, "%", (share.core for share in shares))
            found.append(core)
            over = core.median > phase.limit
            if over:
                failures.append(f"rank {rank}, {phase.name}: {core.median:.2f} % of a core")
            cells = [phase.name, rank, core.median, phase.limit, median(s.wakeups for s in shares),
                     median(s.packets for s in shares), "OVER" if over else "ok"]  # fmt: skip
            console.say(table.row(_COLUMNS, cells))
    return Findings(tuple(found), failures=tuple(failures))


def _phases() -> list[Phase]:
    phases = [
        Phase("idle after init()", 1.0, lambda: None, time.sleep),
        Phase(f"idle after {_OPERATIONS} op.s", 1.0, _work, time.sleep),
    ]
    if commrt.size() > 1:
        phases.append(Phase("the last rank is late", 2.0, lambda: None, _await_last_rank))
    return phases


def _work() -> None:
    array = np.zeros(1024, np.float32)
    for _ in range(_OPERATIONS):
        commrt.allreduce_(array, name="idle.work")


def _await_last_rank(seconds: float) -> None:
    if commrt.rank() == commrt.size() - 1:
        time.sleep(seconds)
    commrt.allreduce_(np.zeros(1024, np.float32), name="idle.late")


def _over_ranks(phase: Phase, seconds: float) -> list[Share]:
    """Return what every rank used, in rank order."""
    settle()
    before = usage()
    phase.rest(seconds)
    after = usage()
    elapsed = after.clock - before.clock
    share = Share(
        100 * (after.processor - before.processor) / elapsed,
        (after.wakeups - before.wakeups) / elapsed,
        (after.packets - before.packets) / elapsed,
    )
    return commrt.allgather_object(share)

"""`commrt bench latency`: how long one small, blocking, named allreduce takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Series, fastest, quantile, ratio, series
from commrt.cli.bench.options import Latency
from commrt.cli.bench.peers import Array, sides
from commrt.cli.bench.rounds import interleave, settle
from commrt.cli.bench.table import Column

_SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_COLUMNS = (
    Column("side", "", 16),
    *(Column(name, "us") for name, _ in _SHARES),
    Column("p50 of rounds", "us", 20),
)


def run(options: Latency, console: Console) -> Findings:
    """Measure and print."""
    array = np.zeros(max(1, options.nbytes // 4), np.float32)
    console.say(
        f"# {array.nbytes} bytes (float32, sum), {options.rounds} rounds of {options.iterations} "
        f"operations after {_warm_up(options.iterations)} that do not count\n"
        "# quantiles over all ranks' operations, then the median of the rounds\n#"
    )
    with sides(options.peer) as opened:
        measured = interleave(
            {side.name: partial(_samples, side.summing(array), options.iterations)
             for side in opened},
            options.rounds, settle, console.progress,
        )  # fmt: skip
    figures = {side: _quantiles(side, rounds) for side, rounds in measured.items()}
    console.say(table.header(_COLUMNS))
    for side, found in figures.items():
        spread = f"{table.number(found[0].low)} - {table.number(found[0].high)}"
        console.say(table.row(_COLUMNS, [side, *(f.median for f in found), spread]))
    ours, *theirs = (found[0] for found in figures.values())
    ratios = [ratio("time (p50)", ours, fastest(theirs))] if theirs else []
    for one in ratios:
        console.say(table.sentence(one))
    return Findings(tuple(f for found in figures.values() for f in found), tuple(ratios))


def _samples(run: Callable[[], Array], iterations: int) -> Array:
    """Return the seconds of each call."""
    for _ in range(_warm_up(iterations)):
        run()
    clock = time.perf_counter
    times = np.empty(iterations + 1)
    times[0] = clock()
    for i in range(1, iterations + 1):
        run()
        times[i] = clock()
    return np.diff(times)


def _quantiles(side: str, rounds: list[Array]) -> list[Series]:
    """Return p50, p90 and p99 in microseconds, over the operations of all ranks."""
    pooled = [np.sort(commrt.allgather(times)).tolist() for times in rounds]
    return [
        series(side, name, "us", (1e6 * quantile(times, share) for times in pooled))
        for name, share in _SHARES
    ]


def _warm_up(iterations: int) -> int:
    return min(100, 1 + iterations // 10)

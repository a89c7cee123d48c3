"""`commrt bench hooks`: what commrt's hooks and `step()` cost for each parameter."""

from __future__ import annotations

import torch

from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, series
from commrt.cli.bench.options import Hooks
from commrt.cli.bench.table import Column
from commrt.cli.bench.training import Sums, alone, costs, ours, run_forward

_ELEMENTS = 16
_COLUMNS = (
    Column("figure", "", 30), Column("cost", "us/param.", 10), Column("lowest", "us/param.", 10),
    Column("highest", "us/param.", 10),
)  # fmt: skip


def run(options: Hooks, console: Console) -> Findings:
    """Measure and print."""
    torch.set_num_threads(1)
    n = options.parameters
    console.say(
        f"# {n} parameters of {_ELEMENTS} values; {options.rounds} rounds of {options.iterations} "
        "steps, of which the median counts\n"
        "# cost: backward(), step(), zero_grad() under DistributedOptimizer (SGD, foreach), less\n"
        "# the same under the bare optimizer, without what the thread waited for commrt;\n"
        "# by the clock, and by the processor time of the thread that calls them\n#"
    )
    shapes = [(_ELEMENTS,)] * n
    trainees = [alone(Sums(shapes), run_forward), ours(Sums(shapes), run_forward)]
    bare, wrapped = costs(trainees, options.iterations, options.rounds, console).values()
    pairs = list(zip(bare, wrapped, strict=True))
    found = (
        series("commrt", "clock, waiting excluded", "us",
               (1e6 * (w.busy - b.busy) / n for b, w in pairs)),
        series("commrt", "processor time", "us",
               (1e6 * (w.processor - b.processor) / n for b, w in pairs)),
        series("commrt", "waited", "us", (1e6 * w.waited / n for w in wrapped)),
        series("alone", "clock", "us", (1e6 * b.finish / n for b in bare)),
    )  # fmt: skip
    console.say(table.header(_COLUMNS))
    for one in found:
        label = f"{one.side}: {one.what}"
        console.say(table.row(_COLUMNS, [label, one.median, one.low, one.high]))
    return Findings(found)

"""`commrt bench step`: a whole training step, and how much of it is communication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import commrt
from commrt.cli.bench import gloo, table
from commrt.cli.bench.console import Console
from commrt.cli.bench.explain import explain
from commrt.cli.bench.figures import Findings, Series, ratio, series, speed_ratio
from commrt.cli.bench.options import Step, UsageError
from commrt.cli.bench.table import Column
from commrt.cli.bench.training import Cost, Loss, alone, best_ddp, costs, in_step, ours
from commrt.cli.resnet import resnet

_SHRINKS = 32
"""How much smaller the last layer's image is than the first's."""

_COLUMNS = (
    Column("side", "", 16), Column("step", "ms"), Column("lowest", "ms"), Column("highest", "ms"),
    Column("exposed", "ms"), Column("exposed", "%", 8), Column("waited", "ms"),
)  # fmt: skip


def run(options: Step, console: Console) -> Findings:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.batch * math.ceil(options.image / _SHRINKS) ** 2 < 2:
        raise UsageError("batch normalization needs two values: a larger --batch or --image")
    console.say(
        f"# {options.name}, {options.batch} images of {options.image}x{options.image} on each "
        f"rank, 1 thread, SGD (foreach)\n# {options.rounds} rounds of {options.iterations} "
        "steps, of which the median counts\n"
        "# alone: the same step without communication, on all ranks at once\n"
        "# in step: alone, but for a barrier after backward: a step is as long as the slowest "
        "rank's\n"
        "# exposed: step less step alone; waited: in calls of commrt (stats().exposed_seconds)\n#"
    )
    make, loss = partial(resnet, options.name), _loss(options)
    with nullcontext() if options.peer is None else gloo.group():
        trainees = [side(make(), loss) for side in (ours, alone, in_step)]
        trainees += [ours(make(), loss, size) for size in options.buckets]
        if options.peer is not None:
            trainees.append(best_ddp(make, loss, console))
        for step in range(options.settle):
            console.progress(f"step {step + 1} of {options.settle} before the first round")
            trainees[0].finish(trainees[0].forward())
        measured = costs(trainees, options.iterations, options.rounds, console)
        findings = _report(measured, console)
        if options.explain:
            explain(trainees[0], console)
    return findings


def _loss(options: Step) -> Loss:
    """Return what runs a module forward on this rank's own images."""
    generator = torch.Generator().manual_seed(commrt.rank())
    images = torch.rand(options.batch, 3, options.image, options.image, generator=generator)
    labels = torch.randint(1000, (options.batch,), generator=generator)

    def forward(module: nn.Module) -> Tensor:
        return functional.cross_entropy(module(images), labels)

    return forward


def _report(measured: Mapping[str, Sequence[Cost]], console: Console) -> Findings:
    steps = {name: series(name, "step", "s", (c.step for c in found))
             for name, found in measured.items()}  # fmt: skip
    base = steps["alone"]
    waited = series("commrt", "waited", "s", (cost.waited for cost in measured["commrt"]))
    theirs = [step for name, step in steps.items() if name.startswith("DDP")]
    fixed = [step for name, step in steps.items() if name.endswith("MiB") and step not in theirs]
    hidden = [exposed(step, base) for step in (steps["commrt"], *theirs)]
    console.say(table.header(_COLUMNS))
    for name, step in steps.items():
        cells: list[table.Cell] = [1e3 * step.median, 1e3 * step.low, 1e3 * step.high]
        found = next((e for e in hidden if e.side == name), None)
        cells += (
            ["", ""] if found is None else [1e3 * found.median, 100 * found.median / step.median]
        )
        cells.append(1e3 * waited.median if name == "commrt" else "")
        console.say(table.row(_COLUMNS, [name, *cells]))
    ratios = [
        ratio("time of a step", steps["commrt"], steps[name]) for name in ("alone", "in step")
    ]
    ratios += [speed_ratio("speed of a step", steps["commrt"], step) for step in theirs]
    if fixed:
        best = min(fixed, key=lambda step: step.median)
        ratios.append(ratio("time of a step, with the best of fixed sizes", steps["commrt"], best))
    for one in ratios:
        console.say(table.sentence(one))
    return Findings((*steps.values(), *hidden, waited), tuple(ratios))


def exposed(step: Series, base: Series) -> Series:
    """Return how much longer a step took than the step alone of the same round."""
    rounds = (with_it - without for with_it, without in zip(step.rounds, base.rounds, strict=True))
    return series(step.side, "exposed", "s", rounds)

"""`commrt bench model --hooks`: the gradients go through autograd, hooks and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch

from commrt.cli.bench import gloo
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Series, series
from commrt.cli.bench.options import Model, UsageError
from commrt.cli.bench.training import Sums, best_ddp, costs, ours, run_forward
from commrt.cli.models import Shape


def with_hooks(options: Model, shapes: Sequence[Shape], console: Console) -> list[Series]:
    """Return the times of backward and step, ours first."""
    if options.peer == "mpi":
        raise UsageError("--hooks compares with DDP: --peer ddp")
    torch.set_num_threads(1)
    console.say("# time: backward() of the sum of all parameters, step() and zero_grad() (SGD),\n"
                "# of a round the median")  # fmt: skip
    make = partial(Sums, shapes)
    with nullcontext() if options.peer is None else gloo.group():
        trainees = [ours(make(), run_forward)]
        if options.peer is not None:
            trainees.append(best_ddp(make, run_forward, console))
        measured = costs(trainees, options.iterations, options.rounds, console)
    return [
        series(name, "time", "s", (cost.finish for cost in found))
        for name, found in measured.items()
    ]

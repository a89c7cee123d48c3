"""`commrt bench model`: how long the gradients of a known model take, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from math import prod

import numpy as np

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Series, fastest, series, speed_ratio
from commrt.cli.bench.options import Model, UsageError
from commrt.cli.bench.peers import Array, Ours, sides
from commrt.cli.bench.rounds import interleave, mean_over_ranks, seconds_each, settle
from commrt.cli.bench.table import Column
from commrt.cli.models import Shape, gradient_shapes
from commrt.config import Config
from commrt.core.bucketing import BucketPolicy, policy_of
from commrt.core.chunks import cut
from commrt.core.perf import algbw

_ITEM = 4
_PEER_BUCKET = 25 << 20
_COLUMNS = (
    Column("side", "", 16), Column("time", "ms"), Column("lowest", "ms"), Column("highest", "ms"),
    Column("algbw", "GB/s", 8),
)  # fmt: skip


def run(options: Model, console: Console) -> Findings:
    """Measure and print."""
    shapes = gradient_shapes(options.name)
    nbytes = _ITEM * sum(map(prod, shapes))
    console.say(
        f"# {options.name}: {len(shapes)} gradients, {nbytes / 1e6:.1f} MB of float32, averaged; "
        f"{options.rounds} rounds of {options.iterations}"
    )
    if options.peer == "ddp" and not options.hooks:
        raise UsageError("DDP reduces gradients of a backward pass only: add --hooks, or take gloo")
    if options.hooks:
        from commrt.cli.bench.model_hooks import with_hooks  # only this needs torch

        times = with_hooks(options, shapes, console)
    else:
        times = _bare(options, shapes, console)
    console.say("#\n" + table.header(_COLUMNS))
    for time in times:
        cells = [1e3 * time.median, 1e3 * time.low, 1e3 * time.high, algbw(nbytes, time.median)]
        console.say(table.row(_COLUMNS, [time.side, *cells]))
    mine, *theirs = times
    ratios = [speed_ratio("speed", mine, fastest(theirs))] if theirs else []
    for ratio in ratios:
        console.say(table.sentence(ratio))
    return Findings(tuple(times), tuple(ratios))


def buckets_in(arena: Array, shapes: Sequence[Shape], policy: BucketPolicy) -> list[Array]:
    """Cut a flat arena that holds gradients in reverse order of registration."""
    counts = [prod(shape) for shape in reversed(shapes)]
    starts = [0, *accumulate(counts)]
    ranges = policy.cut([arena.itemsize * count for count in counts])
    return [arena[starts[first] : starts[last]] for first, last in ranges]


def _bare(options: Model, shapes: Sequence[Shape], console: Console) -> list[Series]:
    """Reduce what lies in one flat array, in our buckets or the peer's."""
    config = Config.from_environment()
    arena = commrt.zeros(sum(map(prod, shapes)))  # as an optimizer's
    theirs = np.ones(arena.size, np.float32)
    arena[:] = 1.0
    size = config.fusion_limit() if config.bucket == "auto" else config.bucket
    own = buckets_in(arena, shapes, policy_of(size, config.first_bucket, commrt.size()))
    flat = [theirs[lo:hi] for lo, hi in cut(0, theirs.size, _PEER_BUCKET // _ITEM)]
    console.say(f"# bare submissions: commrt {len(own)} buckets as its optimizer cuts them, all in "
                f"flight\n# peers {len(flat)} buckets of 25 MiB: gloo all in flight, MPI one after "
                "the other")  # fmt: skip
    with sides(options.peer) as opened:
        runs = {
            side.name: side.averaging(own if isinstance(side, Ours) else flat) for side in opened
        }
        measured = interleave(
            {name: partial(seconds_each, run, options.iterations, 1) for name, run in runs.items()},
            options.rounds, settle, console.progress,
        )  # fmt: skip
    return [series(name, "time", "s", mean_over_ranks(found)) for name, found in measured.items()]

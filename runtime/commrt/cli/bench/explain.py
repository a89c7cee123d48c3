"""Where the buckets of one training step spend their time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.table import Column
from commrt.cli.bench.training import Trainee
from commrt.observe.trace import BucketRecord

_STEPS = 6
"""Steps of which the last is looked at: ranks follow a plan by then."""

_COLUMNS = (
    Column("bucket", "", 8), Column("size", "MiB"), Column("ready", "ms"), Column("sent", "ms"),
    Column("done", "ms"), Column("exposed", "ms"), Column("first gradient", "", 30),
)  # fmt: skip


def explain(trainee: Trainee, console: Console) -> None:
    """Take a few steps; print the buckets of the last one as rank 0 saw them."""
    runtime = commrt.api.session().runtime
    for _ in range(_STEPS):
        began = time.monotonic()
        loss = trainee.forward()
        backward = time.monotonic()
        trainee.finish(loss)
    records = [r for r in runtime.trace() if r.submitted >= began]
    console.say(f"# {trainee.note()}")
    console.say(
        "# one step on this rank, in ms since it began; ready: its gradients are there and it is "
        "submitted\n# exposed: after the last bucket was ready, and nothing of an earlier one was "
        f"on its way\n# backward began at {1e3 * (backward - began):.1f} ms"
    )
    console.say(table.header(_COLUMNS))
    for record, share in zip(records, exposures(records), strict=True):
        times = [1e3 * (t - began) for t in (record.submitted, record.started, record.done)]
        size = record.nbytes / (1 << 20)
        cells: list[table.Cell] = [record.number, size, *times, 1e3 * share, record.names[0]]
        console.say(table.row(_COLUMNS, cells))


def exposures(records: Sequence[BucketRecord]) -> list[float]:
    """Return each bucket's share of the time from the last submission to the end of all."""
    until = max((record.submitted for record in records), default=0.0)
    shares = []
    for record in records:
        shares.append(max(0.0, record.done - until))
        until = max(until, record.done)
    return shares

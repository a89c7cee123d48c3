"""Drives the conversations of all ranks in one thread, with numpy for a transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.codecs.base import (
    AllGather,
    AllToAll,
    Codec,
    Exchange,
    Reduce,
    ReduceScatter,
    Step,
    Yield,
)
from commrt.types import ReduceOp, Segment

Array = npt.NDArray[Any]


def exchange(
    codec: Codec,
    sources: Sequence[Array],
    op: ReduceOp,
    postscale: float = 1.0,
    in_place: bool = False,
    out_dtype: Any = None,
    counts: Sequence[int] | None = None,
    segments: Sequence[Segment] = (),
) -> list[Array]:
    """Return what every rank ends with. All warnings are off, as in the engine's thread."""
    size = len(sources)
    given = [source.copy() for source in sources]
    lengths = [s.size for s in given] if counts is None else counts
    outs = [np.empty(n, out_dtype or s.dtype) for n, s in zip(lengths, given, strict=True)]
    outs = given if in_place else outs
    shared = None if counts is None else tuple(counts)
    talks = [
        codec.exchange(
            Exchange(given[r], outs[r], size, r, op, postscale, shared, lambda: segments)
        )
        for r in range(size)
    ]
    with np.errstate(all="ignore"):
        while True:
            steps = [_next_step(talk) for talk in talks]
            kinds = {type(step) for step in steps}
            assert len(kinds) == 1, f"ranks ask for different things: {kinds}"
            if kinds == {type(None)}:
                break
            _answer(steps)
    if not in_place:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(given, sources, strict=True))
    return outs


def _next_step(talk: Any) -> Step | None:
    """Return what a rank asks of the others next: how often it only yields is its own affair."""
    while True:
        step: Step | None = next(talk, None)
        if not isinstance(step, Yield):
            return step


def _answer(steps: Sequence[Any]) -> None:
    size = len(steps)
    match steps[0]:
        case Reduce():
            total = _joined(steps)
            for step in steps:
                step.out[:] = total
        case ReduceScatter():
            assert len({step.counts for step in steps}) == 1
            ends = np.cumsum(steps[0].counts)[:-1]
            for step, part in zip(steps, np.split(_joined(steps), ends), strict=True):
                step.out[:] = part
        case AllToAll():
            for a in steps:
                assert len(a.sent) == len(a.received) == size
                assert (sum(a.sent), sum(a.received)) == (a.source.size, a.out.size)
            parts = [np.split(a.source, np.cumsum(a.sent)[:-1]) for a in steps]
            for r, a in enumerate(steps):
                assert [parts[q][r].size for q in range(size)] == list(a.received)
                a.out[:] = np.concatenate([parts[q][r] for q in range(size)])
        case AllGather():
            assert len({step.counts for step in steps}) == 1
            assert [step.source.size for step in steps] == list(steps[0].counts)
            whole = np.concatenate([step.source for step in steps])
            for step in steps:
                step.out[:] = whole


def _joined(steps: Sequence[Any]) -> Array:
    total: Array = steps[0].source.copy()
    for step in steps[1:]:
        steps[0].reduction.fold(total, step.source, out=total)
    steps[0].reduction.finish(total)
    return total

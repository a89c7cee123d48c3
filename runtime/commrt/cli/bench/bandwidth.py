"""`commrt bench bandwidth`: allreduce over sizes, as nccl-tests' all_reduce_perf prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import commrt
from commrt.cli.bench import table
from commrt.cli.bench.console import Console
from commrt.cli.bench.figures import Findings, Ratio, Series, fastest, series, speed_ratio
from commrt.cli.bench.options import Bandwidth
from commrt.cli.bench.peers import Array, Ours, Peer, sides
from commrt.cli.bench.rounds import Spent, interleave, mean_over_ranks, settle, spent_each
from commrt.cli.bench.table import Column
from commrt.core.perf import algbw, busbw, busbw_factor
from commrt.kernels.numpy_ import dtype_of
from commrt.types import Kind

_OURS = (
    Column("size", "B", 12), Column("count", "elements", 12), Column("type", "", 9),
    Column("redop", "", 6), Column("time", "us"), Column("algbw", "GB/s", 7),
    Column("busbw", "GB/s", 7), Column("wrong", "", 6), Column("cpu", "s/GB", 6),
)  # fmt: skip
_THEIRS = (
    Column("peer", "", 16), Column("time", "us"), Column("busbw", "GB/s", 7),
    Column("cpu", "s/GB", 6), Column("speed", "ratio", 7), Column("rounds", "ratio", 15),
)  # fmt: skip

_BYTES_A_ROUND = 256 << 20
_WARM_UP = 2
_COPY = "copy"
_UNCACHED = 16 << 20
"""Bytes from which an array's copy is limited by memory."""
_PERIOD = 7


@dataclass(frozen=True, slots=True)
class Line:
    """What one size gave: seconds of each side, ours first; elements wrong on any rank.

    `computing`: the processor's seconds, of the same sides. `copy`: seconds of a copy of the array
    in each rank, if all are on one host and it is large.
    """

    nbytes: int
    count: int
    times: tuple[Series, ...]
    computing: tuple[Series, ...]
    wrong: int
    copy: Series | None


def run(options: Bandwidth, console: Console) -> Findings:
    """Measure and print, size by size."""
    size = commrt.size()
    console.say(
        f"# {options.rounds} rounds; time: mean over operations and ranks, median over rounds; "
        f"{_WARM_UP} operations and one that is checked do not count\n"
        f"# commrt in place, its arrays made by {options.memory}, the peer's by numpy; of MPI's "
        "two forms the faster\n# speed: theirs / our time; cpu: processor time of a rank, all its "
        "threads, for each GB of busbw\n"
        f"# GB = 1e9 bytes; busbw = algbw x {2 * (size - 1) / size:g}\n#"
    )
    columns = (*_OURS, *_THEIRS) if options.peer else _OURS
    console.say(table.header(columns))
    lines = []
    with sides(options.peer) as opened:
        for nbytes in options.sizes:
            lines.append(_measure(opened, nbytes, options, console))
            console.say(table.row(columns, _cells(lines[-1], options.dtype, size)))
    shares = [_share(line, line.copy) for line in lines if line.copy is not None]
    for share in shares:
        console.say(table.sentence(share))
    wrong = sum(line.wrong for line in lines)
    average = sum(_busbw(line, line.times[0], size) for line in lines) / len(lines)
    console.say(f"# wrong values: {wrong} {'OK' if not wrong else 'FAILED'}\n"
                f"# average bus bandwidth: {average:.3f} GB/s")  # fmt: skip
    return Findings(
        tuple(found for line in lines for found in _all_of(line)),
        (*(speed_ratio(f"speed at {line.nbytes} bytes", line.times[0], fastest(line.times[1:]))
           for line in lines if line.times[1:]), *shares),
        (f"{wrong} wrong values",) if wrong else (),
    )  # fmt: skip


def iterations_for(nbytes: int, asked: int) -> int:
    """Return how many operations a round has; unless asked for, fewer the larger they are."""
    return asked or max(3, min(100, _BYTES_A_ROUND // nbytes))


def wrong_values(result: Array, size: int) -> int:
    """Count the elements that are not the sum of every rank's `pattern`."""
    period = sum(pattern(_PERIOD, rank, result.dtype) for rank in range(size))
    return int(np.count_nonzero(result != np.resize(period, result.size)))


def pattern(n: int, rank: int, dtype: np.dtype[Any]) -> Array:
    """Return small whole numbers, different for each rank, whose sum is exact in any type."""
    return np.resize(((np.arange(_PERIOD) + 3 * rank) % _PERIOD).astype(dtype), n)


def _measure(opened: Sequence[Peer], nbytes: int, options: Bandwidth, console: Console) -> Line:
    dtype = dtype_of(options.dtype)
    array = np.zeros(max(1, nbytes // dtype.itemsize), dtype)
    ours = commrt.zeros(array.size, dtype) if options.memory == "commrt" else array
    iterations = iterations_for(nbytes, options.iterations)
    runs = {
        side.name: partial(_round, side, ours if side.name == Ours.name else array, iterations)
        for side in opened
    }
    if array.nbytes >= _UNCACHED and commrt.local_size() == commrt.size():
        runs[_COPY] = partial(_copies, ours, iterations)
    measured = interleave(
        runs, options.rounds, settle, lambda text: console.progress(f"{nbytes} bytes, {text}")
    )
    clock = {
        side: series(side, f"time at {array.nbytes} bytes", "s",
                     mean_over_ranks([spent.clock for spent, _ in rounds]))
        for side, rounds in measured.items()
    }  # fmt: skip
    computing = tuple(
        series(side.name, f"processor time at {array.nbytes} bytes", "s",
               mean_over_ranks([spent.processor for spent, _ in measured[side.name]]))
        for side in opened
    )  # fmt: skip
    mistakes = sum(count for rounds in measured.values() for _, count in rounds)
    total = int(commrt.allreduce(np.array(mistakes), op=commrt.Sum))
    copy = clock.pop(_COPY, None)
    return Line(array.nbytes, array.size, tuple(clock.values()), computing, total, copy)


def _round(side: Peer, array: Array, iterations: int) -> tuple[Spent, int]:
    """Return the seconds of an operation, and how many values one of them got wrong."""
    array.fill(0)  # so that sums of sums stay finite
    reduce = side.summing(array)
    spent = spent_each(reduce, iterations, _WARM_UP)
    np.copyto(array, pattern(array.size, commrt.rank(), array.dtype))
    return spent, wrong_values(reduce(), commrt.size())


def _copies(array: Array, iterations: int) -> tuple[Spent, int]:
    """Do the same with a copy by a compiled loop, on all ranks at once."""
    from commrt.cli.bench.copying import copy  # compiles

    return spent_each(partial(copy, array, np.empty_like(array)), iterations, _WARM_UP), 0


def _share(line: Line, copy: Series) -> Ratio:
    """Compare with the least that memory must do.

    Every rank's array has to be read once and written once, which is a copy of it in each rank.
    """
    return speed_ratio(f"share of the memory's speed at {line.nbytes} bytes", line.times[0], copy)


def _all_of(line: Line) -> tuple[Series, ...]:
    return (*line.times, *line.computing, *(() if line.copy is None else (line.copy,)))


def _cells(line: Line, dtype: str, size: int) -> list[table.Cell]:
    ours, *theirs = line.times
    cells: list[table.Cell] = [
        line.nbytes, line.count, dtype, "sum", 1e6 * ours.median,
        algbw(line.nbytes, ours.median), _busbw(line, ours, size), line.wrong,
        _cost(line, line.computing[0], size),
    ]  # fmt: skip
    if not theirs:
        return cells
    best = fastest(theirs)
    speed = speed_ratio("", ours, best)
    computing = next(found for found in line.computing if found.side == best.side)
    return [*cells, best.side, 1e6 * best.median, _busbw(line, best, size),
            _cost(line, computing, size), speed.value,
            f"{table.number(speed.low)} - {table.number(speed.high)}"]  # fmt: skip


def _busbw(line: Line, times: Series, size: int) -> float:
    return busbw(Kind.ALLREDUCE, line.nbytes, times.median, size)


def _cost(line: Line, computing: Series, size: int) -> float:
    """Return seconds of a processor for each GB that the slowest link carries."""
    moved = line.nbytes * busbw_factor(Kind.ALLREDUCE, size) / 1e9
    return computing.median / moved if moved else 0.0

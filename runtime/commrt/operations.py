"""The collective operations, for arrays of any framework.

Arrays are numpy arrays, torch CPU tensors, anything with `__dlpack__`, numbers or sequences;
results are of the same kind (numbers and sequences give numpy arrays). All functions may be called
from any thread. Those that end in `_async` do not block and return a `Handle`; leave their arrays
as they are until it is done. Those that end in `_` write the result over the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.api import session
from commrt.engine.handle import Handle
from commrt.process_sets import ProcessSet
from commrt.types import ReduceOp

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
Adasum = ReduceOp.ADASUM


def allreduce(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Return the sum, average … of `x` over ranks, of the shape, dtype and memory order of `x`.

    Blocks. Shapes, dtypes and all options must agree between ranks. Every rank gets the same bits.
    Integers average toward zero, exactly; 16-bit floats are added in float32. Booleans: Sum and Max
    are or, Min and Product and. Raises ArgumentError, MismatchError, DuplicateNameError,
    StallError, PeerLostError, ShutdownError, and TimeoutError after `timeout` seconds (the
    operation goes on).
    """
    return (
        session()
        .allreduce_async(x, name, op, prescale_factor, postscale_factor, compression, process_set)
        .wait(timeout)
    )


def allreduce_(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Do `allreduce` in place and return `x`."""
    return (
        session()
        .allreduce_async(
            x, name, op, prescale_factor, postscale_factor, compression, process_set, inplace=True
        )
        .wait(timeout)
    )


def allreduce_async(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `allreduce`."""
    return session().allreduce_async(
        x, name, op, prescale_factor, postscale_factor, compression, process_set
    )


def allreduce_async_(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `allreduce_`; do not touch `x` until the handle is done."""
    return session().allreduce_async(
        x, name, op, prescale_factor, postscale_factor, compression, process_set, inplace=True
    )


def grouped_allreduce(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Do `allreduce` of several arrays as one operation: all or none."""
    handle = session().grouped_allreduce_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set
    )
    results: list[Any] = handle.wait(timeout)
    return results


def grouped_allreduce_(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Do `grouped_allreduce` in place and return the arrays."""
    handle = session().grouped_allreduce_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set, inplace=True
    )
    results: list[Any] = handle.wait(timeout)
    return results


def grouped_allreduce_async(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `grouped_allreduce`."""
    return session().grouped_allreduce_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set
    )


def grouped_allreduce_async_(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `grouped_allreduce_`."""
    return session().grouped_allreduce_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set, inplace=True
    )


def reducescatter(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Reduce `x` over ranks and return this rank's share of its rows.

    Rows that are left over go to the low ranks, one each. Blocks. Otherwise as `allreduce`.
    """
    return (
        session()
        .reducescatter_async(
            x, name, op, prescale_factor, postscale_factor, compression, process_set
        )
        .wait(timeout)
    )


def reducescatter_async(
    x: Any,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `reducescatter`."""
    return session().reducescatter_async(
        x, name, op, prescale_factor, postscale_factor, compression, process_set
    )


def grouped_reducescatter(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Do `reducescatter` of several arrays as one operation: all or none."""
    handle = session().grouped_reducescatter_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set
    )
    results: list[Any] = handle.wait(timeout)
    return results


def grouped_reducescatter_async(
    xs: Sequence[Any],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: str = "none",
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `grouped_reducescatter`."""
    return session().grouped_reducescatter_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set
    )


def allgather(
    x: Any,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Return the arrays of all ranks one after the other along the first dimension.

    First dimensions may differ, 0 included; a 0-d array counts as one row. Blocks.
    """
    return session().allgather_async(x, name, process_set).wait(timeout)


def allgather_async(
    x: Any, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start `allgather`."""
    return session().allgather_async(x, name, process_set)


def grouped_allgather(
    xs: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Do `allgather` of several arrays as one operation: all or none."""
    results: list[Any] = session().grouped_allgather_async(xs, name, process_set).wait(timeout)
    return results


def grouped_allgather_async(
    xs: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start `grouped_allgather`."""
    return session().grouped_allgather_async(xs, name, process_set)


def alltoall(
    x: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Send the r-th part of the rows of `x` to member r; return what all sent here, in order.

    `splits`: how many rows go to each member, 0 allowed; the result is then (array, rows received
    from each member, int64). Without it the rows are shared out evenly, and the result is the array
    alone. Blocks.
    """
    result, received = session().alltoall_async(x, splits, name, process_set).wait(timeout)
    return result if splits is None else (result, received)


def alltoall_async(
    x: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Handle:
    """Start `alltoall`; the result is always (array, rows received from each member)."""
    return session().alltoall_async(x, splits, name, process_set)


def broadcast(
    x: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Return the root's `x`. `root_rank` is a world rank; shapes and dtypes must agree. Blocks."""
    return session().broadcast_async(x, root_rank, name, process_set).wait(timeout)


def broadcast_(
    x: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Do `broadcast` in place and return `x`."""
    return session().broadcast_async(x, root_rank, name, process_set, inplace=True).wait(timeout)


def broadcast_async(
    x: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start `broadcast`."""
    return session().broadcast_async(x, root_rank, name, process_set)


def broadcast_async_(
    x: Any, root_rank: int, name: str | None = None, process_set: ProcessSet | None = None
) -> Handle:
    """Start `broadcast_`; do not touch `x` until the handle is done."""
    return session().broadcast_async(x, root_rank, name, process_set, inplace=True)


def zeros(shape: int | tuple[int, ...], dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a numpy array of zeros that lies where this runtime moves data best.

    On one host that is memory that its ranks share: reductions in place need no copy, and other
    ranks write to it while one is under way. Everything else is as with `numpy.zeros`; the memory
    outlives `shutdown()`.
    """
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    flat: npt.NDArray[Any] = session().runtime.allocate(nbytes).view(kind)
    return flat.reshape(shape)


def barrier(process_set: ProcessSet | None = None, timeout: float | None = None) -> None:
    """Wait until every rank of the set has called it."""
    session().barrier_async(process_set).wait(timeout)


def join(timeout: float | None = None) -> int:
    """Wait until every rank has no more data; return the rank that came here last. Blocks.

    Meanwhile allreduces of the others go on: this rank contributes what changes nothing (zeros to
    a sum, ones to a product …), and counts in averages. Their other collectives with this rank fail
    on all of them with MismatchError.
    """
    last: int = session().join_async().wait(timeout)
    return last


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Return the root's object, pickled by cloudpickle; other ranks' `obj` is ignored."""
    return session().broadcast_object(obj, root_rank, name, process_set, timeout)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Return every rank's object, in rank order, pickled by cloudpickle."""
    return session().allgather_object(obj, name, process_set, timeout)


def synchronize(handle: Handle, timeout: float | None = None) -> Any:
    """Block until the operation has ended; return its result or raise its error.

    Raises ArgumentError the second time: `handle.wait()` may be repeated, this may not.
    """
    return handle.collect(timeout)


def poll(handle: Handle) -> bool:
    """Tell whether the operation has ended. Does not block."""
    return handle.done()

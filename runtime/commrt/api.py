"""The public functions. The one module of the package with a global: the runtime.

Arrays are numpy arrays, torch CPU tensors, numbers or sequences; results are of the same kind
(numbers and sequences give numpy arrays). All functions may be called from any thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from commrt.clock import monotonic
from commrt.config import Config, LauncherEnv
from commrt.engine.bootstrap import Order
from commrt.engine.handle import Handle
from commrt.engine.mpi_start import MpiState
from commrt.engine.runtime import Runtime, in_child_after_fork
from commrt.errors import InitError, PeerLostError, ShutdownError
from commrt.process_sets import ProcessSet, WorldSet
from commrt.session import Session
from commrt.types import ReduceOp, Topology

log = logging.getLogger("commrt")

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM

global_process_set = WorldSet()


class _State:
    """What the module knows of its runtime."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None
        self.generation = 0
        self.parent: Topology | None = None
        self.last: Runtime | None = None
        self.mpi = MpiState()


_state = _State()


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals of this process since `init()`. Seconds and bytes.

    `exposed_seconds`: how long threads waited for operations. `wire_bytes`: what was sent.
    """

    exposed_seconds: float
    buckets: int
    tensor_bytes: int
    wire_bytes: int


def init(
    comm: Any = None, process_sets: Iterable[ProcessSet | Sequence[int]] | None = None
) -> None:
    """Start the runtime and wait until every rank has. A second call does nothing.

    Without a launcher it is one rank of one. `comm`: an mpi4py communicator, or a list of world
    ranks; it is duplicated. `process_sets`: subsets, the same on all ranks. Raises InitError,
    PeerLostError; may be tried again.
    """
    with _state.lock:
        _refuse_in_child()
        if _state.session is not None:
            error = _state.session.runtime.error()
            if error is not None:
                raise InitError(f"the runtime has ended; call shutdown() first: {error}") from error
            return
        config = Config.from_environment()
        _set_log_level(config.log)
        sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets or ()]
        _state.generation += 1
        order = Order(
            config,
            LauncherEnv.from_environment(),
            comm,
            tuple(s.ranks for s in sets),
            _state.generation,
            monotonic,
            _state.mpi,
            lambda: None,
        )
        runtime = _state.last = Runtime(order)
        runtime.start()
        for number, process_set in enumerate(sets, start=1):
            process_set.process_set_id = number
        global_process_set.ranks = tuple(range(runtime.topology.size))
        _state.session = Session(runtime, [global_process_set, *sets])
        here = runtime.topology
        log.info(
            "rank %d of %d on %s, local rank %d of %d",
            here.rank,
            here.size,
            here.hosts[here.rank],
            here.local_rank,
            here.local_size,
        )


def shutdown() -> None:
    """Let outstanding operations finish or fail, then end the runtime. Bounded in time.

    Operations of other ranks that need this one fail with ShutdownError.
    """
    _shutdown("shutdown() was called", final=False)


def is_initialized() -> bool:
    """Tell whether `init()` has been called, without `shutdown()` since."""
    return _state.session is not None


def rank() -> int:
    """Return this process's number among all."""
    return _topology().rank


def size() -> int:
    """Return the number of ranks."""
    return _topology().size


def local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return _topology().local_rank


def local_size() -> int:
    """Return the number of ranks of this host."""
    return _topology().local_size


def cross_rank() -> int:
    """Return this host's number among the hosts that have a rank of our local rank."""
    return _topology().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank of our local rank."""
    return _topology().cross_size


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
    """Return the sum or average of `x` over ranks, of the shape, dtype and memory order of `x`.

    Blocks. Shapes, dtypes and all options must agree between ranks. Every rank gets the same bits.
    Integers average toward zero, exactly; 16-bit floats are added in float32. Raises
    ArgumentError, MismatchError, DuplicateNameError, StallError, PeerLostError, ShutdownError,
    and TimeoutError after `timeout` seconds (the operation goes on).
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
    """Start `allreduce`; leave `x` as it is until the handle is done. Does not block."""
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
    """Start `allreduce_`; do not touch `x` until the handle is done. Does not block."""
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
    """Do `allreduce` of several arrays of one dtype as one operation: all or none."""
    handle = session().grouped_allreduce_async(
        xs, name, op, prescale_factor, postscale_factor, compression, process_set
    )
    results: list[Any] = handle.wait(timeout)
    return results


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


def barrier(process_set: ProcessSet | None = None, timeout: float | None = None) -> None:
    """Wait until every rank of the set has called it."""
    session().barrier_async(process_set).wait(timeout)


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
    """Block until the operation has ended; return its result or raise its error."""
    return handle.wait(timeout)


def poll(handle: Handle) -> bool:
    """Tell whether the operation has ended. Does not block."""
    return handle.done()


def stats() -> Stats:
    """Return totals since `init()`."""
    runtime = session().runtime
    totals = runtime.parts.trace.totals()
    return Stats(runtime.exposed(), totals.buckets, totals.nbytes, totals.wire_nbytes)


def session() -> Session:
    """Return the initialized session. Raises InitError before `init()` and in a forked child."""
    _refuse_in_child()
    if _state.session is None:
        raise InitError("commrt is not initialized: call init() first")
    return _state.session


def _topology() -> Topology:
    if _state.session is not None:
        return _state.session.runtime.topology
    if _state.parent is not None:
        return _state.parent
    raise InitError("commrt is not initialized: call init() first")


def _refuse_in_child() -> None:
    if _state.parent is not None:
        raise _forked(_state.parent)


def _forked(parent: Topology) -> ShutdownError:
    return ShutdownError(
        f"process {os.getpid()} was forked from rank {parent.rank} after init(); only that rank "
        "may communicate. Start workers with the 'spawn' method, or before init()"
    )


def _shutdown(why: str, final: bool) -> None:
    with _state.lock:
        session, _state.session = _state.session, None
    if session is not None:
        session.runtime.shutdown(why, final)


def _set_log_level(level: str) -> None:
    """Let through what was asked for. Warnings need no handler; Python prints them as they are."""
    logger = logging.getLogger("commrt")
    logger.setLevel(level.upper())
    if level in ("debug", "info") and not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def _at_exit() -> None:
    runtime = _state.last
    if runtime is None or _state.parent is not None:
        return
    failure = getattr(sys, "last_value", None)
    why = "its script ended" if failure is None else f"{type(failure).__name__}: {failure}"
    _shutdown(why, final=failure is not None)
    if _state.mpi.MPI is not None:
        _end_mpi(_state.mpi, runtime, orderly=failure is None and runtime.error() is None)


def _end_mpi(mpi: MpiState, runtime: Runtime, orderly: bool) -> None:
    """Finalize only what we started, with all peers alive. commrun's shim needs no finalize."""
    if isinstance(runtime.error(), PeerLostError) and mpi.user_imported:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # mpi4py would wait in MPI_Finalize for the dead
    if mpi.ours and orderly and not runtime.shimmed():
        mpi.MPI.Finalize()


def _after_fork_in_child() -> None:
    _state.lock = threading.Lock()
    _state.last = None
    if _state.session is not None:
        runtime = _state.session.runtime
        _state.parent = runtime.topology
        _state.session = None
        in_child_after_fork(runtime, _forked(_state.parent))


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)

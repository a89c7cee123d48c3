"""Starts and ends the runtime. The one module of the package with a global: the runtime.

All functions may be called from any thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from commrt.clock import monotonic
from commrt.config import Config, LauncherEnv, Settings, read_settings
from commrt.engine.bootstrap import Order
from commrt.engine.mpi_start import MpiState
from commrt.engine.runtime import Runtime, in_child_after_fork
from commrt.errors import ArgumentError, InitError, PeerLostError, ShutdownError
from commrt.process_sets import ProcessSet, WorldSet
from commrt.session import Session
from commrt.types import WORLD, Topology

log = logging.getLogger("commrt")

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
    comm: Any = None,
    process_sets: Iterable[ProcessSet | Sequence[int]] | Literal["dynamic"] | None = None,
) -> None:
    """Start the runtime and wait until every rank has. A second call does nothing.

    Without a launcher it is one rank of one. `comm`: an mpi4py communicator, or a list of world
    ranks; it is duplicated. `process_sets`: subsets, the same on all ranks; Horovod's "dynamic" is
    the same as none, for sets may be added at any time. Raises InitError, PeerLostError; may be
    tried again.
    """
    with _state.lock:
        _refuse_in_child()
        if _state.session is not None:
            error = _state.session.runtime.error()
            if error is not None:
                raise InitError(f"the runtime has ended; call shutdown() first: {error}") from error
            return
        settings = read_settings()
        _set_log_level(settings.config.log)
        given = () if process_sets is None or process_sets == "dynamic" else process_sets
        sets = [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in given]
        session = _state.session = _make_session(settings.config, comm, sets)
        _begin(session, settings)


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


def is_homogeneous() -> bool:
    """Tell whether every host has the same number of ranks."""
    hosts = Counter(_topology().hosts)
    return len(set(hosts.values())) == 1


def add_process_set(
    process_set: ProcessSet | Sequence[int], timeout: float | None = None
) -> ProcessSet:
    """Register a set of ranks and return it. All ranks of the job must call it, alike. Blocks.

    Raises ArgumentError for ranks that do not exist and for a set that exists already,
    MismatchError on every rank if they name different ranks.
    """
    chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    return session().add_process_set(chosen, timeout)


def remove_process_set(process_set: ProcessSet, timeout: float | None = None) -> bool:
    """Unregister a set. All ranks of the job must call it. Blocks.

    Returns False for the global set and for one that is not registered. Operations that wait in
    the set fail with ArgumentError.
    """
    return session().remove_process_set(process_set, timeout)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what is reduced from now on to a file that chrome://tracing and Perfetto show.

    With `{rank}` in `file_path` each rank writes a file of its own, else rank 0 alone does. There
    are no cycles to mark: `mark_cycles` changes nothing. Raises ArgumentError if the file can't be
    opened, or while another timeline is written.
    """
    session().recorder.start(file_path)


def stop_timeline() -> None:
    """Finish the timeline's file. Does nothing if none is written; `shutdown()` does it too."""
    session().recorder.stop()


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


def _make_session(config: Config, comm: Any, sets: Sequence[ProcessSet]) -> Session:
    """Start a runtime, and number the process sets."""
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
    global_process_set.ranks = tuple(range(runtime.topology.size))
    for number, process_set in enumerate([global_process_set, *sets], start=WORLD):
        process_set.attach(number, runtime.topology.rank)
    return Session(runtime, [global_process_set, *sets])


def _begin(session: Session, settings: Settings) -> None:
    """Say where we are and what became of Horovod's settings; start the timeline asked for."""
    here = session.runtime.topology
    log.info(
        "rank %d of %d on %s, local rank %d of %d",
        here.rank,
        here.size,
        here.hosts[here.rank],
        here.local_rank,
        here.local_size,
    )
    if here.rank == 0:
        used, ignored = settings.notes()
        if used:
            log.info(used)
        if ignored:
            log.warning(ignored)
    if settings.config.timeline:
        try:
            session.recorder.start(settings.config.timeline)
        except ArgumentError as exc:  # no reason not to train
            log.warning("%s", exc)


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
        session.recorder.stop()


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

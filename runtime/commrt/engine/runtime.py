"""One rank's runtime: owns the background thread and the way in and out of it."""

from __future__ import annotations

import dataclasses
import os
import select
import sys
import threading
import time
from collections.abc import Callable

from commrt.config import Config
from commrt.control.launcher import LauncherLine
from commrt.core.member import peer_lost
from commrt.engine.bootstrap import Order, Place, assemble, find_place
from commrt.engine.carriers import spin_allowed
from commrt.engine.cycle import Cycle, engine_main
from commrt.engine.mpi_start import MpiState
from commrt.engine.pace import Pace
from commrt.engine.parts import Parts
from commrt.engine.pinning import pin
from commrt.engine.submission import Submission
from commrt.engine.transfers import TransferWatch
from commrt.errors import CommError, EngineError, InitError, PeerLostError, ShutdownError
from commrt.observe.trace import BucketRecord
from commrt.transports.base import Flat
from commrt.types import Topology

_LINGER = 2.0
_JOIN = 5.0

Locate = Callable[[Order], Place]


class Runtime:
    """Thread safety: every method any thread."""

    def __init__(self, order: Order, locate: Locate = find_place) -> None:
        self._order = dataclasses.replace(order, check=self._check)
        self._locate = locate
        self._parts: Parts | None = None
        self._error: CommError | None = None
        self._lost: PeerLostError | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="commrt", daemon=True)

    def start(self) -> None:
        """Start the thread and wait until every rank is connected. Raises InitError and others."""
        self._thread.start()
        deadline = time.monotonic() + self._order.config.init_timeout + 1.0
        line = LauncherLine(self._order.env.shim)
        try:
            while not self._ready.is_set():
                self._watch(line)
                if time.monotonic() > deadline:
                    self.abort(
                        InitError(
                            f"init() took more than {self._order.config.init_timeout:.0f} s "
                            "(COMMRT_INIT_TIMEOUT). Did every rank call init()?"
                        )
                    )
        finally:
            line.close()
        if self._error is not None:
            self._thread.join(1.0)  # it may be inside MPI for ever
            raise self._error

    @property
    def topology(self) -> Topology:
        """Where this rank stands."""
        return self.parts.topology

    @property
    def config(self) -> Config:
        """The settings it runs with."""
        return self._order.config

    @property
    def parts(self) -> Parts:
        """The parts of a started runtime."""
        assert self._parts is not None
        return self._parts

    @property
    def mpi(self) -> MpiState:
        """The MPI library of this process, started or not."""
        return self._order.mpi

    def submit(self, submission: Submission) -> None:
        """Hand an operation to the engine; see `TensorQueue.submit`."""
        self.parts.queue.submit(submission)

    def report(self, set_id: int, name: str, text: str) -> None:
        """Fail operation `name` on every rank of a set with `text`.

        What this thread submits afterwards comes after the report.
        """
        if self._thread.is_alive():
            self.parts.departure.report(set_id, name, text, self.parts.link.wake)

    def exposed(self) -> float:
        """Seconds that threads of this process have waited for operations."""
        return self.parts.heart.exposed()

    def trace(self) -> list[BucketRecord]:
        """Return the record of the last buckets."""
        return self.parts.trace.records()

    def error(self) -> CommError | None:
        """Return why the engine ended, or ends, if by an error: no later than handles tell."""
        reason = None if self._parts is None else self._parts.queue.reason()
        return self._error or (None if isinstance(reason, ShutdownError) else reason)

    def shimmed(self) -> bool:
        """Does commrun's shim stand between this process and mpirun?"""
        return bool(self._order.env.shim)

    def alive(self) -> bool:
        """Does the engine run?"""
        return self._thread.is_alive()

    def shutdown(self, why: str = "shutdown() was called", final: bool = False) -> None:
        """Let what is open finish or fail, say goodbye, end the thread. Bounded in time.

        `final`: do not let anything finish.
        """
        if self._parts is not None and self._thread.is_alive():
            self._parts.departure.ask(why, final, self.parts.link.wake)
            self._thread.join(self._order.config.shutdown_timeout + _LINGER + _JOIN)

    def abort(self, error: CommError) -> None:
        """End the engine with `error`, now; a start under way fails with it."""
        if self._error is None:
            self._error = error
        if self._parts is not None:
            self._parts.departure.abort(error, self._parts.link.wake)
        self._ready.set()

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros, shape (nbytes,), from where data moves best."""
        return self.parts.executor.allocate(nbytes)

    def after_fork(self) -> None:
        """In a child: keep nothing open that would hide the parent's death."""
        self.parts.executor.after_fork()
        for fd in self.parts.link.inherited():
            try:
                os.close(fd)
            except OSError:
                continue

    def _watch(self, line: LauncherLine) -> None:
        """While starting, the engine may be inside MPI: look here whether a rank has ended."""
        fd = line.fileno()
        if fd is None:
            self._ready.wait(0.1)
            return
        if select.select([fd], [], [], 0.005)[0]:
            gone = [event for event in line.poll() if event.rank != self._order.env.rank]
            if gone:
                ranks, why = [g.rank for g in gone], [g.why for g in gone]
                error = peer_lost(ranks, {g.rank: g.host for g in gone}, why)
                self._lost = PeerLostError(f"{error} during init()", ranks, error.hosts)
                if not self._ready.wait(1.0):
                    self.abort(self._lost)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            cycle, parts = self._wire()
        except CommError as exc:
            self._error = self._error or exc
            self._ready.set()
            return
        except Exception as exc:
            self._error = EngineError(f"init() failed: {exc!r}")
            self._error.__cause__ = exc
            self._ready.set()
            return
        error = engine_main(cycle, parts, _LINGER)
        if self._error is None:
            self._error = error
        self._ready.set()

    def _wire(self) -> tuple[Cycle, Parts]:
        config = self._order.config
        if config.switch_interval:
            sys.setswitchinterval(config.switch_interval)
        place = self._locate(self._order)
        if self._error is not None:  # start() has given up meanwhile
            place.link.close(0.0)
            raise self._error
        here = place.topology
        pace = Pace(spin_allowed(here))  # before this thread has but one core
        try:
            pin(config.affinity, here)
        except InitError:
            place.carrier.transport.close(orderly=False)
            place.link.close(0.0)
            raise
        place.link.watch(*place.carrier.transport.descriptors())
        parts = self._parts = assemble(self._order, place, self._ready.set)
        transfers = TransferWatch(config.stall_warn, config.stall_fail, here.hosts)
        cycle = Cycle(parts, pace, transfers)
        cycle.begin()
        return cycle, parts


def in_child_after_fork(runtime: Runtime, error: CommError) -> None:
    """Leave everything to the parent; fail waits with `error`."""
    runtime.parts.heart.die(error)
    runtime.after_fork()

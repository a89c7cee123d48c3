"""The loop of the background thread: gathers events, carries out actions, decides nothing."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections import deque
from functools import partial
from math import inf

import numpy as np

from commrt.control.base import Event, PeerGone, Received
from commrt.core import wire
from commrt.core.actions import (
    Action,
    CountAnew,
    Execute,
    Fail,
    Inform,
    PeersLeft,
    Revoke,
    SendControl,
    Started,
    Stop,
    Warn,
)
from commrt.core.wire import COORDINATOR
from commrt.engine.losses import Losses
from commrt.engine.pace import Pace
from commrt.engine.parts import Parts
from commrt.engine.running import Running, outcome
from commrt.engine.stand_in import stand_in
from commrt.engine.submission import Submission
from commrt.engine.transfers import TransferWatch
from commrt.errors import CommError, EngineError, PeerLostError, ShutdownError, StallError
from commrt.observe.trace import BucketRecord
from commrt.types import Bucket

log = logging.getLogger("commrt.engine")

_PR_SET_TIMERSLACK = 29
_TURN = 0.001
_PATIENCE = 0.00003
"""Seconds of trying again before going round: that takes longer than most segments are late."""
_TRIES = 100

_LONG = 1.0
"""Seconds after which somebody may wait to be called back."""


class Cycle:
    """One rank's loop. Thread safety: background thread only."""

    def __init__(self, parts: Parts, pace: Pace, transfers: TransferWatch) -> None:
        self._parts = parts
        self._pace = pace
        self._transfers = transfers
        self._losses = Losses(parts.topology.hosts, parts.coordinator is not None)
        self._todo: deque[Action] = deque()
        self._end: Stop | None = None
        self._at_rest = False
        """Has the last look at what is on the wire shown that only others can help?"""
        self._due = 0.0

    def run_once(self) -> Stop | None:
        """Go round once, sleeping if there is nothing to do; return how it ended, or None."""
        parts = self._parts
        events = self._sleep_and_poll()
        now = parts.clock()
        if (events or parts.queue.waiting()) and parts.heart.awaited():
            self._pace.stir(now)
        parts.heart.beat()
        for event in events:
            self._receive(event, now)
        new = parts.queue.drain()
        if new:
            self._todo.extend(parts.member.submit([s.request for s in new], now))
        idle, settled = parts.queue.empty(), parts.executor.settled()
        self._todo.extend(parts.departure.actions(parts.member, idle, settled, now))
        if now >= self._due:
            self._tick(now)
        self._carry_out(now)
        if parts.executor.busy():
            self._move()
        self._heed_waiters(now)
        if self._end is not None and self._end.error is None and parts.executor.busy():
            return None  # what was scheduled before the goodbye is finished first
        return self._end

    def begin(self) -> None:
        """Tell the coordinator that we are here."""
        self._todo.append(SendControl(COORDINATOR, wire.Hello()))
        self._parts.link.wake()

    def _sleep_and_poll(self) -> list[Event]:
        parts = self._parts
        now = parts.clock()
        self._due = self._next_deadline()
        if parts.executor.busy():
            nap = self._pace.nap(parts.executor.steps(), now)
            if parts.executor.descriptors() and (nap or not self._eager()):
                return self._doze()
            return parts.link.poll(self._nap(nap))
        if self._pace.lively(now):
            return parts.link.poll(self._nap(0.0))
        parts.heart.rest()
        return parts.link.poll(None if self._due == inf else max(0.0, self._due - now))

    def _doze(self) -> list[Event]:
        """Sleep until somebody tells that data may move."""
        parts = self._parts
        executor, steps = parts.executor, parts.executor.steps()
        if executor.sleep(True) or not self._at_rest:
            self._move()  # what came before they could see that we sleep
        moved = executor.steps() != steps or not executor.busy()
        if not moved:
            executor.arm()
        parts.heart.rest()
        wait = None if self._due == inf else max(0.0, self._due - parts.clock())
        events = parts.link.poll(0.0 if moved else wait)
        executor.sleep(False)
        return events

    def _eager(self) -> bool:
        """Is it worth a core to have data at once? It is not while callers compute."""
        return self._parts.executor.swift() and self._parts.heart.awaited()

    @staticmethod
    def _nap(seconds: float) -> float:
        """Sleep if it is too short for epoll, which counts in milliseconds; return what is left."""
        if seconds >= 0.001:
            return seconds
        if seconds:
            time.sleep(seconds)
        else:
            os.sched_yield()  # ZeroMQ's thread may need this core to send what we said
        return 0.0

    def _next_deadline(self) -> float:
        parts = self._parts
        times = [
            parts.member.deadline(),
            parts.coordinator.deadline() if parts.coordinator is not None else None,
            self._losses.deadline(),
            parts.departure.deadline(),
            self._transfers.deadline(parts.executor),
            None if parts.heart.blocked is None else parts.heart.blocked + _LONG,
        ]
        return min((t for t in times if t is not None), default=inf)

    def _receive(self, event: Received | PeerGone, now: float) -> None:
        parts = self._parts
        if isinstance(event, PeerGone):
            if event.rank != parts.topology.rank:
                self._losses.add(event.rank, event.why, now, event.hung_up)
            return
        try:
            generation, message = wire.decode(event.data)
        except ValueError as exc:
            log.warning(
                "rank %d: ignored a message of rank %d: %s", parts.topology.rank, event.rank, exc
            )
            return
        if generation == parts.generation:
            self._deliver(event.rank, message, now)

    def _deliver(self, rank: int, message: wire.Message, now: float) -> None:
        parts = self._parts
        if isinstance(message, wire.UPWARD):
            if parts.coordinator is not None:
                self._todo.extend(parts.coordinator.receive(rank, message, now))
        else:
            self._todo.extend(parts.member.receive(message, now))

    def _tick(self, now: float) -> None:
        parts = self._parts
        self._todo.extend(parts.member.tick(now))
        if parts.coordinator is not None:
            self._todo.extend(parts.coordinator.tick(now))
        self._todo.extend(self._transfers.tick(parts.executor, now))
        lost = self._losses.due(now)
        if lost is not None:
            if parts.coordinator is not None:
                self._todo.extend(parts.coordinator.lost(*lost))
            elif parts.departure.asked() and parts.queue.empty():
                self._todo.append(Stop(None))  # rank 0 has gone first; we need nobody any more
            else:
                self._todo.append(Stop(self._losses.error(*lost)))

    def _carry_out(self, now: float) -> None:
        parts = self._parts
        while self._todo and (self._end is None or self._end.error is None):
            match self._todo.popleft():
                case SendControl(rank=rank, message=message):
                    if rank == parts.topology.rank:
                        self._deliver(rank, message, now)
                    else:
                        parts.link.send(rank, wire.encode(parts.generation, message))
                case Execute(bucket=bucket):
                    if not parts.executor.busy():
                        self._pace.begin(now)
                    parts.executor.start(bucket, self._submissions(bucket, now), now)
                case Revoke(bucket=bucket):
                    parts.executor.revoke(
                        bucket, partial(self._submissions, bucket, now, idle=True), now
                    )
                case Fail(set_id=set_id, name=name, error=error):
                    parts.queue.fail((set_id, name), error)
                case Warn(text=text):
                    log.warning("rank %d: %s", parts.topology.rank, text)
                case Inform(text=text):
                    log.info("rank %d: %s", parts.topology.rank, text)
                case CountAnew():
                    parts.queue.count_anew()
                case PeersLeft(ranks=ranks):
                    self._losses.leave(ranks)
                case Started():
                    parts.departure.started()
                case Stop() as stop:
                    self._end = stop

    def _submissions(self, bucket: Bucket, now: float, idle: bool = False) -> list[Submission]:
        parts = self._parts
        return [
            stand_in(bucket.set_id, operation, parts.heart, now, idle)
            if operation.joined
            else parts.queue.find((bucket.set_id, operation.name))
            for operation in bucket.operations
        ]

    def _move(self) -> None:
        """Move data on for as long as it flows, but look at the inbox after a millisecond."""
        executor, clock = self._parts.executor, self._parts.clock
        now = clock()
        patience = _PATIENCE if self._eager() else 0.0
        until, patient_until, steps = now + _TURN, now + patience, executor.steps()
        self._at_rest = False
        for _ in range(_TRIES):
            if not executor.busy() or now >= until:
                return
            try:
                done = executor.progress()
            except PeerLostError as exc:
                for rank in exc.ranks:
                    self._losses.add(rank, str(exc), now, hung_up=True)
                return
            for running in done:
                self._complete(running)
            now = clock()
            self._carry_out(now)
            if executor.steps() != steps:
                steps, patient_until = executor.steps(), now + patience
            elif now >= patient_until:
                self._at_rest = True
                return

    def _heed_waiters(self, now: float) -> None:
        """Tell the member of callers that wait for what can't begin."""
        parts = self._parts
        heart = parts.heart
        if not parts.member.is_blocked():
            heart.blocked = None
            return
        if heart.blocked is None:
            heart.blocked, heart.asked = now, True
        long = now >= heart.blocked + _LONG
        if heart.asked or long:
            heart.asked = False  # before we look: who waits from now on sets it again
            for key in parts.member.blocked():
                if parts.queue.find(key).handle.wanted(long):
                    self._todo.extend(parts.member.awaited(key, now))
            self._carry_out(now)

    def _complete(self, running: Running) -> None:
        parts = self._parts
        done = parts.clock()
        if parts.heart.awaited():
            self._pace.stir(done)
        names = tuple(s.request.name for s in running.submissions)
        nbytes = sum(a.nbytes for s in running.submissions for a in s.sources)
        submitted = min(s.submitted for s in running.submissions)
        log.debug("bucket %d done: %s", running.bucket.number, names)
        parts.trace.add(
            BucketRecord(
                running.bucket.number,
                names,
                nbytes,
                running.wire_nbytes,
                submitted,
                running.ready,
                running.started,
                done,
            )
        )
        self._todo.extend(parts.member.ended(running.bucket))
        for place, submission in enumerate(running.submissions):
            parts.queue.finish(submission)
            submission.handle.complete(outcome(running, place))


def engine_main(cycle: Cycle, parts: Parts, linger: float) -> CommError | None:
    """Run the loop to its end; then tell the peers, fail every open handle, close everything."""
    _nap_precisely()
    np.seterr(all="ignore")  # this thread's own setting: overflow is the user's business
    rank = parts.topology.rank
    stop: Stop | None = None
    try:
        while (stop := cycle.run_once()) is None:
            continue
    except BaseException as exc:  # the last line of defence
        log.exception("rank %d: the background thread failed", rank)
        error = EngineError(f"rank {rank}: the background thread failed: {exc!r}")
        stop = Stop(error, ours=True)
    return _end(parts, stop, linger)


def _nap_precisely() -> None:
    """Let this thread's short sleeps end within a microsecond, not within the usual fifty."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)


def _end(parts: Parts, stop: Stop, linger: float) -> CommError | None:
    """Peers must not wait for us, and no handle may hang."""
    error = stop.error
    if isinstance(error, PeerLostError):
        error = _with_operations(error, parts.queue.names())
    if error is not None and not stop.ours:
        parts.launcher.consequence(f"{type(error).__name__}: {error}")
    if error is not None:
        _tell_peers(parts, error, linger)
    reason = error or ShutdownError(f"rank {parts.topology.rank}: the runtime was shut down")
    parts.queue.close(reason)
    parts.executor.close(orderly=error is None)
    parts.link.close(linger)
    return error


def _tell_peers(parts: Parts, error: CommError, linger: float) -> None:
    """Rank 0 stays until the others have heard: a connection closed early takes the text along."""
    message = wire.Stop(type(error).__name__, str(error))
    if parts.coordinator is None:
        if isinstance(error, (EngineError, StallError)):
            parts.link.send(COORDINATOR, wire.encode(parts.generation, message))
        return
    listening = set()
    for order in parts.coordinator.stop(message):
        parts.link.send(order.rank, wire.encode(parts.generation, message))
        listening.add(order.rank)
    deadline = time.monotonic() + linger
    while listening and (left := deadline - time.monotonic()) > 0:
        gone = [event.rank for event in parts.link.poll(left) if isinstance(event, PeerGone)]
        listening.difference_update(gone)


def _with_operations(error: PeerLostError, names: list[str]) -> PeerLostError:
    shown = ", ".join(repr(name) for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    text = f"{error}; in flight: {shown}{more}" if names else f"{error}; nothing was in flight"
    return PeerLostError(text, error.ranks, error.hosts, names)

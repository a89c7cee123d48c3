"""Moves buckets, a few at once, in the job's order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from commrt.core.schedule_lock import IN_FLIGHT
from commrt.engine.collectives import Collectives
from commrt.engine.leftovers import keep_for_ever
from commrt.engine.running import Running
from commrt.engine.submission import Submission
from commrt.transports.base import WINDOW, Flat, Members, Transport
from commrt.types import Agreed, Bucket, Kind

_BUDGET = 8
"""Collectives of one bucket ended in one call, so that the engine gets to its inbox."""


class Executor:
    """Runs buckets in order, a few at once. Background thread only."""

    def __init__(
        self,
        transport: Transport,
        sets: Sets,
        generation: int,
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._collectives = Collectives(transport)
        self._sets = sets
        self._generation = generation
        self._clock = clock
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        self._finished_steps = 0

    def start(self, bucket: Bucket, submissions: Sequence[Submission], now: float) -> None:
        """Line a bucket up."""
        running = Running(bucket, submissions, iter(()), now, generation=self._generation)  # type: ignore[arg-type]
        running.task = self._collectives.run(running, self._sets.members(bucket.set_id))
        self._waiting.append(running)
        self._sets.follow(bucket.operations[0])

    def revoke(self, bucket: Bucket, stand_ins: Callable[[], list[Submission]], now: float) -> None:
        """Take a bucket back, as all members do; `stand_ins` serve if it is new to us."""
        known = (*self._active, *self._waiting)
        running = next((r for r in known if r.bucket.number == bucket.number), None)
        if running is None:
            self.start(bucket, stand_ins(), now)
            running = self._waiting[-1]
        running.revoked = True
        if running.work is not None:
            running.work.cancel()

    def settled(self) -> bool:
        """Has all that was taken back come to its end?"""
        return not any(running.revoked for running in (*self._active, *self._waiting))

    def busy(self) -> bool:
        """Is anything to be moved?"""
        return bool(self._active or self._waiting)

    def steps(self) -> int:
        """A number that grows while data moves."""
        return self._finished_steps + sum(
            r.work.steps() for r in self._active if r.work is not None
        )

    def progress(self) -> list[Running]:
        """Move everything in flight on; return the buckets that are done, less what was revoked."""
        while self._waiting and len(self._active) < IN_FLIGHT and self._in_window():
            running = self._waiting.popleft()
            running.started = self._clock()
            self._active.append(running)
        done = [running for running in self._active if self._advance(running)]
        if done:
            self._active = [running for running in self._active if running not in done]
        return [running for running in done if not running.revoked]

    def _in_window(self) -> bool:
        """May the next bucket start beside the oldest one on the wire?"""
        oldest = (self._active or self._waiting)[0].bucket.number
        return self._waiting[0].bucket.number - oldest < WINDOW

    def current(self) -> str:
        """Say what is under way, for error messages."""
        return ", ".join(f"{_names(r.submissions)}" for r in self._active) or "nothing"

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros, shape (nbytes,), where data moves best. Any thread."""
        return self._transport.allocate(nbytes)

    def after_fork(self) -> None:
        """In a child: leave the transport to the parent."""
        self._transport.after_fork()

    def descriptors(self) -> tuple[int, ...]:
        """Return what wakes us when data may have moved; see `Transport`."""
        return self._transport.descriptors()

    def sleep(self, asleep: bool) -> bool:
        """Say that we are about to sleep, or have woken up; see `Transport`."""
        return self._transport.sleep(asleep)

    def swift(self) -> bool:
        """May data come sooner than we wake? See `Transport`."""
        return self._transport.swift

    def arm(self) -> None:
        """Let what is awaited now wake us; see `Transport`."""
        self._transport.arm()

    def late(self) -> list[tuple[Running, tuple[int, ...]]]:
        """Return the buckets on the wire and the world ranks that each waits for."""
        return [(r, r.work.waiting_for()) for r in self._active if r.work is not None]

    def close(self, orderly: bool) -> None:
        """Close the transport. Not `orderly`: messages may still land in the memory in flight."""
        if self._active and not orderly:
            keep_for_ever(self._active)
        self._transport.close(orderly)

    def _advance(self, running: Running) -> bool:
        """Move one bucket on as far as it goes without waiting; is it done?"""
        for _ in range(_BUDGET):
            if running.work is not None:
                if not running.work.progress():
                    return False
                self._finished_steps += running.work.steps() + 1
                running.work = None
                if running.revoked:
                    running.task.close()
                    return True
            try:
                running.work = next(running.task)
            except StopIteration:
                return True
            if running.revoked and running.work is not None:
                running.work.cancel()
            if running.work is None:  # a slice of local work is done: look at the inbox first
                self._finished_steps += 1
                return False
        return False


class Sets:
    """Process sets as this rank sees them, changed in the job's order."""

    def __init__(self, rank: int, sets: Mapping[int, Members]) -> None:
        self._rank = rank
        self._sets = dict(sets)

    def members(self, set_id: int) -> Members:
        """Return the members of a set of ours."""
        return self._sets[set_id]

    def follow(self, agreed: Agreed) -> None:
        """Add or remove a set: what comes later in the job's order finds it so."""
        subject = agreed.signature.subject
        if agreed.signature.kind is Kind.ADD_SET and self._rank in subject:
            self._sets[agreed.rows[0][0]] = Members(subject, subject.index(self._rank))
        elif agreed.signature.kind is Kind.REMOVE_SET:
            self._sets.pop(subject[0], None)


def _names(submissions: Sequence[Submission]) -> str:
    names = [submission.request.name for submission in submissions]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""Moves buckets: packs, converses with the codec, drives the transport, unpacks."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.codecs.base import AllGather, AllToAll, Collective, Exchange, Reduce, Yield
from commrt.codecs.registry import choose
from commrt.core.chunks import cut
from commrt.engine.buffers import FusionBuffers
from commrt.engine.handle import Outcome
from commrt.engine.submission import Submission
from commrt.kernels import numpy_ as kernels
from commrt.transports.base import WINDOW, Channel, Flat, Members, Transport, Work
from commrt.types import Bucket, Kind, ReduceOp

_IN_FLIGHT = 2
"""Buckets on the wire at once: the second fills the gaps that the first one's ends leave."""

_SLICE = 1 << 20
"""Bytes copied at a time: well below 2 ms."""

Task = Generator[Work | None, None, None]


@dataclass(slots=True)
class Running:
    """A bucket on its way."""

    bucket: Bucket
    submissions: Sequence[Submission]
    task: Task
    ready: float
    started: float = 0.0
    work: Work | None = None
    wire_nbytes: int = 0


class Executor:
    """Runs buckets in order, a few at once. Background thread only."""

    def __init__(
        self,
        transport: Transport,
        sets: Mapping[int, Members],
        generation: int,
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._sets = dict(sets)
        self._generation = generation
        self._clock = clock
        self._waiting: deque[Running] = deque()
        self._active: list[Running] = []
        self._buffers = FusionBuffers()
        self._finished_steps = 0

    def start(self, bucket: Bucket, submissions: Sequence[Submission], now: float) -> None:
        """Line a bucket up."""
        running = Running(bucket, submissions, iter(()), now)  # type: ignore[arg-type]
        running.task = self._run(running)
        self._waiting.append(running)

    def busy(self) -> bool:
        """Is anything to be moved?"""
        return bool(self._active or self._waiting)

    def steps(self) -> int:
        """A number that grows while data moves."""
        return self._finished_steps + sum(
            r.work.steps() for r in self._active if r.work is not None
        )

    def progress(self) -> list[Running]:
        """Move everything in flight on; return the buckets that are done."""
        while self._waiting and len(self._active) < _IN_FLIGHT and self._in_window():
            running = self._waiting.popleft()
            running.started = self._clock()
            self._active.append(running)
        done = [running for running in self._active if self._advance(running)]
        if done:
            self._active = [running for running in self._active if running not in done]
        return done

    def _in_window(self) -> bool:
        """May the next bucket start beside the oldest one on the wire?"""
        oldest = (self._active or self._waiting)[0].bucket.number
        return self._waiting[0].bucket.number - oldest < WINDOW

    def current(self) -> str:
        """Say what is under way, for error messages."""
        return ", ".join(f"{_names(r.submissions)}" for r in self._active) or "nothing"

    def late(self) -> list[tuple[Running, tuple[int, ...]]]:
        """Return the buckets on the wire and the world ranks that each waits for."""
        return [(r, r.work.waiting_for()) for r in self._active if r.work is not None]

    def close(self, orderly: bool) -> None:
        """Close the transport. Not `orderly`: messages may still land in the memory in flight."""
        if self._active and not orderly:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._active))  # so it lives for ever
        self._transport.close(orderly)

    def _advance(self, running: Running) -> bool:
        """Move one bucket on as far as it goes without waiting; is it done?"""
        if running.work is not None:
            if not running.work.progress():
                return False
            self._finished_steps += running.work.steps() + 1
            running.work = None
        running.work = next(running.task, _DONE)
        if running.work is _DONE:
            running.work = None
            return True
        if running.work is None:  # a slice of local work is done: look at the inbox first
            self._finished_steps += 1
            return False
        return self._advance(running)

    def _run(self, running: Running) -> Task:
        bucket, submissions = running.bucket, running.submissions
        members = self._sets[bucket.set_id]
        match bucket.operations[0].signature.kind:
            case Kind.ALLREDUCE:
                yield from self._allreduce(running, members)
            case Kind.ALLGATHER:
                yield from self._allgather(running, members)
            case Kind.BROADCAST:
                yield from self._broadcast(running, members)
            case Kind.BARRIER:
                pass  # that everybody was ready is all there is to it
        for submission in submissions:
            for target, array in submission.restore:
                yield from _restore(target, array)

    def _allreduce(self, running: Running, members: Members) -> Task:
        signature = running.bucket.operations[0].signature
        sources = [a for s in running.submissions for a in s.sources]
        outs = [a for s in running.submissions for a in s.outs]
        if not sources:
            return
        # 16-bit floats are scaled after the sum, in float32: before, small values would vanish.
        late = kernels.is_float(sources[0].dtype) and sources[0].itemsize == 2
        before, after = (1.0, signature.prescale) if late else (signature.prescale, 1.0)
        direct = len(sources) == 1 and before == 1.0
        flat = (
            sources[0]
            if direct
            else self._buffers.take(sum(a.size for a in sources), sources[0].dtype)
        )
        if not direct:
            yield from _pack(sources, flat, before)
        out = outs[0] if direct else flat
        job = Exchange(
            flat,
            out,
            len(members.ranks),
            members.index,
            signature.op is ReduceOp.AVERAGE,
            signature.postscale * after,
        )
        codec = choose(signature.codec, flat.dtype, signature.op)
        running.wire_nbytes = codec.wire_nbytes(flat.size, flat.dtype, len(members.ranks))
        stage = 0
        for step in codec.exchange(job):
            if isinstance(step, Yield):  # ranks may differ in these: they have no stage
                yield None
                continue
            yield self._ask(step, members, self._channel(running, stage))
            stage += 1
        if not direct:
            yield from _unpack(flat, outs)
            self._buffers.give(flat)

    def _ask(self, step: Collective, members: Members, channel: Channel) -> Work:
        transport = self._transport
        match step:
            case Reduce(source=source, out=out, finish=finish):
                return transport.allreduce(members, channel, source, out, finish)
            case AllToAll(source=source, out=out, sent=sent, received=received):
                return transport.alltoallv(members, channel, source, out, sent, received)
            case AllGather(source=source, out=out, counts=counts):
                return transport.allgather(members, channel, source, out, counts)

    def _allgather(self, running: Running, members: Members) -> Task:
        submission, agreed = running.submissions[0], running.bucket.operations[0]
        outs = []
        for stage, (source, spec, rows) in enumerate(
            zip(submission.sources, agreed.signature.tensors, agreed.rows, strict=True)
        ):
            row = int(np.prod(spec.shape[1:], dtype=np.int64))
            counts = [r * row for r in rows]
            out = np.empty(sum(counts), source.dtype)
            outs.append(out)
            running.wire_nbytes += out.nbytes - source.nbytes
            yield self._transport.allgather(
                members, self._channel(running, stage), source, out, counts
            )
        submission.outs = tuple(outs)

    def _broadcast(self, running: Running, members: Members) -> Task:
        submission, signature = running.submissions[0], running.bucket.operations[0].signature
        root = members.ranks.index(signature.root)
        for stage, (source, out) in enumerate(
            zip(submission.sources, submission.outs, strict=True)
        ):
            running.wire_nbytes += source.nbytes
            yield self._transport.broadcast(
                members, self._channel(running, stage), source, out, root
            )

    def _channel(self, running: Running, stage: int) -> Channel:
        return Channel(self._generation, 0, running.bucket.number, stage)


def outcome(running: Running, place: int) -> Outcome:
    """Return what operation number `place` of a bucket left."""
    agreed = running.bucket.operations[place]
    rows = agreed.rows[0] if agreed.rows else ()
    return Outcome(running.submissions[place].outs, agreed.absent, rows)


def _pack(sources: Sequence[Flat], flat: Flat, factor: float) -> Task:
    start = 0
    step = max(1, _SLICE // flat.itemsize)
    budget = step
    for source in sources:
        for lo, hi in cut(0, source.size, step):
            part = flat[start + lo : start + hi]
            np.copyto(part, source[lo:hi])
            if factor != 1.0:
                kernels.scale(part, factor)
            budget -= hi - lo
            if budget <= 0:
                budget = step
                yield None
        start += source.size


def _unpack(flat: Flat, outs: Sequence[Flat]) -> Task:
    start = 0
    step = max(1, _SLICE // flat.itemsize)
    budget = step
    for out in outs:
        for lo, hi in cut(0, out.size, step):
            np.copyto(out[lo:hi], flat[start + lo : start + hi])
            budget -= hi - lo
            if budget <= 0:
                budget = step
                yield None
        start += out.size


def _restore(target: npt.NDArray[Any], array: npt.NDArray[Any]) -> Task:
    if target.ndim == 0 or array.nbytes <= _SLICE:
        np.copyto(target, array)
        return
    for lo, hi in cut(0, len(target), max(1, len(target) * _SLICE // array.nbytes)):
        np.copyto(target[lo:hi], array[lo:hi])
        yield None


def _names(submissions: Sequence[Submission]) -> str:
    names = [submission.request.name for submission in submissions]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class _Done:
    """Marks the end of a task."""


_DONE: Work = _Done()  # type: ignore[assignment]

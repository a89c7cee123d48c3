"""What each kind of operation asks of the transport, one step after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.codecs.base import (
    AllGather,
    AllToAll,
    Collective,
    Exchange,
    Reduce,
    ReduceScatter,
    Yield,
)
from commrt.codecs.registry import choose
from commrt.core.chunks import chunk_bounds, cut
from commrt.engine.buffers import FusionBuffers
from commrt.engine.running import Running, Task
from commrt.kernels import numpy_ as kernels
from commrt.transports.base import Channel, Flat, Members, Transport, Work
from commrt.types import Kind, ReduceOp, Segment, Signature

_SLICE = 1 << 20
"""Bytes copied at a time: well below 2 ms."""


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a reduction; `factor` is what it is multiplied by before.

    `layout`: the tensors in it, if it is not one tensor.
    """

    source: Flat
    out: Flat
    factor: float
    layout: tuple[Segment, ...] = ()


class Collectives:
    """Turns buckets into tasks: packs, converses with the codec, unpacks. Background thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._buffers = FusionBuffers(transport.allocate)

    def run(self, running: Running, members: Members) -> Task:
        """Return the steps that a bucket takes on this rank."""
        match running.bucket.operations[0].signature.kind:
            case Kind.ALLREDUCE:
                yield from self._allreduce(running, members)
            case Kind.REDUCESCATTER:
                yield from self._reduce_scatter(running, members)
            case Kind.ALLGATHER:
                yield from self._allgather(running, members)
            case Kind.ALLTOALL:
                yield from self._alltoall(running, members)
            case Kind.BROADCAST:
                yield from self._broadcast(running, members)
            case _:
                pass  # that everybody was ready is all there is to it
        for submission in running.submissions:
            for target, array in submission.restore:
                yield from _restore(target, array)

    def _allreduce(self, running: Running, members: Members) -> Task:
        """Reduce dtype by dtype: each has a fusion buffer and a conversation of its own."""
        signature = running.bucket.operations[0].signature
        for dtype in dict.fromkeys(a.dtype for s in running.submissions for a in s.sources):
            before, after = _scales(signature, dtype)
            parts = [
                Part(source, out, 1.0 if s.neutral else before, agreed.signature.layout)
                for s, agreed in zip(running.submissions, running.bucket.operations, strict=True)
                for source, out in zip(s.sources, s.outs, strict=True)
                if source.dtype == dtype
            ]
            yield from self._reduce(running, members, parts, after)

    def _reduce(
        self, running: Running, members: Members, parts: Sequence[Part], after: float
    ) -> Task:
        direct = len(parts) == 1 and parts[0].factor == 1.0
        flat = parts[0].source if direct else self._take([part.source for part in parts])
        if not (direct or running.revoked):
            yield from _pack(parts, flat)
        job = Exchange(
            source=flat,
            out=parts[0].out if direct else flat,
            size=len(members.ranks),
            index=members.index,
            op=running.bucket.operations[0].signature.op,
            scale=after,
            segments=partial(_segments, parts),
        )
        try:
            yield from self._converse(running, members, job)
            if not direct:
                yield from _unpack(flat, [part.out for part in parts])
        finally:  # it may be taken back
            if not direct:
                self._buffers.give(flat)

    def _reduce_scatter(self, running: Running, members: Members) -> Task:
        submission, signature = running.submissions[0], running.bucket.operations[0].signature
        size = len(members.ranks)
        for source, spec, out in zip(
            submission.sources, signature.tensors, submission.outs, strict=True
        ):
            before, after = _scales(signature, source.dtype)
            flat = source if before == 1.0 else self._take([source])
            if flat is not source and not running.revoked:
                yield from _pack([Part(source, out, before)], flat)
            row = source.size // max(1, spec.shape[0])
            counts = tuple((hi - lo) * row for lo, hi in chunk_bounds(spec.shape[0], size))
            job = Exchange(flat, out, size, members.index, signature.op, after, counts)
            try:
                yield from self._converse(running, members, job)
            finally:
                if flat is not source:
                    self._buffers.give(flat)

    def _converse(self, running: Running, members: Members, job: Exchange) -> Task:
        """Let the codec have what it asks for."""
        signature = running.bucket.operations[0].signature
        codec = choose(signature.codec, job.source.dtype, signature.op, self._transport.wide)
        nbytes = codec.wire_nbytes(job.source.size, job.source.dtype, job.size)
        running.wire_nbytes += nbytes if job.counts is None else nbytes // 2
        for step in codec.exchange(job):
            # Ranks may differ in how often they only yield: that has no stage.
            yield None if isinstance(step, Yield) else self._ask(step, members, running.channel())

    def _take(self, sources: Sequence[Flat]) -> Flat:
        return self._buffers.take(sum(a.size for a in sources), sources[0].dtype)

    def _ask(self, step: Collective, members: Members, channel: Channel) -> Work:
        transport = self._transport
        match step:
            case Reduce(source=source, out=out, reduction=reduction):
                return transport.allreduce(members, channel, source, out, reduction)
            case ReduceScatter(source=source, out=out, counts=counts, reduction=reduction):
                return transport.reduce_scatter(members, channel, source, out, counts, reduction)
            case AllToAll(source=source, out=out, sent=sent, received=received):
                return transport.alltoallv(members, channel, source, out, sent, received)
            case AllGather(source=source, out=out, counts=counts):
                return transport.allgather(members, channel, source, out, counts)

    def _allgather(self, running: Running, members: Members) -> Task:
        submission, agreed = running.submissions[0], running.bucket.operations[0]
        outs = []
        for source, spec, rows in zip(
            submission.sources, agreed.signature.tensors, agreed.rows, strict=True
        ):
            counts = [r * prod(spec.shape[1:]) for r in rows]
            out = np.empty(sum(counts), source.dtype)
            outs.append(out)
            running.wire_nbytes += out.nbytes - source.nbytes
            yield self._transport.allgather(members, running.channel(), source, out, counts)
        submission.outs = tuple(outs)

    def _alltoall(self, running: Running, members: Members) -> Task:
        submission, agreed = running.submissions[0], running.bucket.operations[0]
        [source], row = submission.sources, prod(agreed.signature.tensors[0].shape[1:])
        sent = [n * row for n in agreed.rows[members.index]]
        received = [rows[members.index] * row for rows in agreed.rows]
        out = np.empty(sum(received), source.dtype)
        running.wire_nbytes += source.nbytes - sent[members.index] * source.itemsize
        yield self._transport.alltoallv(members, running.channel(), source, out, sent, received)
        submission.outs = (out,)

    def _broadcast(self, running: Running, members: Members) -> Task:
        submission, signature = running.submissions[0], running.bucket.operations[0].signature
        root = members.ranks.index(signature.root)
        for source, out in zip(submission.sources, submission.outs, strict=True):
            running.wire_nbytes += source.nbytes
            yield self._transport.broadcast(members, running.channel(), source, out, root)


def _scales(signature: Signature, dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return what to multiply by before and after the reduction.

    16-bit floats are scaled after it, in float32: before, small values would vanish.
    """
    halves = kernels.is_float(dtype) and dtype.itemsize == 2
    late = halves and signature.op in (ReduceOp.AVERAGE, ReduceOp.SUM)
    if late:
        return 1.0, signature.prescale * signature.postscale
    return signature.prescale, signature.postscale


def _segments(parts: Sequence[Part]) -> list[Segment]:
    """Return where each tensor lies in a flat array of all parts."""
    found: list[Segment] = []
    start = 0
    for part in parts:
        layout = part.layout or (Segment(0, part.source.size),)
        found += [Segment(start + s.start, start + s.stop) for s in layout]
        start += part.source.size
    return found


def _pack(parts: Sequence[Part], flat: Flat) -> Task:
    start = 0
    step = max(1, _SLICE // flat.itemsize)
    budget = step
    for part in parts:
        for lo, hi in cut(0, part.source.size, step):
            target = flat[start + lo : start + hi]
            np.copyto(target, part.source[lo:hi])
            if part.factor != 1.0:
                kernels.scale(target, part.factor)
            budget -= hi - lo
            if budget <= 0:
                budget = step
                yield None
        start += part.source.size


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

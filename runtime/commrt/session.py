"""The framework-agnostic operations of one initialized runtime."""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from commrt import plans
from commrt.engine.handle import Handle, Outcome
from commrt.engine.runtime import Runtime
from commrt.engine.submission import Submission
from commrt.errors import ArgumentError, InitError
from commrt.observe.timeline import Recorder
from commrt.parcels import Parcel, pack, unpack
from commrt.plans import Collect, Plan, Terms, Wrap
from commrt.process_sets import ProcessSet
from commrt.types import WORLD, Kind, ReduceOp, Request, Signature


class Session:
    """All operations over one runtime. Thread safety: any thread."""

    def __init__(self, runtime: Runtime, sets: Sequence[ProcessSet]) -> None:
        self.runtime = runtime
        self.recorder = Recorder(runtime.parts.trace, runtime.topology)
        self.world = sets[0]
        self._sets = {s.id(): s.ranks for s in sets}
        self._counters: dict[str, itertools.count[int]] = {}
        self.joins = 0  # that have ended here; the same on all ranks outside join()
        self._lock = threading.Lock()
        self._changes: dict[tuple[Kind, tuple[int, ...]], Handle] = {}

    def number(self, what: str) -> int:
        """Count calls for `what`, from 0. Ranks that call alike get alike numbers, for names."""
        return next(self._counters.setdefault(what, itertools.count()))

    def allreduce_async(
        self,
        x: Any,
        name: str | None = None,
        op: ReduceOp = ReduceOp.AVERAGE,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: str = "none",
        process_set: ProcessSet | None = None,
        inplace: bool = False,
    ) -> Handle:
        """Start an allreduce; see `commrt.allreduce`."""
        terms = Terms(op, prescale_factor, postscale_factor, compression)
        return self._allreduce([x], name, terms, process_set, inplace, _first)

    def grouped_allreduce_async(
        self,
        xs: Sequence[Any],
        name: str | None = None,
        op: ReduceOp = ReduceOp.AVERAGE,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: str = "none",
        process_set: ProcessSet | None = None,
        inplace: bool = False,
    ) -> Handle:
        """Start one allreduce of several arrays; see `commrt.grouped_allreduce`."""
        terms = Terms(op, prescale_factor, postscale_factor, compression)
        return self._allreduce(list(xs), name, terms, process_set, inplace, list)

    def reducescatter_async(
        self,
        x: Any,
        name: str | None = None,
        op: ReduceOp = ReduceOp.AVERAGE,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: str = "none",
        process_set: ProcessSet | None = None,
    ) -> Handle:
        """Start a reducescatter; see `commrt.reducescatter`."""
        terms = Terms(op, prescale_factor, postscale_factor, compression)
        return self._reduce_scatter([x], name, terms, process_set, _first)

    def grouped_reducescatter_async(
        self,
        xs: Sequence[Any],
        name: str | None = None,
        op: ReduceOp = ReduceOp.AVERAGE,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        compression: str = "none",
        process_set: ProcessSet | None = None,
    ) -> Handle:
        """Start one reducescatter of several arrays; see `commrt.grouped_reducescatter`."""
        terms = Terms(op, prescale_factor, postscale_factor, compression)
        return self._reduce_scatter(list(xs), name, terms, process_set, list)

    def allgather_async(
        self, x: Any, name: str | None = None, process_set: ProcessSet | None = None
    ) -> Handle:
        """Start an allgather; see `commrt.allgather`."""
        return self._run(plans.allgather([x], _first, "allgather"), name, process_set)

    def grouped_allgather_async(
        self, xs: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
    ) -> Handle:
        """Start one allgather of several arrays; see `commrt.grouped_allgather`."""
        return self._run(plans.allgather(xs, list, "grouped_allgather"), name, process_set)

    def broadcast_async(
        self,
        x: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        inplace: bool = False,
    ) -> Handle:
        """Start a broadcast; see `commrt.broadcast`."""
        root = self._root(root_rank, process_set, "broadcast")
        return self._run(plans.broadcast(x, root, inplace, "broadcast"), name, process_set)

    def alltoall_async(
        self,
        x: Any,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet | None = None,
    ) -> Handle:
        """Start an alltoall, whose result is (array, rows received from each member)."""
        size, index = self._place(process_set)
        return self._run(plans.alltoall(x, splits, size, index, "alltoall"), name, process_set)

    def exchange_async(
        self, obj: Any, name: str | None = None, process_set: ProcessSet | None = None
    ) -> Handle:
        """Start to gather objects, by rank, of all members that have not joined."""
        members = self._members(process_set)
        plan = plans.allgather([pack(obj).blob], _first, "exchange")

        def wrap(outcome: Outcome) -> dict[int, Any]:
            ranks = [r for r, rows in zip(members, outcome.rows[0], strict=True) if rows]
            return dict(zip(ranks, unpack(outcome.arrays[0].tobytes(), ranks), strict=True))

        signature = replace(plan.signature, partial=True)
        return self._run(replace(plan, signature=signature, wrap=wrap), name, process_set)

    def barrier_async(self, process_set: ProcessSet | None = None) -> Handle:
        """Start a barrier; see `commrt.barrier`."""
        plan = Plan(Signature(Kind.BARRIER, ()), (), (), lambda _: None)
        return self._run(plan, None, process_set)

    def join_async(self) -> Handle:
        """Start to wait for the other ranks; see `commrt.join`."""
        return self._on_the_job(Kind.JOIN, ())

    def add_process_set(self, process_set: ProcessSet, timeout: float | None = None) -> ProcessSet:
        """Register a set; see `commrt.add_process_set`."""
        ranks, size = process_set.ranks, self.runtime.topology.size
        if not ranks or ranks[0] < 0 or ranks[-1] >= size:
            raise ArgumentError(f"add_process_set: {list(ranks)} are not ranks below {size}")
        if ranks in self._sets.values():
            raise ArgumentError(f"add_process_set: there is a process set of {list(ranks)} already")
        id = self._on_the_job(Kind.ADD_SET, ranks).wait(timeout)
        self._sets[id] = ranks
        process_set.attach(id, self.runtime.topology.rank)
        return process_set

    def remove_process_set(self, process_set: ProcessSet, timeout: float | None = None) -> bool:
        """Unregister a set; see `commrt.remove_process_set`."""
        if not isinstance(process_set, ProcessSet):
            raise ArgumentError(f"remove_process_set: a ProcessSet is needed, not {process_set!r}")
        id = process_set.process_set_id
        if id is None or id == WORLD or self._sets.get(id) != process_set.ranks:
            return False
        self._on_the_job(Kind.REMOVE_SET, (id,)).wait(timeout)
        self._sets.pop(id, None)
        process_set.attach(None)
        return True

    def broadcast_object(
        self,
        obj: Any,
        root_rank: int = 0,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the root's object on every rank; see `commrt.broadcast_object`."""
        root_rank = self._root(root_rank, process_set, "broadcast_object")
        mine = self.runtime.topology.rank == root_rank
        parcel = pack(obj) if mine else Parcel(np.empty(0, np.uint8))
        gathered = self.allgather_async(parcel.blob, name, process_set).wait(timeout)
        parcel.check()
        return obj if mine else unpack(gathered.tobytes(), [root_rank])[0]

    def allgather_object(
        self,
        obj: Any,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return every rank's object, in order; see `commrt.allgather_object`."""
        parcel = pack(obj)
        gathered = self.allgather_async(parcel.blob, name, process_set).wait(timeout)
        parcel.check()
        return unpack(gathered.tobytes(), self._members(process_set))

    def submit(
        self,
        signature: Signature,
        name: str,
        source: Any,
        wrap: Wrap,
        process_set: ProcessSet | None = None,
        absent: tuple[int, ...] = (),
    ) -> Handle:
        """Reduce one flat numpy array in place that holds the signature's tensors."""
        return self._run(
            Plan(signature, (source,), (source,), wrap), name, process_set, absent=absent
        )

    def _allreduce(
        self,
        xs: list[Any],
        name: str | None,
        terms: Terms,
        process_set: ProcessSet | None,
        inplace: bool,
        collect: Collect,
    ) -> Handle:
        what = f"allreduce {name!r}" if name else "allreduce"
        return self._run(plans.allreduce(xs, terms, inplace, collect, what), name, process_set)

    def _reduce_scatter(
        self,
        xs: list[Any],
        name: str | None,
        terms: Terms,
        process_set: ProcessSet | None,
        collect: Collect,
    ) -> Handle:
        what = f"reducescatter {name!r}" if name else "reducescatter"
        size, index = self._place(process_set)
        plan = plans.reduce_scatter(xs, terms, size, index, collect, what)
        return self._run(plan, name, process_set)

    def _on_the_job(self, kind: Kind, subject: tuple[int, ...]) -> Handle:
        """Start what concerns the whole job, or return the same one while nobody has its result.

        So whoever gave up waiting may wait again, and threads may wait together.
        """
        key = kind, subject

        def collect(outcome: Outcome) -> int | None:
            self._changes.pop(key, None)
            self.joins += kind is Kind.JOIN
            return outcome.rows[0][0] if outcome.rows else None

        with self._lock:
            handle = self._changes.get(key)
            if handle is None or (handle.done() and handle.exception() is not None):
                plan = Plan(Signature(kind, (), subject=subject), (), (), collect)
                handle = self._changes[key] = self._run(plan, None, None)
            return handle

    def _run(
        self,
        plan: Plan,
        name: str | None,
        process_set: ProcessSet | None,
        absent: tuple[int, ...] = (),
    ) -> Handle:
        set_id = WORLD if process_set is None else process_set.id()
        name = _plain(name)
        self._place(process_set)
        request = Request(
            set_id, name or "", bool(name), plan.signature, plan.rows, absent, _call_site()
        )
        handle = Handle(name or plan.signature.kind.value, plan.wrap, self.runtime.parts.heart)
        submission = Submission(request, plan.sources, plan.outs, handle, plan.restore)
        self.runtime.submit(submission)
        return handle

    def _root(self, root_rank: Any, process_set: ProcessSet | None, what: str) -> int:
        members = self._members(process_set)
        try:
            root = int(operator.index(root_rank))
        except TypeError:
            raise ArgumentError(f"{what}: root rank {root_rank!r} is no whole number") from None
        if root not in members:
            raise ArgumentError(
                f"{what}: root rank {root} is not in the process set {list(members)} "
                "(root ranks are world ranks)"
            )
        return root

    def _place(self, process_set: ProcessSet | None) -> tuple[int, int]:
        """Return the size of a set and our number in it. Raises ArgumentError if we are not."""
        members, rank = self._members(process_set), self.runtime.topology.rank
        if rank not in members:
            raise ArgumentError(f"rank {rank} is not in {process_set!r}")
        return len(members), members.index(rank)

    def _members(self, process_set: ProcessSet | None) -> tuple[int, ...]:
        if process_set is None:
            return self._sets[WORLD]
        ranks = self._sets.get(process_set.id())
        if ranks != process_set.ranks:
            raise InitError(
                f"{process_set!r} is of another init(); call add_process_set() on all ranks"
            )
        return ranks


def _first(results: list[Any]) -> Any:
    return results[0]


def _plain(name: str | None) -> str | None:
    """Return a name that can travel."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise ArgumentError(f"a name must be a str, not {name!r}")
    return str(name).encode("utf-8", "backslashreplace").decode()


def _call_site() -> str:
    """Return file and line of the nearest caller outside this package; torch calls hooks."""
    frame = sys._getframe(1)
    ours = ("commrt.", "torch.")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

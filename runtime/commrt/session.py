"""The framework-agnostic operations of one initialized runtime."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from commrt import arrays
from commrt.arrays import Laid, View
from commrt.codecs.registry import NAMES, choose
from commrt.engine.handle import Handle, Outcome
from commrt.engine.runtime import Runtime
from commrt.engine.submission import Submission
from commrt.errors import ArgumentError, InitError
from commrt.parcels import Parcel, pack, unpack
from commrt.process_sets import ProcessSet
from commrt.types import WORLD, Kind, ReduceOp, Request, Signature, TensorSpec

Wrap = Callable[[Outcome], Any]


class Session:
    """All operations over one runtime. Thread safety: any thread."""

    def __init__(self, runtime: Runtime, sets: Sequence[ProcessSet]) -> None:
        self.runtime = runtime
        self.world = sets[0]
        self._sets = {s.id(): s.ranks for s in sets}
        # Optimizers, numbered; the dead keep their place, for numbers are part of names.
        self.wrapped: list[weakref.ref[Any]] = []

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
        return self._allreduce(
            [x],
            name,
            op,
            (prescale_factor, postscale_factor),
            compression,
            process_set,
            inplace,
            lambda results: results[0],
        )

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
        """Start one allreduce of several arrays of one dtype; see `commrt.grouped_allreduce`."""
        return self._allreduce(
            list(xs),
            name,
            op,
            (prescale_factor, postscale_factor),
            compression,
            process_set,
            inplace,
            list,
        )

    def broadcast_async(
        self,
        x: Any,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet | None = None,
        inplace: bool = False,
    ) -> Handle:
        """Start a broadcast; see `commrt.broadcast`."""
        root_rank = self._root(root_rank, process_set, "broadcast")
        seen = arrays.view(x, "broadcast")
        laid, out, restore = self._place(seen, inplace, "broadcast")
        signature = Signature(Kind.BROADCAST, (laid.spec,), root=root_rank)

        def wrap(outcome: Outcome) -> Any:
            return x if inplace else seen.make(arrays.unlay(outcome.arrays[0], laid.spec))

        return self._submit(signature, name, process_set, (laid.flat,), (out,), wrap, restore)

    def allgather_async(
        self, x: Any, name: str | None = None, process_set: ProcessSet | None = None
    ) -> Handle:
        """Start an allgather; see `commrt.allgather`."""
        seen = arrays.view(x, "allgather")
        array = np.ascontiguousarray(seen.array)
        array = array.reshape(1) if array.ndim == 0 else array
        rest = array.shape[1:]
        signature = Signature(Kind.ALLGATHER, (TensorSpec(array.dtype.name, (0, *rest)),))

        def wrap(outcome: Outcome) -> Any:
            flat = outcome.arrays[0]
            rows = sum(outcome.rows) if outcome.rows else 0
            return seen.make(flat.reshape((rows, *rest)))

        return self._submit(
            signature, name, process_set, (array.reshape(-1),), (), wrap, rows=(array.shape[0],)
        )

    def barrier_async(self, process_set: ProcessSet | None = None) -> Handle:
        """Start a barrier; see `commrt.barrier`."""
        return self._submit(Signature(Kind.BARRIER, ()), None, process_set, (), (), lambda _: None)

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
        return self._submit(signature, name, process_set, (source,), (source,), wrap, absent=absent)

    def _allreduce(
        self,
        xs: list[Any],
        name: str | None,
        op: ReduceOp,
        scales: tuple[float, float],
        compression: str,
        process_set: ProcessSet | None,
        inplace: bool,
        collect: Callable[[list[Any]], Any],
    ) -> Handle:
        what = f"allreduce {name!r}" if name else "allreduce"
        seen = [arrays.view(x, what) for x in xs]
        _check_reduction(seen, op, compression, what)
        placed = [self._place(v, inplace, what) for v in seen]
        specs = tuple(laid.spec for laid, _, _ in placed)
        signature = Signature(
            Kind.ALLREDUCE, specs, op, float(scales[0]), float(scales[1]), compression
        )

        def wrap(outcome: Outcome) -> Any:
            if inplace:
                return collect(xs)
            made = zip(seen, outcome.arrays, specs, strict=True)
            return collect([v.make(arrays.unlay(flat, spec)) for v, flat, spec in made])

        restore = tuple(pair for _, _, pairs in placed for pair in pairs)
        return self._submit(
            signature,
            name,
            process_set,
            tuple(laid.flat for laid, _, _ in placed),
            tuple(out for _, out, _ in placed),
            wrap,
            restore,
        )

    def _place(self, seen: View, inplace: bool, what: str) -> tuple[Laid, Any, tuple[Any, ...]]:
        """Return where a tensor is read, where it is written, and what is copied back after."""
        laid = arrays.lay(seen.array)
        if not inplace:
            return laid, np.empty(laid.flat.size, laid.flat.dtype), ()
        arrays.check_writable(seen, what)
        if not laid.copied:
            return laid, laid.flat, ()
        return laid, laid.flat, ((seen.array, laid.flat.reshape(seen.array.shape)),)

    def _submit(
        self,
        signature: Signature,
        name: str | None,
        process_set: ProcessSet | None,
        sources: tuple[Any, ...],
        outs: tuple[Any, ...],
        wrap: Wrap,
        restore: tuple[Any, ...] = (),
        rows: tuple[int, ...] = (),
        absent: tuple[int, ...] = (),
    ) -> Handle:
        set_id = WORLD if process_set is None else process_set.id()
        name = _plain(name)
        rank = self.runtime.topology.rank
        if rank not in self._members(process_set):
            raise ArgumentError(f"rank {rank} is not in {process_set!r}")
        request = Request(set_id, name or "", bool(name), signature, rows, absent, _call_site())
        handle = Handle(name or signature.kind.value, wrap, self.runtime.parts.heart)
        self.runtime.submit(Submission(request, sources, outs, handle, restore))
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

    def _members(self, process_set: ProcessSet | None) -> tuple[int, ...]:
        if process_set is None:
            return self._sets[WORLD]
        ranks = self._sets.get(process_set.id())
        if ranks != process_set.ranks:
            raise InitError(f"{process_set!r} was not given to this init()")
        return ranks


def _plain(name: str | None) -> str | None:
    """Return a name that can travel."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise ArgumentError(f"a name must be a str, not {name!r}")
    return str(name).encode("utf-8", "backslashreplace").decode()


def _check_reduction(seen: list[View], op: ReduceOp, compression: str, what: str) -> None:
    if not isinstance(op, ReduceOp):
        raise ArgumentError(f"{what}: op must be commrt.Average or commrt.Sum, not {op!r}")
    if compression not in NAMES:
        raise ArgumentError(
            f"{what}: compression must be one of {', '.join(NAMES)}, not {compression!r}"
        )
    dtypes = {v.array.dtype for v in seen}
    if compression != "none":
        for dtype in dtypes:
            choose(compression, dtype, op)  # loads what it needs here, not in the engine
    if len(dtypes) > 1:
        names = ", ".join(sorted(str(d) for d in dtypes))
        raise ArgumentError(f"{what}: the arrays of a group must have one dtype, not {names}")
    if op is ReduceOp.AVERAGE and np.dtype(np.bool_) in dtypes:
        raise ArgumentError(f"{what}: bool has no average; use op=commrt.Sum, which is logical or")


def _call_site() -> str:
    """Return file and line of the nearest caller outside this package; torch calls hooks."""
    frame = sys._getframe(1)
    ours = ("commrt.", "torch.")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"

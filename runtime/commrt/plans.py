"""What an operation on a caller's arrays is for the engine: signature, memory, result."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commrt import arrays
from commrt.arrays import Laid, View
from commrt.codecs.registry import NAMES, choose
from commrt.core.chunks import chunk_bounds
from commrt.engine.handle import Outcome
from commrt.errors import ArgumentError
from commrt.kernels.numpy_ import is_float
from commrt.types import Kind, ReduceOp, Signature, TensorSpec

Wrap = Callable[[Outcome], Any]
Collect = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """How values of different ranks become one; see `commrt.allreduce`."""

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0
    compression: str = "none"


@dataclass(frozen=True, slots=True)
class Plan:
    """An operation without its name; see `Request` and `Submission`. `wrap` makes the result."""

    signature: Signature
    sources: tuple[Any, ...]
    outs: tuple[Any, ...]
    wrap: Wrap
    restore: tuple[Any, ...] = ()
    rows: tuple[int, ...] = ()


def allreduce(xs: Sequence[Any], terms: Terms, inplace: bool, collect: Collect, what: str) -> Plan:
    """Plan a reduction of whole arrays; all of `xs` are one operation. Raises ArgumentError."""
    seen = [arrays.view(x, what) for x in xs]
    _check_terms(seen, terms, what)
    placed = [_place(v, inplace, what) for v in seen]
    specs = tuple(laid.spec for laid, _, _ in placed)

    def wrap(outcome: Outcome) -> Any:
        if inplace:
            return collect(list(xs))
        made = zip(seen, outcome.arrays, specs, strict=True)
        return collect([v.make(arrays.unlay(flat, spec)) for v, flat, spec in made])

    return Plan(
        _signature(Kind.ALLREDUCE, specs, terms),
        tuple(laid.flat for laid, _, _ in placed),
        tuple(out for _, out, _ in placed),
        wrap,
        tuple(pair for _, _, pairs in placed for pair in pairs),
    )


def reduce_scatter(
    xs: Sequence[Any], terms: Terms, size: int, index: int, collect: Collect, what: str
) -> Plan:
    """Plan a reduction whose first dimension is shared out; low ranks get what is left over."""
    seen = [arrays.view(x, what) for x in xs]
    _check_terms(seen, terms, what)
    for v in seen:
        if v.array.ndim == 0:
            raise ArgumentError(f"{what}: a 0-d array has no rows to share out")
    inputs = [np.ascontiguousarray(v.array) for v in seen]
    shapes = []
    for array in inputs:
        lo, hi = chunk_bounds(array.shape[0], size)[index]
        shapes.append((hi - lo, *array.shape[1:]))

    def wrap(outcome: Outcome) -> Any:
        made = zip(seen, outcome.arrays, shapes, strict=True)
        return collect([v.make(flat.reshape(shape)) for v, flat, shape in made])

    return Plan(
        _signature(Kind.REDUCESCATTER, tuple(_spec(a, a.shape[0]) for a in inputs), terms),
        tuple(a.reshape(-1) for a in inputs),
        tuple(np.empty(int(np.prod(s)), a.dtype) for a, s in zip(inputs, shapes, strict=True)),
        wrap,
    )


def allgather(xs: Sequence[Any], collect: Collect, what: str) -> Plan:
    """Plan to put the rows of all ranks one after the other."""
    seen = [arrays.view(x, what) for x in xs]
    inputs = [_rows(v.array) for v in seen]

    def wrap(outcome: Outcome) -> Any:
        made = zip(seen, inputs, outcome.arrays, outcome.rows, strict=True)
        return collect([v.make(f.reshape((sum(r), *a.shape[1:]))) for v, a, f, r in made])

    return Plan(
        Signature(Kind.ALLGATHER, tuple(_spec(a, 0) for a in inputs)),
        tuple(a.reshape(-1) for a in inputs),
        (),
        wrap,
        rows=tuple(a.shape[0] for a in inputs),
    )


def alltoall(x: Any, splits: Any, size: int, index: int, what: str) -> Plan:
    """Plan to send `splits[r]` rows to member r; the result comes with the rows received."""
    seen = arrays.view(x, what)
    array = _rows(seen.array)
    rows = _splits(array.shape[0], splits, size, what)

    def wrap(outcome: Outcome) -> Any:
        received = [sent[index] for sent in outcome.rows]
        flat = outcome.arrays[0]
        made = seen.make(flat.reshape((sum(received), *array.shape[1:])))
        return made, seen.make(np.array(received, np.int64))

    signature = Signature(Kind.ALLTOALL, (_spec(array, 0),))
    return Plan(signature, (array.reshape(-1),), (), wrap, rows=rows)


def broadcast(x: Any, root: int, inplace: bool, what: str) -> Plan:
    """Plan to send the root's array to all."""
    seen = arrays.view(x, what)
    laid, out, restore = _place(seen, inplace, what)

    def wrap(outcome: Outcome) -> Any:
        return x if inplace else seen.make(arrays.unlay(outcome.arrays[0], laid.spec))

    signature = Signature(Kind.BROADCAST, (laid.spec,), root=root)
    return Plan(signature, (laid.flat,), (out,), wrap, restore)


def _signature(kind: Kind, specs: tuple[TensorSpec, ...], terms: Terms) -> Signature:
    return Signature(
        kind, specs, terms.op, float(terms.prescale), float(terms.postscale), terms.compression
    )


def _place(seen: View, inplace: bool, what: str) -> tuple[Laid, Any, tuple[Any, ...]]:
    """Return where a tensor is read, where it is written, and what is copied back after."""
    laid = arrays.lay(seen.array)
    if not inplace:
        return laid, np.empty(laid.flat.size, laid.flat.dtype), ()
    arrays.check_writable(seen, what)
    if not laid.copied:
        return laid, laid.flat, ()
    return laid, laid.flat, ((seen.array, laid.flat.reshape(seen.array.shape)),)


def _spec(array: Any, rows: int) -> TensorSpec:
    """Return the spec of an array in C order that counts as having `rows` rows."""
    spec = arrays.lay(array).spec
    return replace(spec, shape=(rows, *array.shape[1:]))


def _rows(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    return array.reshape(1) if array.ndim == 0 else array


def _splits(rows: int, splits: Any, size: int, what: str) -> tuple[int, ...]:
    if splits is None:
        if rows % size:
            raise ArgumentError(
                f"{what}: {rows} rows can't be split evenly over {size} ranks; pass splits"
            )
        return (rows // size,) * size
    try:
        given = tuple(operator.index(n) for n in np.asarray(splits).reshape(-1).tolist())
    except (TypeError, ValueError):
        raise ArgumentError(f"{what}: splits must be whole numbers, not {splits!r}") from None
    if len(given) != size or min(given, default=0) < 0 or sum(given) != rows:
        raise ArgumentError(
            f"{what}: splits must be {size} numbers from 0 up that add up to the {rows} rows, "
            f"not {list(given)}"
        )
    return given


def _check_terms(seen: Sequence[View], terms: Terms, what: str) -> None:
    op, compression = terms.op, terms.compression
    if not isinstance(op, ReduceOp):
        names = ", ".join(o.name.title() for o in ReduceOp)
        raise ArgumentError(f"{what}: op must be one of commrt's {names}, not {op!r}")
    if compression not in NAMES:
        raise ArgumentError(
            f"{what}: compression must be one of {', '.join(NAMES)}, not {compression!r}"
        )
    for scale in (terms.prescale, terms.postscale):
        if not isinstance(scale, (int, float, np.number)):
            raise ArgumentError(f"{what}: a scale factor must be a number, not {scale!r}")
    for dtype in {v.array.dtype for v in seen}:
        _check_dtype(dtype, op, what)
        if compression != "none":
            choose(compression, dtype, op)  # loads what it needs here, not in the engine


def _check_dtype(dtype: Any, op: ReduceOp, what: str) -> None:
    if dtype == np.bool_ and op is ReduceOp.AVERAGE:
        raise ArgumentError(f"{what}: bool has no average; use op=commrt.Sum, which is logical or")
    if dtype.kind == "c" and op in (ReduceOp.MIN, ReduceOp.MAX):
        raise ArgumentError(f"{what}: complex numbers have no order, so no {op.value}")
    if op is ReduceOp.ADASUM and not is_float(dtype):
        raise ArgumentError(f"{what}: Adasum is for floats, not {dtype}")

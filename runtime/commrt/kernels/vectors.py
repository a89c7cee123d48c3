"""One loop over the memory of many ranks, in LLVM's terms, for all operations and formats.

numba's own loops over several arrays that may be the same memory are not vectorized; this one
loads a block of every source, joins them in order in registers, and stores it to every output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from commrt.kernels.compiler import cgutils, intrinsic, types

STAND_INS = {name: np.dtype([(name, np.uint16)]) for name in ("float16", "bfloat16")}
"""For dtypes, by name, that numba knows no arrays of."""

SUM, MIN, MAX, PRODUCT = range(4)

_BLOCK = 256
"""Bytes of a block, computed in registers."""

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS = {32: ir.FloatType(), 64: ir.DoubleType()}


@dataclass(frozen=True)
class Format:
    """How elements lie in memory, as `lanes` numbers `stored`, and are computed, `wide`.

    `kind`: f, i, u or c. Widths w are in numbers.
    """

    stored: Any
    wide: Any
    kind: str
    nbytes: int
    brain: bool = False
    lanes: int = 1

    @property
    def real(self) -> bool:
        """Can results be divided?"""
        return self.kind in "fc"

    def widen(self, b: Any, value: Any, w: int) -> Any:
        """Turn a stored vector into one to compute with."""
        if self.brain:
            words = ir.VectorType(_I32, w)
            bits = b.shl(b.zext(value, words), _splat_int(words, 16))
            return b.bitcast(bits, ir.VectorType(self.wide, w))
        return value if self.stored == self.wide else b.fpext(value, ir.VectorType(self.wide, w))

    def narrow(self, b: Any, value: Any, w: int) -> Any:
        """Round to the stored form, to nearest even."""
        if self.brain:
            words = ir.VectorType(_I32, w)
            bits = b.bitcast(value, words)
            top = b.lshr(bits, _splat_int(words, 16))
            odd = b.and_(top, _splat_int(words, 1))
            rounded = b.lshr(b.add(bits, b.add(odd, _splat_int(words, 0x7FFF))),
                             _splat_int(words, 16))  # fmt: skip
            quiet = b.or_(top, _splat_int(words, 0x40))
            nan = b.fcmp_unordered("uno", value, value)
            return b.trunc(b.select(nan, quiet, rounded), ir.VectorType(_I16, w))
        if self.stored == self.wide:
            return value
        return b.fptrunc(value, ir.VectorType(self.stored, w))


def _format(dtype: Any) -> Format:
    if isinstance(dtype, types.Record):
        brain = "bfloat16" in dtype.fields
        return Format(_I16 if brain else ir.HalfType(), _FLOATS[32], "f", 2, brain)
    if isinstance(dtype, types.Float):
        real = _FLOATS[dtype.bitwidth]
        return Format(real, real, "f", dtype.bitwidth // 8)
    if isinstance(dtype, types.Complex):
        real = _FLOATS[dtype.bitwidth // 2]
        return Format(real, real, "c", dtype.bitwidth // 8, lanes=2)
    integer = ir.IntType(dtype.bitwidth)
    return Format(integer, integer, "i" if dtype.signed else "u", dtype.bitwidth // 8)


def _splat_int(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _splat(b: Any, value: Any, w: int) -> Any:
    vector = ir.VectorType(value.type, w)
    first = b.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    return b.shuffle_vector(first, first, ir.Constant(ir.VectorType(_I32, w), [0] * w))


def _join(b: Any, op: int, form: Format, x: Any, y: Any) -> Any:
    if op == SUM:
        return b.fadd(x, y) if form.real else b.add(x, y)
    if op == PRODUCT and form.kind == "c":
        return _complex_product(b, x, y)
    if op == PRODUCT:
        return b.fmul(x, y) if form.real else b.mul(x, y)
    sign = "<" if op == MIN else ">"
    if form.real:  # NaN wins
        first = b.or_(b.fcmp_ordered(sign, x, y), b.fcmp_unordered("uno", x, x))
    else:
        compare = b.icmp_signed if form.kind == "i" else b.icmp_unsigned
        first = compare(sign, x, y)
    return b.select(first, x, y)


def _complex_product(b: Any, x: Any, y: Any) -> Any:
    """Multiply numbers whose parts take turns."""
    half = x.type.count // 2

    def pick(a: Any, other: Any, places: list[int]) -> Any:
        return b.shuffle_vector(a, other, ir.Constant(ir.VectorType(_I32, len(places)), places))

    even, odd = list(range(0, 2 * half, 2)), list(range(1, 2 * half, 2))
    xr, xi, yr, yi = pick(x, x, even), pick(x, x, odd), pick(y, y, even), pick(y, y, odd)
    re = b.fsub(b.fmul(xr, yr), b.fmul(xi, yi))
    im = b.fadd(b.fmul(xr, yi), b.fmul(xi, yr))
    return pick(re, im, [i for pair in zip(range(half), range(half, 2 * half), strict=True)
                         for i in pair])  # fmt: skip


@dataclass(frozen=True)
class Span:
    """What a loop works on, as LLVM values: addresses of lists of addresses, and how many."""

    sources: Any
    n: Any
    outs: Any
    m: Any
    divisor: Any
    factor: Any

    def element(self, b: Any, table: Any, number: Any, i: Any, form: Format, w: int) -> Any:
        """Return a pointer to w numbers, from element i on, of an array in a table."""
        entry = b.inttoptr(b.add(table, b.mul(number, _I64(8))), _I64.as_pointer())
        address = b.add(b.load(entry), b.mul(i, _I64(form.nbytes)))
        return b.inttoptr(address, ir.VectorType(form.stored, w).as_pointer())


def _block(b: Any, op: int, form: Format, span: Span, i: Any, elements: int) -> None:
    """Join and store some elements from i on."""
    w = elements * form.lanes
    total = cgutils.alloca_once(b, ir.VectorType(form.wide, w))

    def load(number: Any) -> Any:
        pointer = span.element(b, span.sources, number, i, form, w)
        return form.widen(b, b.load(pointer, align=form.nbytes // form.lanes), w)

    b.store(load(_I64(0)), total)
    with cgutils.for_range_slice(b, _I64(1), span.n, _I64(1), _I64) as (number, _):
        b.store(_join(b, op, form, b.load(total), load(number)), total)
    if form.real:
        with b.if_then(b.fcmp_ordered("!=", span.divisor, ir.Constant(form.wide, 1.0))):
            b.store(b.fdiv(b.load(total), _splat(b, span.divisor, w)), total)
        b.store(b.fmul(b.load(total), _splat(b, span.factor, w)), total)
    result = form.narrow(b, b.load(total), w)
    with cgutils.for_range(b, span.m, intp=_I64) as loop:
        pointer = span.element(b, span.outs, loop.index, i, form, w)
        b.store(result, pointer, align=form.nbytes // form.lanes)


def _loop(b: Any, op: int, form: Format, span: Span, lo: Any, hi: Any) -> None:
    w = _BLOCK // form.nbytes
    middle = b.add(lo, b.mul(b.sdiv(b.sub(hi, lo), _I64(w)), _I64(w)))
    with cgutils.for_range_slice(b, lo, middle, _I64(w), _I64) as (i, _):
        _block(b, op, form, span, i, w)
    with cgutils.for_range_slice(b, middle, hi, _I64(1), _I64) as (i, _):
        _block(b, op, form, span, i, 1)


@intrinsic  # type: ignore[untyped-decorator]
def reduce_span(
    context: Any, op: Any, like: Any, sources: Any, outs: Any, lo: Any, hi: Any, divisor: Any,
    factor: Any,
) -> Any:  # fmt: skip
    """Join elements [lo, hi) of all sources in order; divide, multiply, store to all outputs.

    Min and Max let NaN win; complex numbers have none.

    `like`: an array of the dtype. `sources`, `outs`: int64 arrays of addresses, not their own
    addresses: numba frees an array of the caller's where it last sees it used. Integers are neither
    divided nor multiplied.
    """
    form = _format(like.dtype)
    whole, table = types.int64, types.Array(types.int64, 1, "C")
    signature = types.void(whole, like, table, table, whole, whole, types.float64, types.float64)

    def generate(target: Any, b: Any, _: Any, args: Any) -> Any:
        code, _like, first, second, start, stop, div, mul = args
        real = form.wide if form.real else _FLOATS[64]
        if real != _FLOATS[64]:
            div, mul = b.fptrunc(div, real), b.fptrunc(mul, real)
        given, taken = (target.make_array(table)(target, b, value) for value in (first, second))
        span = Span(
            b.ptrtoint(given.data, _I64), given.nitems, b.ptrtoint(taken.data, _I64), taken.nitems,
            div, mul,
        )  # fmt: skip
        for op in (SUM, MIN, MAX, PRODUCT):
            with b.if_then(b.icmp_signed("==", code, _I64(op))):
                _loop(b, op, form, span, start, stop)
        return target.get_dummy_value()

    return signature, generate

"""Kernels in numpy: correct everywhere, the interpreter lock released in every inner loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commrt.types import ReduceOp

Flat = npt.NDArray[Any]


class Fold(Protocol):
    """Writes `a op b` to `out`, which may be `a` or `b`; all of one dtype."""

    def __call__(self, a: Flat, b: Flat, /, *, out: Flat) -> Any:
        """Join two ranks' values."""


@cache
def bfloat16() -> np.dtype[Any]:
    """Return bfloat16's dtype. The first call loads ml_dtypes, which takes half a second."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a `TensorSpec`'s name."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


@lru_cache(64)
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the dtype's name; numpy makes it anew each time."""
    return dtype.name


def is_float(dtype: np.dtype[Any]) -> bool:
    """Is it a floating-point dtype, bfloat16 included?"""
    return dtype.kind == "f" or name_of(dtype) == "bfloat16"


def fold(op: ReduceOp) -> Fold:
    """Return what joins two ranks' values. Booleans: Sum and Max are or, Min and Product and.

    Min and Max let NaN win.
    """
    return _FOLDS[op]


def neutral(op: ReduceOp, dtype: np.dtype[Any]) -> Any:
    """Return the value that changes nothing when it is joined to another."""
    if op is ReduceOp.PRODUCT:
        return dtype.type(1)
    if op not in (ReduceOp.MIN, ReduceOp.MAX):
        return dtype.type(0)
    low = op is ReduceOp.MAX
    if dtype == np.bool_:
        return np.bool_(not low)
    if is_float(dtype):
        return dtype.type(-np.inf if low else np.inf)
    return np.iinfo(dtype).min if low else np.iinfo(dtype).max


def scale(array: Flat, factor: float) -> None:
    """Multiply in place. Integers: the float64 product, rounded toward zero."""
    if array.dtype == np.bool_:
        return
    if is_float(array.dtype) or array.dtype.kind == "c":
        np.multiply(array, array.dtype.type(factor), out=array)
    else:
        np.copyto(array, np.trunc(array * np.float64(factor)), casting="unsafe")


def divide(array: Flat, n: int) -> None:
    """Divide floats in place by a number of ranks. A power of two is exact as a product."""
    if n & (n - 1):
        np.divide(array, array.dtype.type(n), out=array)
    else:
        np.multiply(array, array.dtype.type(1 / n), out=array)


def cast(source: Flat, out: Flat) -> None:
    """Convert values, rounding to nearest even; shapes equal."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, source, casting="unsafe")


def fold_cast(op: ReduceOp, total: Flat, source: Flat) -> None:
    """Join `source`, of any dtype, to `total` in the dtype of `total`."""
    with np.errstate(over="ignore", invalid="ignore"):
        _FOLDS[op](total, source, out=total, casting="unsafe", dtype=total.dtype)


def integer_mean(parts: Sequence[Flat], out: Flat) -> None:
    """Write the mean of integer arrays, one of each rank, rounded toward zero. Exact.

    Sums of quotients and of remainders never leave 64 bits, however large the values.
    """
    n = len(parts)
    wide = np.uint64 if out.dtype.kind == "u" else np.int64
    count = wide(n)
    quotient = np.zeros(out.shape, wide)
    rest = np.zeros(out.shape, wide)
    for part in parts:
        values = part.astype(wide)
        whole = values // count
        quotient += whole
        rest += values - whole * count
    quotient += rest // count
    rest %= count
    # Floor division went down; below zero, toward zero is one up unless it came out even.
    quotient += ((quotient < 0) & (rest != 0)).astype(wide)
    np.copyto(out, quotient, casting="unsafe")


_FOLDS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.AVERAGE: np.add,
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}

"""Kernels in numpy: correct everywhere, the interpreter lock released in every inner loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Flat = npt.NDArray[Any]


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


def scale(array: Flat, factor: float) -> None:
    """Multiply in place. Integers: the float64 product, rounded toward zero."""
    if array.dtype == np.bool_:
        return
    if is_float(array.dtype):
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


def add_cast(total: Flat, source: Flat) -> None:
    """Add `source`, of any dtype, to `total` in the dtype of `total`."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(total, source, out=total, casting="unsafe", dtype=total.dtype)


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

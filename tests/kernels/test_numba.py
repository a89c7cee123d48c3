"""Compiled kernels do what the numpy ones do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.kernels import numpy_
from commrt.kernels.numba_ import recipe, reduce_span
from commrt.kernels.numpy_ import dtype_of
from commrt.kernels.reduction import Reduction
from commrt.types import ReduceOp

REALS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
OPS = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)

Array = npt.NDArray[Any]


def addresses(arrays: list[Array]) -> npt.NDArray[np.int64]:
    return np.array([array.ctypes.data for array in arrays], np.int64)


def draw(rng: np.random.Generator, n: int, dtype: np.dtype[Any]) -> Array:
    if dtype == np.bool_:
        return rng.integers(0, 2, n).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, n, dtype, endpoint=True)
    values = rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], n)
    values = np.where(rng.random(n) < 0.1, special, values)
    if dtype.kind == "c":
        return (values + 1j * rng.normal(size=n)).astype(dtype)
    return values.astype(dtype)


def by_numpy(reduction: Reduction, sources: list[Array]) -> Array:
    """In order, in float32 where the dtype has 16 bits, rounded once."""
    dtype = sources[0].dtype
    halves = numpy_.is_float(dtype) and dtype.itemsize == 2
    total = sources[0].astype(np.float32 if halves else dtype)
    for source in sources[1:]:
        reduction.fold(total, source.astype(total.dtype), out=total)
    # Part by part: numpy divides and scales by complex numbers, with roundings of their own.
    reduction.finish(total.view(total.real.dtype) if dtype.kind == "c" else total)
    return total.astype(dtype)


def same(found: Array, expected: Array, op: ReduceOp, ranks: int) -> bool:
    """Bit for bit, but for which NaN it is, and for products of complex numbers.

    There numpy may round twice where it could three times: each product is off by less than
    sqrt(5) units (Brent, Percival and Zimmermann 2007).
    """
    if found.dtype.kind == "c" and op is ReduceOp.PRODUCT:
        usual = np.isfinite(found) & np.isfinite(expected)
        off = np.abs(found[usual] - expected[usual])
        unit = np.finfo(found.dtype).eps
        return bool((off <= 2 * ranks * np.sqrt(5) * unit * np.abs(expected[usual])).all())
    if found.dtype.kind in "iub":
        return found.tobytes() == expected.tobytes()
    kind = np.complex128 if found.dtype.kind == "c" else np.float64
    return np.array_equal(found.astype(kind), expected.astype(kind), equal_nan=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["bool", *REALS, *COMPLEX, *INTEGERS])
@given(
    n=st.integers(0, 700), ranks=st.integers(1, 9), seed=st.integers(0, 1 << 32),
    in_place=st.booleans(), divisor=st.sampled_from((1, 2, 3, 8)),
    scale=st.sampled_from((1.0, 0.5, 3.0)),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_span_is_reduced_as_by_numpy(
    name: str, op: ReduceOp, n: int, ranks: int, seed: int, in_place: bool, divisor: int,
    scale: float,
) -> None:  # fmt: skip
    dtype, rng = dtype_of(name), np.random.default_rng(seed)
    if dtype.kind == "c" and op in (ReduceOp.MIN, ReduceOp.MAX):
        return
    real = numpy_.is_float(dtype) or dtype.kind == "c"
    reduction = Reduction(op, divisor, scale) if real else Reduction(op)
    sources = [draw(rng, n, dtype) for _ in range(ranks)]
    outs = sources if in_place else [draw(rng, n, dtype) for _ in range(2)]
    lo, hi = sorted(rng.integers(0, n + 1, 2).tolist())
    with np.errstate(all="ignore"):
        whole = by_numpy(reduction, sources)
    expected = [np.concatenate([out[:lo], whole[lo:hi], out[hi:]]) for out in outs]
    how = recipe(reduction, dtype)
    assert how.finish is None
    reduce_span(how, addresses(sources), addresses(outs), lo, hi)
    for out, wanted in zip(outs, expected, strict=True):
        assert same(out, wanted, op, ranks)


@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_done_to_integers_at_the_end_is_left_to_numpy(name: str) -> None:
    reduction = Reduction(ReduceOp.SUM, scale=0.5)
    assert recipe(reduction, np.dtype(name)).finish == reduction
    assert recipe(Reduction(ReduceOp.SUM), np.dtype(name)).finish is None

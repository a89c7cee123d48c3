"""Kernels compiled by numba: the interpreter lock is released, memory is read once.

Same names as in `kernels/numpy_.py`, which serves what is not worth compiling. Importing this
takes a third of a second, the first call for a dtype about one where nothing is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.kernels import vectors
from commrt.kernels.compiler import compiled
from commrt.kernels.numpy_ import Flat, is_float, name_of
from commrt.kernels.reduction import Reduction
from commrt.types import ReduceOp

_CODES = {
    ReduceOp.SUM: vectors.SUM, ReduceOp.AVERAGE: vectors.SUM, ReduceOp.MIN: vectors.MIN,
    ReduceOp.MAX: vectors.MAX, ReduceOp.PRODUCT: vectors.PRODUCT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recipe:
    """A reduction in the terms of `vectors.reduce_span`; `finish`: what of it is left to numpy."""

    code: int
    like: npt.NDArray[Any]
    divisor: float
    factor: float
    finish: Reduction | None = None

    def complete(self, part: Flat) -> None:
        """Do in place, to a part that is joined, what is left to numpy."""
        if self.finish is not None:
            self.finish.finish(part)


@lru_cache(64)
def recipe(reduction: Reduction, dtype: np.dtype[Any]) -> Recipe:
    """Return how to compute a reduction of a dtype."""
    code = _CODES[reduction.op]
    if dtype == np.bool_:  # or is the most of two, and the least
        code = vectors.MAX if code in (vectors.SUM, vectors.MAX) else vectors.MIN
        return Recipe(code, np.empty(0, np.uint8), 1.0, 1.0)
    like = np.empty(0, vectors.STAND_INS.get(name_of(dtype), dtype))
    divisor, scale = reduction.divisor, reduction.scale
    if is_float(dtype) or dtype.kind == "c":
        if divisor & (divisor - 1):
            return Recipe(code, like, float(divisor), scale)
        return Recipe(code, like, 1.0, scale / divisor)
    plain = divisor == 1 and scale == 1.0
    return Recipe(code, like, 1.0, 1.0, None if plain else reduction)


@compiled
def _reduce_span(
    code: int, like: Any, sources: Any, outs: Any, lo: int, hi: int, divisor: float, factor: float
) -> None:
    vectors.reduce_span(code, like, sources, outs, lo, hi, divisor, factor)


Addresses = npt.NDArray[np.int64]
"""Addresses of arrays, shape (k,)."""


def reduce_span(how: Recipe, sources: Addresses, outs: Addresses, lo: int, hi: int) -> None:
    """Join elements [lo, hi) of all sources, in order, and write the result to all outputs.

    An output may be a source. `how.complete` comes after it.
    """
    _reduce_span(how.code, how.like, sources, outs, lo, hi, how.divisor, how.factor)

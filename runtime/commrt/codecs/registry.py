"""Which codec serves an operation. A new codec is one more line in `NAMES` and in `choose`."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.codecs.base import Codec
from commrt.codecs.direct import DirectFloat, DirectIntegerMean
from commrt.codecs.none import Plain
from commrt.kernels.numpy_ import dtype_of, is_float
from commrt.types import ReduceOp

_FP32 = np.dtype(np.float32)
_WIRES = {"fp16": "float16", "bf16": "bfloat16"}

NAMES = ("none", *_WIRES)
"""Values of `compression=`."""


def choose(name: str, dtype: np.dtype[Any], op: ReduceOp) -> Codec:
    """Return the codec for a dtype; `name` acts on floats wider than its wire dtype only."""
    if is_float(dtype):
        if dtype.itemsize == 2:
            return DirectFloat(dtype, _FP32)
        wire = _WIRES.get(name)
        return Plain() if wire is None else DirectFloat(dtype_of(wire), _FP32)
    if op is ReduceOp.AVERAGE and dtype != np.bool_:
        return DirectIntegerMean()
    return Plain()

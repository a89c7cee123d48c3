"""Which codec serves an operation. A new codec is one more line in `NAMES` and in `choose`."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.codecs.adasum import Adasum
from commrt.codecs.base import Codec
from commrt.codecs.direct import DirectFloat, DirectIntegerMean
from commrt.codecs.none import Plain
from commrt.kernels.numpy_ import dtype_of, is_float
from commrt.types import ReduceOp

_FP32 = np.dtype(np.float32)
_WIRES = {"fp16": "float16", "bf16": "bfloat16"}

NAMES = ("none", *_WIRES)
"""Values of `compression=`."""


def choose(name: str, dtype: np.dtype[Any], op: ReduceOp, wide: bool = False) -> Codec:
    """Return the codec for a dtype; `name` acts on floats wider than its wire dtype only.

    `wide`: the transport itself joins 16-bit floats in float32 and rounds once.
    """
    if not is_float(dtype):
        exact = op is ReduceOp.AVERAGE and dtype.kind in "iu"
        return DirectIntegerMean() if exact else Plain()
    coded = name in _WIRES and dtype.itemsize > 2
    wire = dtype_of(_WIRES[name]) if coded else dtype
    if op is ReduceOp.ADASUM:
        return Adasum(wire)
    # The lesser of two halves is one of them: nothing is rounded that a wider sum would save.
    plain = not coded and (wide or op in (ReduceOp.MIN, ReduceOp.MAX))
    return DirectFloat(wire, _FP32) if wire.itemsize == 2 and not plain else Plain()

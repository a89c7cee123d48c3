"""What takes the place of a rank's data once it has joined."""

from __future__ import annotations

from itertools import repeat
from math import prod
from typing import Any

import numpy as np

from commrt.engine.handle import Handle
from commrt.engine.heart import Heart
from commrt.engine.submission import Submission
from commrt.kernels.numpy_ import dtype_of, neutral
from commrt.transports.base import Flat
from commrt.types import Agreed, Kind, ReduceOp, Request


def stand_in(
    set_id: int, agreed: Agreed, heart: Heart, now: float, idle: bool = False
) -> Submission:
    """Make a submission that changes nobody's result. Nobody holds its handle.

    `idle`: nothing will be read of it.
    """
    signature = agreed.signature
    lengths = [prod(spec.shape) for spec in signature.tensors]
    dtypes = [dtype_of(spec.dtype) for spec in signature.tensors]
    if signature.kind is Kind.ALLGATHER:
        lengths = [0] * len(lengths)  # no rows
    elif signature.layout:
        lengths, dtypes = [signature.layout[-1].stop], dtypes[:1]
    sources = (
        tuple(map(np.empty, lengths, dtypes))
        if idle
        else tuple(map(_filled, lengths, dtypes, repeat(signature.op)))
    )
    request = Request(set_id, agreed.name, True, signature)
    handle = Handle(agreed.name, lambda _: None, heart)
    return Submission(request, sources, sources, handle, submitted=now, neutral=True)


def _filled(n: int, dtype: np.dtype[Any], op: ReduceOp) -> Flat:
    return np.full(n, neutral(op, dtype), dtype)

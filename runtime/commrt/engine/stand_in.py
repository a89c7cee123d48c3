"""What takes the place of a rank's data once it has joined."""

from __future__ import annotations

from math import prod

import numpy as np

from commrt.engine.handle import Handle
from commrt.engine.heart import Heart
from commrt.engine.submission import Submission
from commrt.kernels.numpy_ import dtype_of, neutral
from commrt.types import Agreed, Request


def stand_in(set_id: int, agreed: Agreed, heart: Heart) -> Submission:
    """Make a submission that changes nobody's result. Nobody holds its handle."""
    signature = agreed.signature
    sources = tuple(
        np.full(prod(spec.shape), neutral(signature.op, dtype_of(spec.dtype)), dtype_of(spec.dtype))
        for spec in signature.tensors
    )
    request = Request(set_id, agreed.name, True, signature)
    handle = Handle(agreed.name, lambda _: None, heart)
    return Submission(request, sources, sources, handle, neutral=True)

"""Reduce as it is: for dtypes whose results are exact enough in themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.codecs.base import Conversation, Exchange, Reduce, ReduceScatter
from commrt.kernels.reduction import Reduction


class Plain:
    """See `Codec`. Averages are divided by the rank that completes a chunk."""

    def exchange(self, job: Exchange) -> Conversation:
        """Ask for one reduction."""
        reduction = Reduction(job.op, job.size if job.mean else 1, job.scale)
        if job.counts is None:
            yield Reduce(job.source, job.out, reduction)
        else:
            yield ReduceScatter(job.source, job.out, job.counts, reduction)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Reduce-scatter and allgather."""
        return 2 * n * dtype.itemsize * (size - 1) // size

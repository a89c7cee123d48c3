"""Reduce as it is: for dtypes whose results are exact enough in themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.codecs.base import Conversation, Exchange, Flat, Reduce, ReduceScatter
from commrt.kernels import numpy_ as kernels


class Plain:
    """See `Codec`. Averages are divided by the rank that completes a chunk."""

    def exchange(self, job: Exchange) -> Conversation:
        """Ask for one reduction."""

        def finish(part: Flat) -> None:
            if job.mean and job.size > 1:
                kernels.divide(part, job.size)
            if job.scale != 1.0:
                kernels.scale(part, job.scale)

        plain = (not job.mean or job.size == 1) and job.scale == 1.0
        fold, last = kernels.fold(job.op), None if plain else finish
        if job.counts is None:
            yield Reduce(job.source, job.out, fold, last)
        else:
            yield ReduceScatter(job.source, job.out, job.counts, fold, last)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Reduce-scatter and allgather."""
        return 2 * n * dtype.itemsize * (size - 1) // size

"""Sum as it is: for dtypes whose sums are exact enough in themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from commrt.codecs.base import Conversation, Exchange, Flat, Reduce
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
        yield Reduce(job.source, job.out, None if plain else finish)

    def wire_nbytes(self, n: int, dtype: np.dtype[Any], size: int) -> int:
        """Reduce-scatter and allgather."""
        return 2 * n * dtype.itemsize * (size - 1) // size

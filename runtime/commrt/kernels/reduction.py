"""What is to be done to the values of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from commrt.kernels import numpy_
from commrt.kernels.numpy_ import Flat
from commrt.types import ReduceOp


@dataclass(frozen=True, slots=True)
class Reduction:
    """Join by `op`; what is complete is divided by `divisor`, then multiplied by `scale`.

    A mean is a sum with a divisor.
    """

    op: ReduceOp
    divisor: int = 1
    scale: float = 1.0

    def fold(self, a: Flat, b: Flat, out: Flat) -> None:
        """Write `a op b` to `out`, which may be `a` or `b`; all of one dtype."""
        numpy_.fold(self.op)(a, b, out=out)

    def finish(self, part: Flat) -> None:
        """Bring in place to an end a part that is complete. Each part once."""
        if self.divisor != 1:
            numpy_.divide(part, self.divisor)
        if self.scale != 1.0:
            numpy_.scale(part, self.scale)

"""What a step changed, in the place of gradients: for Adasum."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from commrt.torch.buckets import DenseBucket, Place
from commrt.transports.base import Flat
from commrt.types import Signature


class DeltaBucket(DenseBucket):
    """Parameters' changes since `mark`; reduced, they are the parameters' change."""

    def __init__(
        self, number: int, places: Sequence[Place], span: Flat, signature: Signature,
        densify: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(number, places, span, signature, densify)
        self._starts = [torch.empty_like(place.view) for place in places]

    def mark(self) -> None:
        """Remember the parameters as they are."""
        with torch.no_grad():
            torch._foreach_copy_(self._starts, self._params)

    def take_back(self) -> None:
        """Make the parameters what they were."""
        with torch.no_grad():
            torch._foreach_copy_(self._params, self._starts)

    def _gradients(self) -> list[torch.Tensor | None]:
        views = self._views.tensors
        with torch.no_grad():
            for param, start, view in zip(self._params, self._starts, views, strict=True):
                torch.sub(param, start, out=view)
        return list(views)

    def _give(self, reduced: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for param, start, delta in zip(self._params, self._starts, reduced, strict=True):
                torch.add(start, delta, out=param)

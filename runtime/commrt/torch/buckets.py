"""One optimizer's gradients: laid out in arenas, cut into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from operator import is_, is_not
from typing import cast

import numpy as np
import torch

from commrt import arrays
from commrt.api import session
from commrt.arrays import Laid
from commrt.codecs.registry import choose
from commrt.core.bucketing import BucketPolicy
from commrt.engine.arena import Arena, make_arena
from commrt.engine.handle import Handle, Outcome
from commrt.errors import ArgumentError
from commrt.kernels.numpy_ import dtype_of
from commrt.process_sets import ProcessSet
from commrt.transports.base import Flat
from commrt.types import Signature

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter with the tensor over the arena's memory that its reduced gradient is."""

    name: str
    param: torch.Tensor
    view: torch.Tensor


class Bucket:
    """Gradients that move together: a span of an arena. Thread safety: one thread at a time."""

    def __init__(
        self, name: str, places: Sequence[Place], span: Flat, signature: Signature
    ) -> None:
        self.name = name
        self.places = tuple(places)
        self.missing = len(places)
        self.handle: Handle | None = None
        self._params = [place.param for place in places]
        self._views = [place.view for place in places]
        self._span = span
        self._signature = signature

    def launch(self, process_set: ProcessSet) -> None:
        """Submit the span, gradients that lie elsewhere copied in. Does not block.

        A parameter whose gradient is None is announced as absent and counts as zeros.
        """
        found = [param.grad for param in self._params]
        absent = [i for i, missing in enumerate(map(is_, found, repeat(None))) if missing]
        for position in absent:
            found[position] = self._views[position].zero_()
        grads = cast(list[torch.Tensor], found)
        strays = list(map(is_not, grads, self._views))
        if all(strays):
            self._gather(self._views, grads)
        elif any(strays):
            self._gather(list(compress(self._views, strays)), list(compress(grads, strays)))
        self.handle = session().submit(
            self._signature, self.name, self._span, _absent, process_set, tuple(absent)
        )

    def adopt(self, absent: Sequence[int]) -> None:
        """Make the reduced gradients the parameters' own, but for those that no rank has."""
        self.handle = None
        kept = [self._params[position].grad for position in absent]
        for param, view in zip(self._params, self._views, strict=True):
            param.grad = view
        for position, grad in zip(absent, kept, strict=True):
            self._params[position].grad = grad

    def reset(self) -> None:
        """Be ready for the next gradients."""
        self.missing = len(self.places)
        self.handle = None

    def _gather(self, targets: list[torch.Tensor], strays: list[torch.Tensor]) -> None:
        try:
            with torch.no_grad():  # backward(create_graph=True) runs hooks with gradients on
                torch._foreach_copy_(targets, strays)
        except RuntimeError as exc:
            raise ArgumentError(self._refusal(str(exc))) from exc

    def _refusal(self, why: str) -> str:
        for place in self.places:
            grad = place.param.grad
            if grad is not None and grad.layout is not torch.strided:
                return (
                    f"parameter {place.name!r} has a gradient of layout {grad.layout}; only dense "
                    "ones can be reduced (for an embedding: sparse=False)"
                )
        return f"{self.name}: a gradient does not fit its parameter as it was wrapped: {why}"


def plan_buckets(
    named: Sequence[Named], like: Signature, policy: BucketPolicy, prefix: str, start: int = 0
) -> list[Bucket]:
    """Lay the gradients of `named` out in reverse order and cut them into buckets.

    An arena for each dtype. `like` gives all of the signature but the tensors; names are
    `{prefix}/bucket.{n}` with n from `start`. Raises ArgumentError for what can't be reduced.
    """
    groups: dict[str, list[tuple[Named, Laid]]] = {}
    for name, param in reversed(named):
        laid = arrays.lay(arrays.view(param, f"parameter {name!r}").array)
        groups.setdefault(laid.spec.dtype, []).append(((name, param), laid))
    buckets: list[Bucket] = []
    for dtype, group in groups.items():
        arena = make_arena([laid.flat.size for _, laid in group], dtype_of(dtype))
        places = [_place(arena, i, member, laid) for i, (member, laid) in enumerate(group)]
        codec = choose(like.codec, arena.flat.dtype, like.op)
        # What one of two ranks sends is one element on the wire for each element.
        sizes = [codec.wire_nbytes(laid.flat.size, arena.flat.dtype, 2) for _, laid in group]
        for lo, hi in policy.cut(sizes):
            signature = replace(like, tensors=tuple(laid.spec for _, laid in group[lo:hi]))
            name = f"{prefix}/bucket.{start + len(buckets)}"
            buckets.append(Bucket(name, places[lo:hi], arena.span(lo, hi), signature))
    return buckets


def _place(arena: Arena, index: int, member: Named, laid: Laid) -> Place:
    """Make a tensor with a storage of its own over a span of the arena.

    A slice of one big tensor would share its version counter, and be saved and copied with all
    of it. Strides are the parameter's, if its elements fill their memory.
    """
    name, param = member
    if not param.numel():
        return Place(name, param, torch.zeros_like(param, requires_grad=False))
    flat = torch.frombuffer(
        arena.flat.view(np.uint8), dtype=param.dtype, count=param.numel(),
        offset=arena.segments[index].start * param.element_size(),
    )  # fmt: skip
    strides = torch.empty(param.shape, device="meta").stride() if laid.copied else param.stride()
    view = torch.empty(0, dtype=param.dtype)
    view.set_(flat.untyped_storage(), 0, param.shape, strides)
    return Place(name, param, view)


def _absent(outcome: Outcome) -> tuple[int, ...]:
    return outcome.absent

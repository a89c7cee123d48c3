"""One optimizer's gradients: laid out in arenas, cut into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from operator import is_, is_not
from typing import Protocol, cast

import numpy as np
import torch

from commrt import arrays
from commrt.arrays import Laid
from commrt.codecs.registry import choose
from commrt.core.bucketing import BucketPolicy
from commrt.engine.arena import Allocate, Arena, make_arena
from commrt.engine.handle import Handle, Outcome
from commrt.errors import ArgumentError
from commrt.kernels.numpy_ import dtype_of
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.transports.base import Flat
from commrt.types import Signature, TensorSpec


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter that is to be planned. `group` is -1 outside groups."""

    index: int
    name: str
    param: torch.Tensor
    group: int = -1


@dataclass(frozen=True, slots=True)
class Place:
    """A parameter with the tensor over the arena's memory that its reduced gradient is.

    Users may move the tensor to other memory; `spare` stays at `address`.
    """

    member: Member
    view: torch.Tensor
    spare: torch.Tensor
    address: int


@dataclass(frozen=True, slots=True)
class Row:
    """Gradients of one dtype side by side in an arena, as all ranks lay them."""

    arena: Arena
    places: tuple[Place, ...]
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """Where operations go: a session, a process set, a prefix of names."""

    session: Session
    process_set: ProcessSet
    prefix: str

    def name(self, number: int) -> str:
        """Return the name of a bucket."""
        return f"{self.prefix}/bucket.{number}"


class Bucket(Protocol):
    """Gradients that move together. `missing` counts those that have not come yet.

    Thread safety: one thread at a time.
    """

    number: int
    members: tuple[Member, ...]
    missing: int

    def launch(self, way: Way) -> None:
        """Submit the gradients there are. Does not block. Raises CommError."""

    def launched(self) -> bool:
        """Has it been, and not been taken back?"""

    def handle(self) -> Handle | None:
        """Return what is under way."""

    def error(self) -> BaseException | None:
        """Wait for its end; return what went wrong."""

    def adopt(self) -> None:
        """Make the reduced gradients the parameters' own, but for those that no rank has."""

    def holds(self, param: torch.Tensor) -> bool:
        """Is the parameter's gradient still the one that was reduced last?"""

    def reset(self) -> None:
        """Forget what was launched, which must have ended."""


class Launchable:
    """What all buckets have in common: the operation under way, if there is one."""

    def __init__(self) -> None:
        self._handle: Handle | None = None

    def launched(self) -> bool:
        """Has it been, and not been taken back?"""
        return self._handle is not None

    def handle(self) -> Handle | None:
        """Return what is under way."""
        return self._handle

    def error(self) -> BaseException | None:
        """Wait for its end; return what went wrong."""
        return None if self._handle is None else self._handle.exception()

    def reset(self) -> None:
        """Forget what was launched, which must have ended."""
        self._handle = None


class DenseBucket(Launchable):
    """A span of an arena."""

    def __init__(
        self, number: int, places: Sequence[Place], span: Flat, signature: Signature,
        densify: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.number = number
        self.members = tuple(place.member for place in places)
        self.missing = len(places)
        self._params = [place.member.param for place in places]
        self._views = Views(places)
        self._wire = span, signature
        self._densify = densify

    def launch(self, way: Way) -> None:
        """Submit the span, gradients that lie elsewhere copied in. Does not block.

        A parameter whose gradient is None is announced as absent and counts as zeros.
        """
        found = self._gradients()
        absent = _places_of_none(found)
        views = self._views.checked()
        for position in absent:
            found[position] = views[position].zero_()
        grads = cast(list[torch.Tensor], found)
        strays = list(map(is_not, grads, views))
        if not all(strays):
            views, grads = list(compress(views, strays)), list(compress(grads, strays))
        if grads:
            self._gather(views, grads)
        span, signature = self._wire
        name = way.name(self.number)
        self._handle = way.session.submit(signature, name, span, _absent, way.process_set, absent)

    def adopt(self) -> None:
        """Make the reduced gradients the parameters' own, but for those that no rank has."""
        absent: Sequence[int] = () if self._handle is None else self._handle.wait()
        self._handle = None
        kept = [self._params[position].grad for position in absent]
        self._give(self._views.tensors)
        for position, grad in zip(absent, kept, strict=True):
            self._params[position].grad = grad

    def holds(self, param: torch.Tensor) -> bool:
        """Is the parameter's gradient still the one that was reduced last?"""
        return any(param.grad is view for view in self._views.tensors)

    def _gradients(self) -> list[torch.Tensor | None]:
        return [param.grad for param in self._params]

    def _give(self, reduced: Sequence[torch.Tensor]) -> None:
        for param, view in zip(self._params, reduced, strict=True):
            param.grad = view

    def _gather(self, targets: list[torch.Tensor], strays: list[torch.Tensor]) -> None:
        try:
            with torch.no_grad():  # backward(create_graph=True) runs hooks with gradients on
                torch._foreach_copy_(targets, self._dense(strays))
        except RuntimeError as exc:
            raise ArgumentError(self._refusal(str(exc))) from exc

    def _dense(self, strays: list[torch.Tensor]) -> list[torch.Tensor]:
        if not self._densify:
            return strays
        return [g if g.layout is torch.strided else g.to_dense() for g in strays]

    def _refusal(self, why: str) -> str:
        for member in self.members:
            grad = member.param.grad
            if grad is not None and grad.layout is not torch.strided:
                return (
                    f"parameter {member.name!r} has its first gradient of layout {grad.layout} "
                    "after steps without one; use sparse_as_dense=True (for an embedding: or "
                    "sparse=False)"
                )
        names = ", ".join(member.name for member in self.members[:4])
        return f"a gradient of {names} … does not fit its parameter: {why}"


class Views:
    """Tensors over a span of an arena, which stay there whatever users do to `.grad.data`."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.tensors = [place.view for place in places]
        self._addresses = [place.address for place in places]
        self._spares = [place.spare for place in places]

    def checked(self) -> list[torch.Tensor]:
        """Return the tensors, brought back with the values that they have if they were moved."""
        if list(map(torch.Tensor.data_ptr, self.tensors)) != self._addresses:
            for tensor, spare in zip(self.tensors, self._spares, strict=True):
                if tensor.data_ptr() != spare.data_ptr():
                    spare.copy_(tensor.detach())
                    tensor.data = spare
        return self.tensors


def lay_out(members: Sequence[Member], allocate: Allocate) -> list[Row]:
    """Lay gradients out in this order, those in groups last; a row for each dtype.

    Raises ArgumentError for what can't be reduced.
    """
    found: dict[str, list[tuple[Member, Laid]]] = {}
    for member in members:
        laid = lay(member.param, member.name)
        found.setdefault(laid.spec.dtype, []).append((member, laid))
    rows = []
    for dtype, pairs in found.items():
        pairs.sort(key=lambda pair: pair[0].group)  # stable; those without a group come first
        arena = make_arena([laid.flat.size for _, laid in pairs], dtype_of(dtype), allocate)
        places = [_place(arena, i, member, laid) for i, (member, laid) in enumerate(pairs)]
        rows.append(Row(arena, tuple(places), tuple(laid.spec for _, laid in pairs)))
    return rows


def cut_up(
    rows: Sequence[Row], like: Signature, policy: BucketPolicy, densify: bool = False,
    kind: type[DenseBucket] = DenseBucket,
) -> list[DenseBucket]:  # fmt: skip
    """Cut rows into buckets, numbered from 0; a group has a bucket of its own in each row.

    `like` gives all of the signature but the tensors.
    """
    buckets: list[DenseBucket] = []
    for row in rows:
        for lo, hi in _cut(row, like, policy):
            signature = replace(like, tensors=row.specs[lo:hi], layout=row.arena.layout(lo, hi))
            span = row.arena.span(lo, hi)
            buckets.append(kind(len(buckets), row.places[lo:hi], span, signature, densify))
    return buckets


def placeholder(like: Signature) -> DenseBucket:
    """Return bucket 0 of an optimizer without trainable parameters: it moves nothing."""
    signature = replace(like, tensors=(TensorSpec("float32", (0,)),), codec="none")
    return DenseBucket(0, (), np.empty(0, np.float32), signature)


def lay(param: torch.Tensor, name: str) -> Laid:
    """See a parameter as flat memory. Raises ArgumentError that names it."""
    return arrays.lay(arrays.view(param, f"parameter {name!r}").array)


def _cut(row: Row, like: Signature, policy: BucketPolicy) -> list[tuple[int, int]]:
    """Cut the gradients of one row, sorted by group."""
    groups = [place.member.group for place in row.places]
    loose = sum(group < 0 for group in groups)
    dtype = row.arena.flat.dtype
    codec = choose(like.codec, dtype, like.op)
    # What one of two ranks sends is one element on the wire for each element.
    lengths = [segment.stop - segment.start for segment in row.arena.segments[:loose]]
    ranges = policy.cut([codec.wire_nbytes(n, dtype, 2) for n in lengths])
    for i in range(loose, len(groups)):
        if i > loose and groups[i] == groups[i - 1]:
            ranges[-1] = ranges[-1][0], i + 1
        else:
            ranges.append((i, i + 1))
    return ranges


def _place(arena: Arena, index: int, member: Member, laid: Laid) -> Place:
    """Make a tensor with a storage of its own over a span of the arena.

    A slice of one big tensor would share its version counter, and be saved and copied with all
    of it. Strides are the parameter's, if its elements fill their memory.
    """
    param = member.param
    if not param.numel():
        return _placed(member, torch.zeros_like(param, requires_grad=False))
    flat = torch.frombuffer(
        arena.flat.view(np.uint8), dtype=param.dtype, count=param.numel(),
        offset=arena.segments[index].start * param.element_size(),
    )  # fmt: skip
    strides = torch.empty(param.shape, device="meta").stride() if laid.copied else param.stride()
    view = torch.empty(0, dtype=param.dtype)
    view.set_(flat.untyped_storage(), 0, param.shape, strides)
    return _placed(member, view)


def _placed(member: Member, view: torch.Tensor) -> Place:
    return Place(member, view, view.detach(), view.data_ptr())


def _places_of_none(found: Sequence[object]) -> tuple[int, ...]:
    missing = list(map(is_, found, repeat(None)))
    return tuple(compress(range(len(missing)), missing)) if any(missing) else ()


def _absent(outcome: Outcome) -> tuple[int, ...]:
    return outcome.absent

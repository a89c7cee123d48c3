"""Collectives as differentiable functions of several tensors.

Backward is collective too: every rank of the set must run it. Gradients are those that Horovod's
users train with. Measured against the gradient of the sum of all ranks' losses, they are that for
allreduce and alltoall, that divided by the size of the set for allgather and broadcast, and that
multiplied by the size for reducescatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch

from commrt.api import session
from commrt.errors import ArgumentError
from commrt.plans import Terms
from commrt.process_sets import ProcessSet
from commrt.torch.compiling import outside_graphs
from commrt.types import ReduceOp

Tensors = list[torch.Tensor]


class Operation(Protocol):
    """One call of a collective."""

    def run(self, tensors: Tensors) -> Tensors:
        """Return its results. Blocks."""

    def pull_back(self, grads: Tensors) -> Tensors:
        """Return the gradients of the tensors for those of the results. Blocks."""


@outside_graphs
def apply(operation: Operation, tensors: Sequence[torch.Tensor]) -> Tensors:
    """Run an operation, and record it if a tensor requires gradients. Blocks."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_Recorded.apply(operation, *tensors))  # type: ignore[no-untyped-call]
    return operation.run(list(tensors))


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operation: Operation, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.operation = operation
        return tuple(operation.run(list(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Their strides come from each rank's own graph, and ranks must agree.
        return None, *ctx.operation.pull_back([grad.contiguous() for grad in grads])


@dataclass(frozen=True, slots=True)
class Allreduce:
    """See `Operation`. Only Sum and Average have gradients."""

    name: str | None
    terms: Terms
    process_set: ProcessSet

    def run(self, tensors: Tensors) -> Tensors:
        """Reduce."""
        handle = session().grouped_allreduce_async(
            tensors, self.name, *_words(self.terms), self.process_set
        )
        return cast(Tensors, handle.wait())

    def pull_back(self, grads: Tensors) -> Tensors:
        """Reduce alike."""
        _check_linear(self.terms.op, "allreduce")
        return apply(replace(self, name=_of_gradient(self.name)), grads)


@dataclass(frozen=True, slots=True)
class Reducescatter:
    """See `Operation`. Only Sum and Average have gradients."""

    name: str | None
    terms: Terms
    process_set: ProcessSet

    def run(self, tensors: Tensors) -> Tensors:
        """Reduce, for our rows."""
        handle = session().grouped_reducescatter_async(
            tensors, self.name, *_words(self.terms), self.process_set
        )
        return cast(Tensors, handle.wait())

    def pull_back(self, grads: Tensors) -> Tensors:
        """Gather."""
        _check_linear(self.terms.op, "reducescatter")
        gathered = apply(Allgather(_of_gradient(self.name), self.process_set), grads)
        scale = self.terms.prescale * self.terms.postscale
        if self.terms.op is ReduceOp.SUM:
            scale *= self.process_set.size()
        return [grad * scale for grad in gathered]


@dataclass(slots=True)
class Allgather:
    """See `Operation`."""

    name: str | None
    process_set: ProcessSet
    shapes: list[torch.Size] = field(default_factory=list)

    def run(self, tensors: Tensors) -> Tensors:
        """Gather."""
        self.shapes = [tensor.shape for tensor in tensors]
        handle = session().grouped_allgather_async(tensors, self.name, self.process_set)
        return cast(Tensors, handle.wait())

    def pull_back(self, grads: Tensors) -> Tensors:
        """Average, for our rows."""
        name = _of_gradient(self.name)
        own = [shape[0] if shape else 1 for shape in self.shapes]
        handle = session().allgather_async(
            torch.tensor([own]), f"{name}.rows" if name else None, self.process_set
        )
        averages = apply(Allreduce(name, Terms(), self.process_set), grads)
        index = self.process_set.ranks.index(session().runtime.topology.rank)
        starts = handle.wait()[:index].sum(0).tolist()
        return [
            average[start : start + n].reshape(shape).clone()  # a view would keep all ranks' rows
            for average, start, n, shape in zip(averages, starts, own, self.shapes, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """See `Operation`. For one tensor."""

    name: str | None
    root_rank: int
    process_set: ProcessSet

    def run(self, tensors: Tensors) -> Tensors:
        """Send the root's to all."""
        (tensor,) = tensors
        handle = session().broadcast_async(tensor, self.root_rank, self.name, self.process_set)
        return [handle.wait()]

    def pull_back(self, grads: Tensors) -> Tensors:
        """Average, for the root; the others' tensors had no effect."""
        averages = apply(Allreduce(_of_gradient(self.name), Terms(), self.process_set), grads)
        if session().runtime.topology.rank == self.root_rank:
            return averages
        return [torch.zeros_like(average) for average in averages]


@dataclass(slots=True)
class Alltoall:
    """See `Operation`. For one tensor. `received`, after `run`: how many rows came from each."""

    name: str | None
    splits: Sequence[int] | None
    process_set: ProcessSet
    received: list[int] = field(default_factory=list)

    def run(self, tensors: Tensors) -> Tensors:
        """Send rows."""
        (tensor,) = tensors
        handle = session().alltoall_async(tensor, self.splits, self.name, self.process_set)
        result, received = handle.wait()
        self.received = received.tolist()
        return [result]

    def pull_back(self, grads: Tensors) -> Tensors:
        """Send what belongs to a row back to where it came from."""
        operation = Alltoall(_of_gradient(self.name), self.received, self.process_set)
        return apply(operation, grads)


def _words(terms: Terms) -> tuple[ReduceOp, float, float, str]:
    return terms.op, terms.prescale, terms.postscale, terms.compression


def _of_gradient(name: str | None) -> str | None:
    return f"{name}.grad" if name else None


def _check_linear(op: ReduceOp, what: str) -> None:
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ArgumentError(
            f"{what} with op={op.name.title()} has no gradient; Average and Sum have. Detach the "
            "tensor if none is wanted"
        )

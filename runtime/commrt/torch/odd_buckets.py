"""Gradients that can't lie in an arena: sparse ones, and those for a compressor of the user's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from commrt.engine.handle import Outcome
from commrt.errors import ArgumentError
from commrt.torch.buckets import Launchable, Member, Way, lay
from commrt.torch.compression import Compressor
from commrt.types import ReduceOp, Signature


class _Single(Launchable):
    """A bucket of one gradient."""

    def __init__(self, number: int, member: Member, like: Signature) -> None:
        super().__init__()
        self.number = number
        self.members: tuple[Member, ...] = (member,)
        self.missing = 1
        self._param = member.param
        self._like = like
        self._reduced: torch.Tensor | None = None

    def adopt(self) -> None:
        """Make the reduced gradient the parameter's own, unless no rank has one."""
        result = None if self._handle is None else self._handle.wait()
        self._handle = None
        if result is not None:
            self._reduced = self._param.grad = result

    def holds(self, param: torch.Tensor) -> bool:
        """Is the parameter's gradient still the one that was reduced last?"""
        return self._reduced is not None and param.grad is self._reduced


class SparseBucket(_Single):
    """One gradient as rows, gathered from all ranks and added up."""

    def __init__(self, number: int, member: Member, like: Signature, size: int) -> None:
        super().__init__(number, member, like)
        self._size = size

    def launch(self, way: Way) -> None:
        """Submit the rows there are. Raises ArgumentError if the gradient is not sparse by rows."""
        self._handle = way.session.grouped_allgather_async(
            self._rows(), way.name(self.number), way.process_set
        )

    def adopt(self) -> None:
        """Make the sum the parameter's gradient, unless no rank has a row."""
        if self._handle is None:
            return
        indices, values = self._handle.wait()
        self._handle = None
        if len(indices):
            factor = self._like.prescale * self._like.postscale
            if self._like.op is ReduceOp.AVERAGE:
                factor /= self._size
            total = torch.sparse_coo_tensor(
                indices[None], values, self._param.shape, check_invariants=False
            ).coalesce()
            self._reduced = self._param.grad = total * factor

    def _rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        grad = self._param.grad
        if grad is None:
            return torch.empty(0, dtype=torch.int64), self._param.detach()[:0]
        if grad.layout is torch.strided:
            grad = grad.to_sparse(1)
        if grad.layout is not torch.sparse_coo or grad.sparse_dim() != 1:
            raise ArgumentError(
                f"parameter {self.members[0].name!r} has a gradient of layout {grad.layout} that "
                "is not sparse by rows; use sparse_as_dense=True"
            )
        grad = grad.detach().coalesce()
        return grad.indices()[0], grad.values()


class CompressedBucket(_Single):
    """One gradient that a compressor of the user's turns into something else and back."""

    def __init__(
        self, number: int, member: Member, like: Signature, compressor: Compressor
    ) -> None:
        super().__init__(number, member, like)
        self._compressor = compressor

    def launch(self, way: Way) -> None:
        """Compress and submit; a missing gradient is announced as absent and counts as zeros."""
        grad = self._param.grad
        absent = (0,) if grad is None else ()
        given = torch.zeros_like(self._param) if grad is None else grad
        with torch.no_grad():
            packed, context = self._compressor.compress(given.detach())
        sent = packed.clone(memory_format=torch.contiguous_format)
        laid = lay(sent, self.members[0].name)

        def restore(outcome: Outcome) -> torch.Tensor | None:
            if outcome.absent:
                return None
            with torch.no_grad():
                return self._decompressed(sent, context)

        self._handle = way.session.submit(
            replace(self._like, tensors=(laid.spec,)), way.name(self.number), laid.flat, restore,
            way.process_set, absent,
        )  # fmt: skip

    def _decompressed(self, sent: torch.Tensor, context: Any) -> torch.Tensor:
        return self._compressor.decompress(sent, context).view(self._param.shape)

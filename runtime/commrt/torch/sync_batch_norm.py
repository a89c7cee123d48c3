"""Batch normalization over the joint batch of all ranks."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from commrt.api import global_process_set, session
from commrt.errors import ArgumentError
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.torch.compiling import outside_graphs
from commrt.types import ReduceOp


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm` for inputs of 2 and more dimensions, over the batches of all ranks.

    Batches may differ in size, and be empty on some ranks. Where it normalizes by the batch,
    forward and backward are collective: every rank of the set must run both, in the same order.
    The gradients of weight and bias are the rank's own share, for an optimizer to reduce.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, *,
        process_set: ProcessSet = global_process_set, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        # A copy of the set of all ranks would keep the ranks of this job.
        self._own_set = None if process_set is global_process_set else process_set
        self._named: tuple[weakref.ref[Session], str] | None = None

    @property
    def process_set(self) -> ProcessSet:
        """The ranks whose batches are joined."""
        return global_process_set if self._own_set is None else self._own_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Put a SyncBatchNorm, with the same parameters and buffers, for each BatchNorm in it.

        Changes `module`, and returns it, or what stands for it if it is a BatchNorm itself.
        """
        converted = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_set=process_set,
            )  # fmt: skip
            converted._parameters.update(module._parameters)
            converted._buffers.update(module._buffers)
            converted.training = module.training
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return converted

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize. Raises ValueError if the joint batch has but one value of each feature."""
        self._check_input_dim(input)
        by_batch = self.training or self.running_mean is None
        if not by_batch or self.process_set.size() == 1:
            return super().forward(input)
        return self._normalize_jointly(input)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.size(1) != self.num_features or not input.is_floating_point():
            raise ArgumentError(
                f"SyncBatchNorm: a floating input of shape (N, {self.num_features}, …) is needed, "
                f"not {tuple(input.shape)} of {input.dtype}"
            )

    @outside_graphs
    def _normalize_jointly(self, input: torch.Tensor) -> torch.Tensor:
        line = _Line(self._name(), self.process_set)
        joint = _join(_own_statistics(input), line)
        if joint.count == 1:
            raise ArgumentError(
                "SyncBatchNorm: a batch needs more than 1 value of each feature, over all ranks "
                f"together; this rank's input has shape {tuple(input.shape)}"
            )
        if self.training and self.track_running_stats:
            self._track(joint)
        result = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, joint, self.eps, line
        )
        return cast(torch.Tensor, result)

    def _track(self, joint: _Statistics) -> None:
        """Move the running statistics towards those of the joint batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        if not joint.count:
            return
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = joint.squares / (joint.count - 1)
        for buffer, seen in ((self.running_mean, joint.mean), (self.running_var, unbiased)):
            buffer.lerp_(seen.to(buffer.dtype), share)

    def _name(self) -> str:
        """Return a name for operations: ours alone in this session, and the same on all ranks."""
        current = session()
        if self._named is None or self._named[0]() is not current:
            line = f"sync_batch_norm.{self.process_set.id()}"
            self._named = (weakref.ref(current), f"{line}.{current.number(line)}")
        return self._named[1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the name out: a copy takes one of its own."""
        return {**self.__dict__, "_named": None}


@dataclass(frozen=True, slots=True)
class _Line:
    """Under which name a module communicates, and with whom."""

    name: str
    process_set: ProcessSet


@dataclass(frozen=True, slots=True)
class _Statistics:
    """Of each feature's values: how many, their mean, the sum of squared distances from it.

    In float64 whatever the input is: they are few.
    """

    count: int
    mean: torch.Tensor
    squares: torch.Tensor


def _own_statistics(input: torch.Tensor) -> _Statistics:
    wide = _widened(input.detach())
    axes = _all_but_features(wide)
    count = math.prod(wide.shape[axis] for axis in axes)
    mean = wide.sum(axes, dtype=torch.float64) / max(count, 1)
    distances = wide - _spread(mean, wide)
    return _Statistics(count, mean, distances.square_().sum(axes, dtype=torch.float64))


def _join(own: _Statistics, line: _Line) -> _Statistics:
    """Return the statistics of all ranks' values together.

    Chan, Golub, LeVeque 1979: Updating formulae and a pairwise algorithm for computing variances.
    """
    row = torch.cat([own.mean.new_tensor([own.count]), own.mean, own.squares])
    rows = session().allgather_async(row[None], f"{line.name}.forward", line.process_set).wait()
    counts = rows[:, :1]
    means, squares = rows[:, 1:].chunk(2, dim=1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count.clamp(min=1)
    return _Statistics(int(count), mean, (squares + counts * (means - mean).square()).sum(0))


class _Normalize(torch.autograd.Function):
    """Normalizes by joint statistics; backward adds up what the statistics owe to each value."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None,
        joint: _Statistics, eps: float, line: _Line,
    ) -> torch.Tensor:  # fmt: skip
        scale = (joint.squares / max(joint.count, 1) + eps).rsqrt()
        ctx.save_for_backward(input, weight, joint.mean, scale)
        ctx.count, ctx.line = joint.count, line
        wide = _widened(input)
        result = wide - _spread(joint.mean, wide)
        result *= _spread(scale if weight is None else scale * weight, wide)
        if bias is not None:
            result += _spread(bias, wide)
        return result.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, scale = ctx.saved_tensors
        wide, grad = _widened(input), _widened(grad)
        axes = _all_but_features(wide)
        normal = (wide - _spread(mean, wide)).mul_(_spread(scale, wide))
        sums = torch.stack([
            grad.sum(axes, dtype=torch.float64),
            (grad * normal).sum(axes, dtype=torch.float64),
        ])  # fmt: skip
        for_input = None
        if ctx.needs_input_grad[0]:
            joint = _add_up(sums, ctx.line) / max(ctx.count, 1)
            for_input = grad - normal.mul_(_spread(joint[1], wide)) - _spread(joint[0], wide)
            for_input *= _spread(scale if weight is None else scale * weight, wide)
            for_input = for_input.to(input.dtype)
        for_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        for_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return for_input, for_weight, for_bias, None, None, None


def _add_up(sums: torch.Tensor, line: _Line) -> torch.Tensor:
    name = f"{line.name}.backward"
    handle = session().allreduce_async(sums, name, ReduceOp.SUM, process_set=line.process_set)
    return cast(torch.Tensor, handle.wait())


def _widened(values: torch.Tensor) -> torch.Tensor:
    """Return 16-bit floats as 32-bit ones, others as they are."""
    return values.float() if values.dtype.itemsize < 4 else values


def _all_but_features(values: torch.Tensor) -> list[int]:
    return [axis for axis in range(values.dim()) if axis != 1]


def _spread(features: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Shape one number for each feature so that it meets all values of that feature."""
    return features.to(values.dtype).view(-1, *(1 for _ in values.shape[2:]))

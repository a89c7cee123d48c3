"""What a `DistributedOptimizer` was told, checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from commrt.api import global_process_set, is_initialized
from commrt.config import parse_bucket
from commrt.errors import ArgumentError
from commrt.process_sets import ProcessSet
from commrt.torch.compression import codec_of
from commrt.types import Kind, ReduceOp, Signature

Groups = int | Sequence[Sequence[torch.Tensor]] | None

_OPS = (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM)


@dataclass(frozen=True, slots=True)
class Options:
    """How gradients are reduced. Can be copied and pickled; `subset` None means all ranks.

    `groups`: the parameters that are reduced together, or into how many groups all are split.
    `bucket`: a size in bytes, `auto` or `formula`; None: as the settings say. `deterministic`:
    buckets stay what they are at first.
    """

    compression: Any
    op: ReduceOp
    predivide: float
    groups: int | tuple[tuple[torch.Tensor, ...], ...]
    sparse_as_dense: bool
    subset: ProcessSet | None
    buffers: Any
    bucket: int | str | None = None
    deterministic: bool = False

    def process_set(self) -> ProcessSet:
        """Return the ranks that reduce together."""
        return global_process_set if self.subset is None else self.subset

    def codec(self) -> str | None:
        """Return the runtime's codec; None if the compression is a class of the user's."""
        return codec_of(self.compression)

    def densifies(self) -> bool:
        """Are sparse gradients, if there are any, reduced as dense ones?"""
        return self.sparse_as_dense or self.op is ReduceOp.ADASUM

    def tunes(self) -> bool:
        """Can buckets and their order change from step to step?"""
        fixed = self.deterministic or self.op is ReduceOp.ADASUM
        return not fixed and self.codec() is not None

    def terms(self) -> str:
        """Write what must be alike on all ranks."""
        number = self.groups if isinstance(self.groups, int) else "lists"
        codec = self.codec() or getattr(self.compression, "__name__", "of the user's")
        return (
            f"op {self.op.value}, compression {codec}, gradient_predivide_factor "
            f"{self.predivide!r}, groups {number}, sparse_as_dense {self.sparse_as_dense}, "
            f"bucket {self.bucket}, deterministic {self.deterministic}"
        )

    def signature(self) -> Signature:
        """Return what all buckets have in common."""
        codec = self.codec() or "none"
        if self.predivide == 1.0:
            return Signature(Kind.ALLREDUCE, (), self.op, codec=codec, fusable=False)
        scales = (1 / self.predivide, self.predivide / self.process_set().size())
        return Signature(Kind.ALLREDUCE, (), ReduceOp.SUM, *scales, codec, fusable=False)

    def group_of(self) -> dict[int, int]:
        """Return the number of the group of every parameter that was put into one, by `id`."""
        if isinstance(self.groups, int):
            return {}
        return {id(param): number for number, g in enumerate(self.groups) for param in g}


def make_options(
    compression: Any, op: ReduceOp, predivide: float, num_groups: int, groups: Groups,
    sparse_as_dense: bool, process_set: ProcessSet, buffers: Any, bucket: int | str | None,
    deterministic: bool,
) -> Options:  # fmt: skip
    """Check what can be checked before `init()`. Raises ArgumentError, InitError."""
    if codec_of(compression) is None and op is ReduceOp.ADASUM:
        raise ArgumentError("op=Adasum takes Compression.none, fp16 or bf16")
    if op not in _OPS:
        raise ArgumentError(f"op must be Average, Sum or Adasum, not {op!r}")
    predivide = float(predivide)
    if not predivide > 0:
        raise ArgumentError(f"gradient_predivide_factor must be positive, not {predivide!r}")
    if predivide != 1.0 and op is not ReduceOp.AVERAGE:
        raise ArgumentError("gradient_predivide_factor needs op=Average")
    if is_initialized():
        process_set.id()  # raises if the runtime does not know it
    subset = None if process_set is global_process_set else process_set
    return Options(
        compression, op, predivide, _groups(num_groups, groups), bool(sparse_as_dense), subset,
        buffers, _bucket(bucket), bool(deterministic),
    )  # fmt: skip


def check_passes(passes: int) -> int:
    """Return a number of backward passes. Raises ArgumentError."""
    if not isinstance(passes, int) or passes < 1:
        raise ArgumentError(f"backward_passes_per_step must be 1 or more, not {passes!r}")
    return passes


def check_groups(options: Options, params: Iterable[torch.Tensor]) -> None:
    """Raise ArgumentError if a group holds what is no parameter of the optimizer."""
    strangers = options.group_of().keys() - {id(param) for param in params}
    if strangers:
        raise ArgumentError(f"groups holds {len(strangers)} tensors that the optimizer has not")


def _bucket(bucket: int | str | None) -> int | str | None:
    try:
        return None if bucket is None else parse_bucket(str(bucket))
    except ValueError as exc:
        raise ArgumentError(f"bucket must be a size in bytes, 'auto' or 'formula': {exc}") from None


def _groups(num_groups: int, groups: Groups) -> int | tuple[tuple[torch.Tensor, ...], ...]:
    if num_groups:
        warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None:
        return 0
    if isinstance(groups, int):
        if isinstance(groups, bool) or groups < 0:
            raise ArgumentError(f"groups must be 0 or more, not {groups!r}")
        return groups
    lists = tuple(tuple(group) for group in groups if isinstance(group, (list, tuple)))
    flat = [param for group in lists for param in group]
    if len(lists) != len(groups) or not all(isinstance(p, torch.Tensor) for p in flat):
        raise ArgumentError("groups must be a number, or lists of parameters")
    if len({id(param) for param in flat}) < len(flat):
        raise ArgumentError("groups: a parameter is in two groups, or twice in one")
    return lists

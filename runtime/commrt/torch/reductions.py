"""Allreduce and reducescatter of tensors, with Horovod's signatures.

Those that return a new tensor and block are differentiable (see `commrt.torch.autograd`); results
of the others are detached from autograd's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from commrt.api import global_process_set, session
from commrt.engine.handle import Handle
from commrt.operations import Average
from commrt.plans import Terms
from commrt.process_sets import ProcessSet
from commrt.torch.arguments import check, check_all, choose_op
from commrt.torch.autograd import Allreduce, Reducescatter, apply
from commrt.torch.compression import Compression, Compressor, compress
from commrt.types import ReduceOp


def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none, op: ReduceOp | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Return the average over ranks, or what `op` says. Blocks.

    The gradient of an average or a sum is the gradient reduced alike; other ops have none.
    Raises ArgumentError, a ValueError, if both `average` and `op` are given.
    """
    check(tensor, "allreduce")
    reduced, codec, undo = compress(compression, [tensor])
    terms = Terms(choose_op(average, op), prescale_factor, postscale_factor, codec)
    return undo(apply(Allreduce(name, terms, process_set), reduced))[0]


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Do `allreduce` in place and return `tensor`."""
    handle = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return cast(torch.Tensor, handle.wait())


def allreduce_async(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `allreduce`; leave `tensor` as it is until the handle is done. Does not block."""
    check(tensor, "allreduce_async")
    return session().allreduce_async(
        tensor, name, choose_op(average, op), prescale_factor, postscale_factor,
        process_set=process_set,
    )  # fmt: skip


def allreduce_async_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `allreduce_`; do not touch `tensor` until the handle is done. Does not block."""
    check(tensor, "allreduce_async_")
    return session().allreduce_async(
        tensor, name, choose_op(average, op), prescale_factor, postscale_factor,
        process_set=process_set, inplace=True,
    )  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none, op: ReduceOp | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:  # fmt: skip
    """Do `allreduce` of several tensors as one operation: all or none."""
    group = check_all(tensors, "grouped_allreduce")
    reduced, codec, undo = compress(compression, group)
    terms = Terms(choose_op(average, op), prescale_factor, postscale_factor, codec)
    return undo(apply(Allreduce(name, terms, process_set), reduced))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:  # fmt: skip
    """Do `grouped_allreduce` in place and return the tensors."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return cast("list[torch.Tensor]", handle.wait())


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `grouped_allreduce`; leave the tensors as they are until the one handle is done."""
    return session().grouped_allreduce_async(
        check_all(tensors, "grouped_allreduce_async"), name, choose_op(average, op),
        prescale_factor, postscale_factor, process_set=process_set,
    )  # fmt: skip


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    op: ReduceOp | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `grouped_allreduce_`; do not touch the tensors until the one handle is done."""
    return session().grouped_allreduce_async(
        check_all(tensors, "grouped_allreduce_async_"), name, choose_op(average, op),
        prescale_factor, postscale_factor, process_set=process_set, inplace=True,
    )  # fmt: skip


def reducescatter(
    tensor: torch.Tensor, name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none, op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """Return this rank's rows of the average over ranks, or of what `op` says. Blocks.

    Dimension 0 is cut into one part for each rank; what is left over goes to the low ranks. The
    gradient of an average is the gathered gradient, of a sum that times the size of the set.
    """
    check(tensor, "reducescatter")
    reduced, codec, undo = compress(compression, [tensor])
    terms = Terms(op, prescale_factor, postscale_factor, codec)
    return undo(apply(Reducescatter(name, terms, process_set), reduced))[0]


def reducescatter_async(
    tensor: torch.Tensor, name: str | None = None, op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:  # fmt: skip
    """Start `reducescatter`; leave `tensor` as it is until the handle is done."""
    check(tensor, "reducescatter_async")
    return session().reducescatter_async(
        tensor, name, op, prescale_factor, postscale_factor, process_set=process_set
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], name: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none, op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:  # fmt: skip
    """Do `reducescatter` of several tensors as one operation: all or none."""
    group = check_all(tensors, "grouped_reducescatter")
    reduced, codec, undo = compress(compression, group)
    terms = Terms(op, prescale_factor, postscale_factor, codec)
    return undo(apply(Reducescatter(name, terms, process_set), reduced))


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:  # fmt: skip
    """Start `grouped_reducescatter`; leave the tensors as they are until the handle is done."""
    return session().grouped_reducescatter_async(
        check_all(tensors, "grouped_reducescatter_async"), name, op, prescale_factor,
        postscale_factor, process_set=process_set,
    )  # fmt: skip

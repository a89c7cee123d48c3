"""Operations on tensors, with Horovod's signatures. Results are detached from autograd's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from commrt.api import Average, Sum, global_process_set, session
from commrt.engine.handle import Handle
from commrt.errors import ArgumentError
from commrt.process_sets import ProcessSet
from commrt.torch.compression import Compression, Compressor, codec_of
from commrt.types import ReduceOp


def allreduce(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
    compression: Compressor = Compression.none, op: ReduceOp | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Return the average over ranks, or the sum with `op=Sum`. Blocks.

    Raises ArgumentError, a ValueError, if both `average` and `op` are given.
    """
    _check(tensor, "allreduce")
    handle = session().allreduce_async(
        tensor, name, choose_op(average, op), prescale_factor, postscale_factor,
        codec_of(compression), process_set,
    )  # fmt: skip
    return cast(torch.Tensor, handle.wait())


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
    _check(tensor, "allreduce")
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
    _check(tensor, "allreduce_")
    return session().allreduce_async(
        tensor, name, choose_op(average, op), prescale_factor, postscale_factor,
        process_set=process_set, inplace=True,
    )  # fmt: skip


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
    compression: Compressor = Compression.none, op: ReduceOp | None = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:  # fmt: skip
    """Do `allreduce` of several tensors of one dtype as one operation: all or none."""
    for tensor in tensors:
        _check(tensor, "grouped_allreduce")
    handle = session().grouped_allreduce_async(
        tensors, name, choose_op(average, op), prescale_factor, postscale_factor,
        codec_of(compression), process_set,
    )  # fmt: skip
    return cast("list[torch.Tensor]", handle.wait())


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensors of all ranks one after the other along dimension 0. Blocks."""
    _check(tensor, "allgather")
    return cast(torch.Tensor, session().allgather_async(tensor, name, process_set).wait())


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Return the root's tensor. `root_rank` is a world rank, in any process set. Blocks."""
    _check(tensor, "broadcast")
    handle = session().broadcast_async(tensor, root_rank, name, process_set)
    return cast(torch.Tensor, handle.wait())


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Do `broadcast` in place and return `tensor`."""
    _check(tensor, "broadcast_")
    handle = session().broadcast_async(tensor, root_rank, name, process_set, inplace=True)
    return cast(torch.Tensor, handle.wait())


def choose_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Merge Horovod's two ways to say what is computed. Raises ArgumentError if both are used."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ArgumentError("give average or op, not both: op=Average or op=Sum says it all")
    return Average if average else Sum


def _check(tensor: Any, what: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            f"{what}: a torch.Tensor is needed, not {type(tensor).__name__}; "
            "the functions of commrt itself take arrays and numbers"
        )

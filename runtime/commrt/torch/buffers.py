"""Keeps the buffers of a model, such as BatchNorm's statistics, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from commrt.api import global_process_set, session
from commrt.engine.handle import Handle
from commrt.process_sets import ProcessSet
from commrt.types import ReduceOp

Start = Callable[[torch.Tensor], Handle]


def average_buffers(
    model: torch.nn.Module, process_set: ProcessSet = global_process_set
) -> None:  # fmt: skip
    """Set floating buffers to their average over ranks, others to the lowest rank's. Blocks.

    For BatchNorm: before an evaluation or a checkpoint, if every rank has statistics of its own.
    """
    floats, others = _buffers(model)
    _together(floats, _averaging(process_set))
    _together(others, _broadcasting(process_set))


def broadcast_buffers(
    model: torch.nn.Module, process_set: ProcessSet = global_process_set
) -> None:  # fmt: skip
    """Set all buffers to those of the set's lowest rank. Blocks."""
    floats, others = _buffers(model)
    _together([*floats, *others], _broadcasting(process_set))


def _averaging(process_set: ProcessSet) -> Start:
    return lambda flat: session().allreduce_async(
        flat, None, ReduceOp.AVERAGE, process_set=process_set, inplace=True
    )


def _broadcasting(process_set: ProcessSet) -> Start:
    root = min(process_set.ranks)
    return lambda flat: session().broadcast_async(flat, root, process_set=process_set, inplace=True)


def _buffers(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found = [buffer.detach() for buffer in model.buffers()]
    floats = [buffer for buffer in found if buffer.is_floating_point()]
    return floats, [buffer for buffer in found if not buffer.is_floating_point()]


def _together(tensors: list[torch.Tensor], start: Start) -> None:
    """Move tensors as one array of each dtype."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    flats = [torch.cat([t.reshape(-1) for t in group]) for group in by_dtype.values()]
    handles = [start(flat) for flat in flats]
    for handle, group in zip(handles, by_dtype.values(), strict=True):
        flat = cast(torch.Tensor, handle.wait())
        for tensor, part in zip(group, torch.split(flat, [t.numel() for t in group]), strict=True):
            tensor.copy_(part.view(tensor.shape))

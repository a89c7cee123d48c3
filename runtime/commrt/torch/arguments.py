"""Checks of what operations on tensors are called with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from commrt.errors import ArgumentError
from commrt.types import ReduceOp


def choose_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """Merge Horovod's two ways to say what is computed. Raises ArgumentError if both are used."""
    if average is None:
        return ReduceOp.AVERAGE if op is None else op
    if op is not None:
        raise ArgumentError("give average or op, not both: op=Average or op=Sum says it all")
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


def check(tensor: Any, what: str) -> None:
    """Raise ArgumentError for what is no tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(
            f"{what}: a torch.Tensor is needed, not {type(tensor).__name__}; "
            "the functions of commrt itself take arrays and numbers"
        )


def check_all(tensors: Iterable[Any], what: str) -> list[torch.Tensor]:
    """Return the tensors of a group. Raises ArgumentError for what is no sequence of tensors."""
    group = list(tensors)
    if isinstance(tensors, torch.Tensor) or not group:
        raise ArgumentError(f"{what}: a list of tensors is needed, not {tensors!r}")
    for tensor in group:
        check(tensor, what)
    return group

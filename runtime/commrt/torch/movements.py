"""Allgather, broadcast and alltoall of tensors, and waiting for ranks, with Horovod's signatures.

Those that return new tensors and block are differentiable (see `commrt.torch.autograd`); results
of the others are detached from autograd's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from commrt import operations
from commrt.api import global_process_set, session
from commrt.engine.handle import Handle
from commrt.process_sets import ProcessSet
from commrt.torch.arguments import check, check_all
from commrt.torch.autograd import Allgather, Alltoall, Broadcast, apply


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensors of all ranks one after the other along dimension 0. Blocks.

    First dimensions may differ. The gradient is this rank's rows of the averaged gradient.
    """
    check(tensor, "allgather")
    return apply(Allgather(name, process_set), [tensor])[0]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `allgather`; leave `tensor` as it is until the handle is done. Does not block."""
    check(tensor, "allgather_async")
    return session().allgather_async(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:  # fmt: skip
    """Do `allgather` of several tensors as one operation: all or none."""
    group = check_all(tensors, "grouped_allgather")
    return apply(Allgather(name, process_set), group)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `grouped_allgather`; leave the tensors as they are until the one handle is done."""
    group = check_all(tensors, "grouped_allgather_async")
    return session().grouped_allgather_async(group, name, process_set)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Return the root's tensor. `root_rank` is a world rank, in any process set. Blocks.

    The gradient is the averaged gradient on the root, and zero elsewhere.
    """
    check(tensor, "broadcast")
    return apply(Broadcast(name, root_rank, process_set), [tensor])[0]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:  # fmt: skip
    """Do `broadcast` in place and return `tensor`."""
    return cast(torch.Tensor, broadcast_async_(tensor, root_rank, name, process_set).wait())


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `broadcast`; leave `tensor` as it is until the handle is done. Does not block."""
    check(tensor, "broadcast_async")
    return session().broadcast_async(tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `broadcast_`; do not touch `tensor` until the handle is done. Does not block."""
    check(tensor, "broadcast_async_")
    return session().broadcast_async(tensor, root_rank, name, process_set, inplace=True)


def alltoall(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Send the r-th part of the rows to member r; return what all sent here, in order. Blocks.

    Without `splits` parts are equal. With them, one number of rows for each member, returns
    (tensor, rows received from each member as a tensor). Gradients go back the same way.
    """
    check(tensor, "alltoall")
    exchange = Alltoall(name, splits, process_set)
    (result,) = apply(exchange, [tensor])
    if splits is None:
        return result
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    return result, torch.tensor(exchange.received, dtype=dtype)


def alltoall_async(
    tensor: torch.Tensor, splits: Any = None, name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:  # fmt: skip
    """Start `alltoall`; the result is always (tensor, rows received from each member)."""
    check(tensor, "alltoall_async")
    return session().alltoall_async(tensor, splits, name, process_set)


def join(device: int = -1) -> int:
    """Do `commrt.join`. Tensors stay where they are, so `device` has no effect."""
    return operations.join()

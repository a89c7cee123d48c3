"""Sums of sparse tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from commrt.api import global_process_set, session
from commrt.errors import ArgumentError
from commrt.process_sets import ProcessSet
from commrt.torch.arguments import check
from commrt.types import ReduceOp


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:  # fmt: skip
    """Start a sum or an average of sparse COO tensors; return a function that waits for it.

    What moves is every rank's indices and values. The result is not coalesced: an index stands in
    it once for each rank that has it. Does not block. Raises ArgumentError.
    """
    check(tensor, "sparse_allreduce_async")
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError(f"sparse_allreduce_async: the tensor's layout is {tensor.layout}")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ArgumentError(f"sparse_allreduce_async: op must be Average or Sum, not {op!r}")
    mine = tensor.detach().coalesce()
    shape = mine.values().new_empty(0, *tensor.shape)  # has no rows, but ranks must agree on it
    handle = session().grouped_allgather_async(
        [mine.indices().t(), mine.values(), shape], name, process_set
    )

    def result() -> torch.Tensor:
        indices, values, _ = handle.wait()
        if op is ReduceOp.AVERAGE:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return result

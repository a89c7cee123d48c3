"""Sends the state of a model and of an optimizer from one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from commrt.api import session
from commrt.engine.handle import Handle
from commrt.errors import ArgumentError, DuplicateNameError
from commrt.torch.naming import with_names

Params = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | Iterable[torch.Tensor]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """Stands in a pickled skeleton where a tensor was."""

    index: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def broadcast_parameters(params: Params, root_rank: int) -> None:
    """Overwrite the tensors of a `state_dict()`, or of (name, tensor) pairs, with the root's.

    Tensors without names go by their place. All ranks must give the same names; `root_rank` is a
    world rank. Blocks.
    """
    pairs = with_names(params, "broadcast_parameters")
    _broadcast([(f"broadcast_parameters.{name}", tensor) for name, tensor in pairs], root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Load the root's `state_dict()` on every rank: its tensors, its settings, its empty places.

    Horovod's `model` is not needed: no step is taken to make state. Blocks. Raises ArgumentError
    on every rank if the optimizers differ in kind or in parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentError("broadcast_optimizer_state: the state of LBFGS can't be sent")
    _check_alike(optimizer)
    tensors: list[torch.Tensor] = []
    mine = session().runtime.topology.rank == root_rank
    skeleton = _map(optimizer.state_dict(), torch.Tensor, _taker(tensors)) if mine else None
    skeleton = session().broadcast_object(skeleton, root_rank)
    if not mine:
        skeleton = _map(skeleton, TensorSlot, _maker(tensors))
    _broadcast([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank)
    if not mine:
        optimizer.load_state_dict(skeleton)


def _broadcast(named: Iterable[tuple[str, torch.Tensor]], root_rank: int) -> None:
    """Broadcast in place, all at once."""
    handles: list[Handle] = []
    for name, tensor in named:
        try:
            handles.append(session().broadcast_async(tensor, root_rank, name, inplace=True))
        except DuplicateNameError:  # tied weights: the memory is on its way under another name
            for handle in handles:
                handle.wait()
            handles = [session().broadcast_async(tensor, root_rank, name, inplace=True)]
    for handle in handles:
        handle.wait()


def _check_alike(optimizer: torch.optim.Optimizer) -> None:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    bare = getattr(optimizer, "_optimizer", optimizer)  # one of ours wraps the user's
    kinds = session().allgather_object(f"{type(bare).__name__} of parameter groups of {sizes}")
    if len(set(kinds)) > 1:
        said = "; ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise ArgumentError(f"broadcast_optimizer_state: the optimizers differ. {said}")


def _map(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Copy nested dicts, lists and tuples with every `kind` in them changed."""
    if isinstance(value, kind):
        return change(value)
    if type(value) is dict:
        return {key: _map(item, kind, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(item, kind, change) for item in value)
    return value


def _taker(tensors: list[torch.Tensor]) -> Callable[[torch.Tensor], TensorSlot]:
    """Collect tensors, dense ones as they are, and leave their slots."""

    def take(tensor: torch.Tensor) -> TensorSlot:
        strides = torch.empty_like(tensor, device="meta").stride()
        if strides != tensor.stride():
            tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
        tensors.append(tensor.detach())
        return TensorSlot(len(tensors) - 1, tensor.dtype, tuple(tensor.shape), strides)

    return take


def _maker(tensors: list[torch.Tensor]) -> Callable[[TensorSlot], torch.Tensor]:
    """Collect empty tensors for the slots, which come in order."""

    def make(slot: TensorSlot) -> torch.Tensor:
        tensors.append(torch.empty_strided(slot.shape, slot.strides, dtype=slot.dtype))
        return tensors[slot.index]

    return make

"""Notices that ranks have drifted apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from commrt.api import global_process_set, session
from commrt.errors import MismatchError
from commrt.process_sets import ProcessSet
from commrt.torch.buffers import broadcast_buffers
from commrt.torch.digests import digest, first_difference
from commrt.torch.naming import Named, with_names
from commrt.torch.options import Options

Replicated = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[Named | torch.Tensor]


def check_replicas(
    model_or_params: Replicated, process_set: ProcessSet = global_process_set
) -> None:
    """Raise MismatchError on every rank if parameters differ; it names the first and the ranks.

    Takes a model (its parameters, not its buffers), a `state_dict()`, (name, tensor) pairs or
    tensors. Blocks; reads all of them once.
    """
    params = model_or_params
    if isinstance(params, torch.nn.Module):
        params = params.named_parameters()
    digests = {name: digest(tensor) for name, tensor in with_names(params, "check_replicas")}
    gathered = session().allgather_object(digests, process_set=process_set)
    text = first_difference(dict(zip(process_set.ranks, gathered, strict=True)))
    if text is not None:
        raise MismatchError(f"check_replicas: {text}")


class AfterStep:
    """What an optimizer was asked to do after its steps."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._steps = 0

    def run(self, named: Sequence[Named]) -> None:
        """Look after buffers and parameters. All ranks must have taken as many steps."""
        self._steps += 1
        process_set, buffers = self._options.process_set(), self._options.buffers
        if buffers is not None:
            broadcast_buffers(buffers, process_set)
        every = session().runtime.config.check_every
        if every and self._steps % every == 0:
            check_replicas(named, process_set)

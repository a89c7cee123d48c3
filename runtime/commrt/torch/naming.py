"""Names of gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from commrt.errors import ArgumentError
from commrt.torch.buckets import Named


def name_gradients(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None
) -> list[Named]:
    """Return the optimizer's parameters that require gradients, in the order of their names' list.

    Raises ArgumentError unless names are unique and cover all of them.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    wanted = {id(param) for param in params if param.requires_grad}
    if named_parameters is None:
        named = [
            (f"group{g}.param{i}", param)
            for g, group in enumerate(optimizer.param_groups)
            for i, param in enumerate(group["params"])
        ]
        return [(name, param) for name, param in named if id(param) in wanted]
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ArgumentError("named_parameters must be (name, parameter) pairs")
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"named_parameters must be unique; given twice: {', '.join(twice)}")
    chosen: dict[int, Named] = {}
    for name, param in named:
        if id(param) in wanted:
            chosen.setdefault(id(param), (name, param))
    if len(chosen) < len(wanted):
        raise ArgumentError(
            f"named_parameters names {len(chosen)} of the optimizer's {len(wanted)} parameters "
            "that require gradients; it must name them all"
        )
    return list(chosen.values())

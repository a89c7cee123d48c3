"""Names of parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from commrt.errors import ArgumentError

Named = tuple[str, torch.Tensor]


def name_parameters(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None
) -> list[Named]:
    """Return all of the optimizer's parameters, each once, in the order of their names' list.

    Frozen ones may lack a name of their own. Raises ArgumentError unless names are unique and
    cover the others.
    """
    by_place = _by_place(optimizer)
    if named_parameters is None:
        return by_place
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise ArgumentError("named_parameters must be (name, parameter) pairs")
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ArgumentError(f"named_parameters must be unique; given twice: {', '.join(twice)}")
    ours = {id(param) for _, param in by_place}
    chosen: dict[int, Named] = {}
    for name, param in named:
        if id(param) in ours:
            chosen.setdefault(id(param), (name, param))
    rest = [pair for pair in by_place if id(pair[1]) not in chosen]
    if any(param.requires_grad for _, param in rest):
        wanted = sum(param.requires_grad for _, param in by_place)
        known = sum(param.requires_grad for _, param in chosen.values())
        raise ArgumentError(
            f"named_parameters names {known} of the optimizer's {wanted} parameters "
            "that require gradients; it must name them all"
        )
    return [*chosen.values(), *rest]


def with_names(params: Mapping[str, Any] | Iterable[Any], what: str) -> list[Named]:
    """Return (name, tensor) pairs of a mapping, of pairs, or of tensors, which get their places.

    Raises ArgumentError.
    """
    pairs = params.items() if isinstance(params, Mapping) else params
    named = [(str(i), p) if isinstance(p, torch.Tensor) else p for i, p in enumerate(pairs)]
    for pair in named:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], torch.Tensor)):
            raise ArgumentError(
                f"{what}: {pair!r} is no tensor and not a (name, tensor) pair; broadcast_object "
                "sends what is no tensor"
            )
    return named


def name_added(optimizer: torch.optim.Optimizer, known: Iterable[Named]) -> list[Named]:
    """Return the parameters that have come to the optimizer since `known` were named.

    One whose place was another's before has that place's name with a number.
    """
    ids, taken = {id(param) for _, param in known}, {name for name, _ in known}
    added: list[Named] = []
    for name, param in _by_place(optimizer):
        if id(param) not in ids:
            free = next(n for n in _numbered(name) if n not in taken)
            taken.add(free)
            added.append((free, param))
    return added


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{number}" for number in itertools.count(2))


def _by_place(optimizer: torch.optim.Optimizer) -> list[Named]:
    named: dict[int, Named] = {}
    for g, group in enumerate(optimizer.param_groups):
        for i, param in enumerate(group["params"]):
            named.setdefault(id(param), (f"group{g}.param{i}", param))
    return list(named.values())

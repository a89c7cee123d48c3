"""The optimizers that are wrapped in this process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from commrt.errors import ArgumentError


class Number:
    """A wrapper's number, drawn when it is first asked for: ranks may copy wrappers unevenly."""

    def __init__(self) -> None:
        self._drawn: int | None = None

    def __call__(self) -> int:
        """Return it."""
        if self._drawn is None:
            self._drawn = registry.draw()
        return self._drawn


class Registry:
    """Numbers wrappers; the numbers are part of names, so ranks must ask for them alike.

    It outlives runtimes, as wrappers do: a number of a later runtime must not be an earlier one's.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._owners: weakref.WeakKeyDictionary[Any, tuple[torch.optim.Optimizer, Number]]
        self._owners = weakref.WeakKeyDictionary()

    def claim(self, wrapper: Any, optimizer: torch.optim.Optimizer, number: Number) -> None:
        """Note a wrapper. Raises ArgumentError if a parameter of it is in a living one."""
        self.check(_params(optimizer))
        self._owners[wrapper] = optimizer, number

    def check(self, params: Iterable[torch.Tensor], without: Any = None) -> None:
        """Raise ArgumentError if a parameter is in a living wrapper other than `without`."""
        wanted = {id(param) for param in params}
        for wrapper, (other, number_of_other) in self._owners.items():
            if wrapper is not without and any(id(param) in wanted for param in _params(other)):
                raise ArgumentError(
                    f"a parameter of this optimizer is in DistributedOptimizer {number_of_other()} "
                    "already, and would be reduced twice; delete that one first"
                )

    def several(self) -> bool:
        """Are there several wrappers?"""
        return len(self._owners) > 1

    def draw(self) -> int:
        """Return the next number."""
        return next(self._numbers)


def _params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


registry = Registry()
"""Of this process: wrappers made before `init()`, and under several runtimes, meet here."""

"""Keeps what communicates out of the graphs of `torch.compile`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Do what `torch.compiler.disable` does, which loads the compiler and takes two seconds.

    While nobody else has loaded it there are no graphs to be kept out of.
    """

    @functools.cache
    def disabled() -> Callable[P, R]:
        return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = disabled() if "torch._dynamo" in sys.modules else function
        return chosen(*args, **kwargs)

    return call

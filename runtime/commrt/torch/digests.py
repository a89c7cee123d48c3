"""Digests of parameters, and what they say of the ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch

from commrt import arrays
from commrt.torch.cards import by_value, of_ranks


def digest(tensor: torch.Tensor) -> int:
    """Return a number that tells values, dtypes and shapes apart. Costs about 1 ns a byte."""
    laid = arrays.lay(arrays.view(tensor, "a parameter").array)
    start = zlib.crc32(f"{laid.spec.dtype}{laid.spec.shape}".encode())
    return zlib.crc32(laid.flat.view("u1").data, start)


def first_difference(digests: Mapping[int, Mapping[str, int]]) -> str | None:
    """Name the first parameter that differs, and the ranks. `digests`: by rank, then by name."""
    for name in next(iter(digests.values())):
        groups = by_value({rank: of_rank.get(name) for rank, of_rank in digests.items()})
        if len(groups) > 1:
            most, *rest = (of_ranks(ranks) for _, ranks in groups)
            return f"parameter {name!r} differs: {most} against {' against '.join(rest)}"
    return None

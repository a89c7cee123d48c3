"""Where an arena is cut into buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from commrt.core.growth import START


class BucketPolicy(Protocol):
    """Decides which gradients, in the order in which they become ready, share a bucket."""

    def cut(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return half-open index ranges over `sizes` (bytes of each gradient), in order."""


_LEAST = 4 << 20
_SHARES = 16


@dataclass(frozen=True, slots=True)
class FixedBuckets:
    """Buckets of at least `nbytes`, the first of at least `first` so that the wire starts early."""

    nbytes: int
    first: int

    def cut(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Close a bucket when it has reached its size; the last one takes what is left."""
        ranges: list[tuple[int, int]] = []
        start = used = 0
        for i, size in enumerate(sizes):
            used += size
            if used >= (self.nbytes if ranges else self.first):
                ranges.append((start, i + 1))
                start, used = i + 1, 0
        if start < len(sizes):
            ranges.append((start, len(sizes)))
        return ranges


@dataclass(frozen=True, slots=True)
class FormulaBuckets:
    """Buckets of 4 MiB, or of the bytes of all gradients / (16 x ranks) if that is more.

    Large models on few ranks gain by fewer, larger buckets, each of which costs both ends some
    time; on many ranks what a bucket waits for grows with its size.
    """

    ranks: int
    first: int

    def cut(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """See `FixedBuckets`."""
        nbytes = max(_LEAST, sum(sizes) // (_SHARES * self.ranks))
        return FixedBuckets(nbytes, self.first).cut(sizes)


def policy_of(choice: int | str, first: int, ranks: int) -> BucketPolicy:
    """Return the policy for a size in bytes, for `formula`, or for the beginning of `auto`."""
    if choice == "formula":
        return FormulaBuckets(ranks, first)
    nbytes = START if isinstance(choice, str) else choice
    return FixedBuckets(nbytes, min(first, nbytes))

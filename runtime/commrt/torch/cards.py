"""What ranks tell one another of an optimizer before they plan alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commrt.types import TensorSpec


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter on one rank. `group` is -1 outside groups; `digest` is of its values."""

    name: str
    spec: TensorSpec
    group: int
    trainable: bool
    sparse: bool
    digest: int


@dataclass(frozen=True, slots=True)
class Card:
    """One rank's view of an optimizer.

    `terms` are options as text, `trouble` says what has gone wrong on this rank alone, or ''.
    """

    entries: tuple[Entry, ...]
    terms: str
    trouble: str = ""


_FACETS: tuple[tuple[str, Callable[[Entry], str]], ...] = (
    ("the dtype", lambda e: e.spec.dtype),
    ("the shape", lambda e: str(e.spec.shape)),
    (
        "the memory order (strides)",
        lambda e: "C" if e.spec.order is None else f"axes {e.spec.order} slowest to fastest",
    ),
    ("the group", lambda e: str(e.group)),
)


def difference(cards: Mapping[int, Card]) -> str | None:
    """Say where ranks differ in what must be alike, or None. The same text on every rank."""
    troubled = {rank: card.trouble for rank, card in cards.items() if card.trouble}
    if troubled and len(troubled) < len(cards):
        return "; ".join(f"rank {rank}: {trouble}" for rank, trouble in troubled.items())
    terms = by_value({rank: card.terms for rank, card in cards.items()})
    if len(terms) > 1:
        return f"the options differ between ranks. {said(terms)}"
    tables = {rank: {e.name: e for e in card.entries} for rank, card in cards.items()}
    first, names = next((rank, list(table)) for rank, table in tables.items())
    for rank, table in tables.items():
        odd = [name for name in names if name not in table]
        extra = [name for name in table if name not in tables[first]]
        if odd:
            return f"rank {rank} has no parameter {odd[0]!r}, which rank {first} has"
        if extra:
            return f"rank {first} has no parameter {extra[0]!r}, which rank {rank} has"
    for name in names:
        for what, of in _FACETS:
            values = by_value({rank: of(table[name]) for rank, table in tables.items()})
            if len(values) > 1:
                return f"parameter {name!r}: {what} differs between ranks. {said(values)}"
    return None


def merge(cards: Mapping[int, Card]) -> tuple[Entry, ...]:
    """Return the first rank's order, with what is trainable or sparse on any rank."""
    first = next(iter(cards.values()))
    trainable, sparse = (
        {e.name for card in cards.values() for e in card.entries if getattr(e, what)}
        for what in ("trainable", "sparse")
    )
    return tuple(
        Entry(e.name, e.spec, e.group, e.name in trainable, e.name in sparse, e.digest)
        for e in first.entries
    )


def planned_alike(cards: Mapping[int, Card]) -> bool:
    """Would all ranks plan the same by what they know themselves?"""
    plans = {tuple((e.name, e.trainable, e.sparse) for e in c.entries) for c in cards.values()}
    return len(plans) == 1


def by_value(values: Mapping[int, Any]) -> list[tuple[Any, list[int]]]:
    """Group ranks by what they hold, the most common first."""
    order = [value for value, _ in Counter(values.values()).most_common()]
    return [(value, [rank for rank, v in values.items() if v == value]) for value in order]


def said(groups: Sequence[tuple[Any, list[int]]]) -> str:
    """Write what which ranks hold."""
    return "; ".join(f"{of_ranks(ranks)}: {value}" for value, ranks in groups)


def of_ranks(ranks: Sequence[int]) -> str:
    """Write ranks."""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks[:8]))}{' …' if len(ranks) > 8 else ''}"

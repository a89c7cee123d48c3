"""Tables of fixed width in the style of nccl-tests: lines that begin with `#` are no data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commrt.cli.bench.figures import Ratio

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Column:
    """A right-aligned column. `unit` stands below the title."""

    title: str
    unit: str = ""
    width: int = 10


def header(columns: Sequence[Column]) -> str:
    """Return the lines above a table."""
    titles = _line(columns, [column.title for column in columns])
    units = _line(columns, [f"({column.unit})" if column.unit else "" for column in columns])
    return "\n".join(f"#{line[1:]}".rstrip() for line in (titles, units))


def row(columns: Sequence[Column], cells: Sequence[Cell]) -> str:
    """Return one line of a table."""
    return _line(columns, [number(c) if isinstance(c, float) else str(c) for c in cells])


def number(value: float) -> str:
    """Write a figure with about four digits that count, and at most four behind the point."""
    magnitude = abs(value)
    if magnitude >= 100:
        return f"{value:.{0 if magnitude >= 1000 else 1}f}"
    return f"{value:.{2 if magnitude >= 1 or not value else 3 if magnitude >= 0.1 else 4}f}"


def sentence(found: Ratio) -> str:
    """Say a ratio in one line."""
    return (
        f"# {found.what}, {found.of} / {found.to}: {number(found.value)} "
        f"(single rounds {number(found.low)} to {number(found.high)})"
    )


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return "".join(f" {cell:>{column.width}}" for column, cell in zip(columns, cells, strict=True))

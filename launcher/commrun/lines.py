"""Turns the ranks' output into whole lines with prefixes. Pure; times are seconds of one clock."""

from __future__ import annotations

import re
from collections.abc import Callable

_LONGEST = 1 << 20
_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
_ERASE = b"\x1b[K"

Source = tuple[int, bytes]
"""A rank and one of its streams, as `commrun.wire` names them."""
Piece = tuple[bytes, bytes]
"""A stream of commrun and what to write there."""


class Screen:
    """Gives each line its prefix, and keeps lines whole wherever the streams of all ranks end up.

    A line that stays without its end is shown after `patience` seconds: a prompt, a progress
    bar. If another line must follow, it is broken there. A carriage return ends a line only on
    a terminal, and is passed on there.
    """

    def __init__(
        self, prefix: Callable[[int], bytes], terminals: frozenset[bytes], patience: float
    ) -> None:
        self._prefix = prefix
        self._terminals = terminals
        self._patience = patience
        self._partial: dict[Source, tuple[bytes, float]] = {}
        self._open: Source | None = None
        self._returned = False

    def feed(self, rank: int, stream: bytes, data: bytes, now: float) -> list[Piece]:
        """Take bytes of any length; return what can be shown now."""
        source = (rank, stream)
        begin, since = self._partial.pop(source, (b"", now))
        data = begin + data
        if stream in self._terminals and b"\r" in data:
            out, rest = self._with_returns(source, data)
        else:
            head, newline, rest = data.rpartition(b"\n")
            out = self._show(source, head, newline) if newline else []
        if rest:
            self._partial[source] = (rest, now if out else since)
        return out + (self._reveal(source) if len(rest) > _LONGEST else [])

    @property
    def deadline(self) -> float | None:
        """When `tick` is due."""
        times = [since for _, since in self._partial.values()]
        return min(times) + self._patience if times else None

    def tick(self, now: float) -> list[Piece]:
        """Show what has waited long enough for the end of its line."""
        due = [s for s, (_, since) in self._partial.items() if now >= since + self._patience]
        return [piece for source in due for piece in self._reveal(source)]

    def close(self) -> list[Piece]:
        """Show all that is left, with line ends."""
        out = [piece for source in list(self._partial) for piece in self._reveal(source)]
        return out + self._break(None)

    def _with_returns(self, source: Source, data: bytes) -> tuple[list[Piece], bytes]:
        out: list[Piece] = []
        start = 0
        for match in _END.finditer(data):
            text = data[start : match.start()]
            end = b"\r" if match[0] == b"\r" else b"\n"
            start = match.end()
            if text or end == b"\n" or self._open == source:
                out += self._show(source, text, end)
        return out, data[start:]

    def _reveal(self, source: Source) -> list[Piece]:
        text, _ = self._partial.pop(source)
        if source[1] in self._terminals and text.endswith(b"\r"):
            return self._show(source, text[:-1], b"\r")
        return self._show(source, text, b"")

    def _show(self, source: Source, text: bytes, end: bytes) -> list[Piece]:
        """Show lines of one source; without an end the last one stays open for more of it."""
        rank, stream = source
        prefix = self._prefix(rank)
        out = self._break(source)
        first = b"" if self._open == source else prefix
        if self._returned and stream in self._terminals:
            first = _ERASE + first
        self._returned = end == b"\r"
        self._open = None if end else source
        return [*out, (stream, first + text.replace(b"\n", b"\n" + prefix) + end)]

    def _break(self, source: Source | None) -> list[Piece]:
        """End the open line if it is of another source."""
        if self._open is None or self._open == source:
            return []
        stream = self._open[1]
        self._open = None
        return [(stream, b"\n")]

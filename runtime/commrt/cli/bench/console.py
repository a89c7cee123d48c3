"""What a benchmark says: rank 0 speaks, the others are silent."""

from __future__ import annotations

import sys


class Console:
    """Text on standard output; progress on standard error if that is a terminal."""

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._terminal = speaks and sys.stderr.isatty()
        self._shown = 0

    def say(self, text: str) -> None:
        """Print a line or several."""
        self.progress("")
        if self._speaks:
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Show what is under way in place of what was shown before."""
        if self._terminal and (text or self._shown):
            print(f"\r{text:<{self._shown}}\r{text}", end="", file=sys.stderr, flush=True)
            self._shown = len(text)

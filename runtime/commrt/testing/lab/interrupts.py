"""Ctrl-C at a better moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C take effect at the end only. Does nothing in threads, which it does not reach."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []

    def note(signum: int, _: FrameType | None) -> None:
        late.append(signum)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if late:
            signal.raise_signal(signal.SIGINT)

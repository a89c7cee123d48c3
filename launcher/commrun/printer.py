"""Writes commrun's own output without ever waiting for whoever reads it."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterable, Mapping

from commrun.lines import Piece
from commrun.wire import STDERR, STDOUT

_AT_ONCE = select.PIPE_BUF


class Printer:
    """A queue of pieces, written in order, so that lines stay whole if streams share a place."""

    def __init__(self, fds: Mapping[bytes, int], verbose: bool) -> None:
        self._fds = fds
        self._verbose = verbose
        self._queue: deque[Piece] = deque()
        self._gone: set[bytes] = set()
        self.waiting = 0

    @property
    def output_closed(self) -> bool:
        """Whether nobody reads our stdout any more."""
        return STDOUT in self._gone

    def fd(self) -> int | None:
        """Return what to poll for output, if anything waits."""
        return self._fds[self._queue[0][0]] if self._queue else None

    def add(self, pieces: Iterable[Piece]) -> None:
        """Queue pieces."""
        for stream, data in pieces:
            if stream not in self._gone:
                self._queue.append((stream, data))
                self.waiting += len(data)

    def say(self, text: str) -> None:
        """Queue a line of commrun's own."""
        self.add([(STDERR, f"commrun: {text}\n".encode(errors="backslashreplace"))])

    def note(self, text: str) -> None:
        """Queue a line for those who asked for more of them."""
        if self._verbose:
            self.say(text)

    def write(self) -> None:
        """Write what can be written at once; call when the descriptor is ready."""
        poller = select.poll()
        while self._queue:
            stream, data = self._queue[0]
            fd = self._fds[stream]
            poller.register(fd, select.POLLOUT)
            if not poller.poll(0):
                return
            poller.unregister(fd)
            self._write_some(stream, fd, data)

    def finish(self) -> None:
        """Write all that is left, however long that takes."""
        while (fd := self.fd()) is not None:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
            self.write()

    def _write_some(self, stream: bytes, fd: int, data: bytes) -> None:
        try:
            n = os.write(fd, data[:_AT_ONCE])  # a pipe that is ready takes that much
        except BlockingIOError:
            return
        except OSError:
            self._forget(stream)
            return
        self.waiting -= n
        self._queue.popleft()
        if n < len(data):
            self._queue.appendleft((stream, data[n:]))

    def _forget(self, stream: bytes) -> None:
        self._gone.add(stream)
        self._queue = deque(piece for piece in self._queue if piece[0] not in self._gone)
        self.waiting = sum(len(data) for _, data in self._queue)

"""Where the runtime in a rank, or its children, talk with the shim: lines of JSON.

Standard library only: the shim imports it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

_LONGEST = 65536


class Door:
    """Listens on a unix socket; tells who comes how other ranks ended, the earlier ones too."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.consequence = ""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(16)
        self.listener.setblocking(False)
        self._guests: dict[int, tuple[socket.socket, bytearray]] = {}
        self._history = bytearray()

    def fds(self) -> list[int]:
        """Return what to poll for input and hand to `serve`."""
        return [self.listener.fileno(), *self._guests]

    def announce(self, message: dict[str, Any]) -> None:
        """Tell every guest, and those to come."""
        line = json.dumps(message).encode() + b"\n"
        self._history += line
        for fd in list(self._guests):
            self._tell(fd, line)

    def serve(self, fd: int) -> None:
        """Let a guest in, or hear what one says."""
        if fd in self._guests:
            self._hear(fd)
        else:
            self._admit()

    def drain(self) -> None:
        """Let in everybody who waits and hear all that has been said."""
        while self._admit():
            pass
        for fd in list(self._guests):
            self._hear(fd)

    def close(self) -> None:
        """Shut, and remove the socket."""
        self.listener.close()
        for fd in list(self._guests):
            self._drop(fd)
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def _admit(self) -> bool:
        try:
            guest, _ = self.listener.accept()
        except OSError:
            return False
        guest.setblocking(False)
        self._guests[guest.fileno()] = (guest, bytearray())
        self._tell(guest.fileno(), bytes(self._history))
        return True

    def _tell(self, fd: int, data: bytes) -> None:
        try:
            sent = self._guests[fd][0].send(data) if data else 0
        except OSError:
            sent = -1
        if sent != len(data):  # it does not read: half a line would be worse than none
            self._hear(fd)  # but it may have spoken before it ended
            self._drop(fd)

    def _hear(self, fd: int) -> None:
        guest, inbox = self._guests[fd]
        try:
            data = guest.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        inbox += data
        *lines, rest = bytes(inbox).split(b"\n")
        inbox[:] = rest
        for line in lines:
            self._note(line)
        if not data or len(rest) > _LONGEST:
            self._drop(fd)

    def _note(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if isinstance(message, dict) and message.get("event") == "consequence":
            self.consequence = str(message.get("error") or "another rank's failure")

    def _drop(self, fd: int) -> None:
        if fd in self._guests:
            self._guests.pop(fd)[0].close()

"""The line to `commrun`'s shim: it tells which ranks have ended, we tell why we failed."""

from __future__ import annotations

import contextlib
import json
import socket

from commrt.control.base import PeerGone


class LauncherLine:
    """A unix socket to the shim that started this rank. Without a shim it stays silent.

    Background thread only, or one thread before that runs.
    """

    def __init__(self, path: str) -> None:
        self._socket: socket.socket | None = None
        self._buffer = b""
        if path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                sock.connect(path)
                sock.setblocking(False)
                self._socket = sock
            except OSError:
                sock.close()  # the shim of an outer job, long gone

    def fileno(self) -> int | None:
        """Return the descriptor to wait on, or None."""
        return None if self._socket is None else self._socket.fileno()

    def poll(self) -> list[PeerGone]:
        """Return the ranks that have ended since the last call. Never blocks."""
        if self._socket is None:
            return []
        try:
            while data := self._socket.recv(65536):
                self._buffer += data
            self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._buffer = self._buffer.split(b"\n")
        return [event for line in lines if (event := _parse(line)) is not None]

    def consequence(self, error: str) -> None:
        """Tell the shim that this rank fails because of another one."""
        if self._socket is not None:
            line = json.dumps({"event": "consequence", "error": error}) + "\n"
            with contextlib.suppress(OSError):
                self._socket.send(line.encode())

    def close(self) -> None:
        """Close the line. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _parse(line: bytes) -> PeerGone | None:
    try:
        event = json.loads(line)
        if event.get("event") == "ended":
            return PeerGone(int(event["rank"]), str(event["how"]), str(event["host"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None

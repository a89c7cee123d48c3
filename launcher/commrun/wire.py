"""Frames between commrun and its shims, and how both prove who they are.

Standard library only, like all that the shim imports.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import struct
from typing import Any

WINDOW = 256 * 1024
"""Bytes of output that a shim sends before commrun has dealt with them."""
JSON, STDOUT, STDERR = b"J", b"1", b"2"
NONCE = DIGEST = 32

_HEADER = struct.Struct("!Ic")
_LARGEST = 16 << 20
_PATIENCE = 20.0


def pack(kind: bytes, body: bytes) -> bytes:
    """Make a frame."""
    return _HEADER.pack(len(body), kind) + body


def unpack(inbox: bytearray) -> list[tuple[bytes, bytes]]:
    """Take the whole frames out of `inbox`. Raises ConnectionError if these are no frames."""
    frames = []
    start = 0
    while len(inbox) - start >= _HEADER.size:
        length, kind = _HEADER.unpack_from(inbox, start)
        if length > _LARGEST or kind not in (JSON, STDOUT, STDERR):
            raise ConnectionError("not a frame")
        body = start + _HEADER.size
        if len(inbox) < body + length:
            break
        start = body + length
        frames.append((kind, bytes(inbox[body:start])))
    del inbox[:start]
    return frames


def prove(secret: bytes, who: bytes, theirs: bytes, ours: bytes) -> bytes:
    """Return what only `who` can say who knows the secret, for two fresh nonces."""
    return hmac.digest(secret, who + theirs + ours, "sha256")


class Link:
    """A non-blocking connection that carries frames. Thread safety: one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.inbox = bytearray()
        self.outbox = bytearray()

    def send(self, kind: bytes, body: bytes) -> None:
        """Queue a frame and send what the kernel takes. Raises OSError."""
        self.outbox += pack(kind, body)
        self.flush()

    def tell(self, **message: Any) -> None:
        """Queue a JSON message. Raises OSError."""
        self.send(JSON, json.dumps(message).encode())

    def flush(self) -> None:
        """Send what the kernel takes. Raises OSError."""
        try:
            while self.outbox:
                del self.outbox[: self.sock.send(self.outbox)]
        except BlockingIOError:
            pass

    def fill(self) -> None:
        """Read what has come. Raises OSError; ConnectionError at the end of the stream."""
        try:
            data = self.sock.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("closed by the other side")
        self.inbox += data


def connect(addresses: str, secret: bytes) -> socket.socket:
    """Reach commrun at the first of the `;`-separated addresses that answers. Blocks.

    Raises OSError, also if what answers does not know the secret.
    """
    error: OSError = OSError("no address given")
    for address in addresses.split(";"):
        sock = None
        try:
            sock = _dial(address)
            _log_in(sock, secret)
        except OSError as exc:
            error = exc
            if sock is not None:
                sock.close()
        else:
            return sock
    raise error


def _dial(address: str) -> socket.socket:
    if not address.startswith("/"):
        host, port = address.split(" ")
        sock = socket.create_connection((host, int(port)), _PATIENCE)
        tune(sock)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_PATIENCE)
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and notice within a minute that the other host is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45_000)


def _log_in(sock: socket.socket, secret: bytes) -> None:
    theirs, ours = _read(sock, NONCE), os.urandom(NONCE)
    sock.sendall(ours + prove(secret, b"shim", theirs, ours))
    if not hmac.compare_digest(_read(sock, DIGEST), prove(secret, b"commrun", ours, theirs)):
        raise ConnectionError("what answers there is not commrun")


def _read(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece:
            raise ConnectionError("commrun closed the connection")
        data += piece
    return data

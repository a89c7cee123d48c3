"""Admits the holders of known CURVE keys, by the ZeroMQ authentication protocol (RFC 27)."""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from zmq.utils import z85

from commrt.control.sockets import descriptor, readable


class Doorkeeper:
    """Answers the I/O thread's questions about keys. `admitted` are the ranks let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ranks: Mapping[bytes, int]) -> None:
        self._ranks = dict(ranks)
        self.admitted: set[int] = set()
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        self.fd = descriptor(self._socket)

    def answer(self) -> None:
        """Answer all questions that wait. Never blocks."""
        while readable(self._socket):
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            rank = self._rank(frames)
            status = (
                (b"400", b"unknown key", b"") if rank is None else (b"200", b"OK", b"%d" % rank)
            )
            if rank is not None:
                self.admitted.add(rank)
            self._socket.send_multipart((b"1.0", frames[1], *status, b""), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the door."""
        self._socket.close()

    def _rank(self, frames: list[bytes]) -> int | None:
        if len(frames) != 7 or frames[5] != b"CURVE":
            return None
        return self._ranks.get(z85.encode(frames[6]))

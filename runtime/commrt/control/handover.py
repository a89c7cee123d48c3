"""Hands descriptors round among the processes of a host."""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence

_AT_ONCE = 200  # the kernel takes 253 in one message
_SECRET = 32
_LOOK = 0.05
_PEERS = struct.Struct("3i")


class Counter:
    """Where the ranks of a host leave and fetch descriptors. One of them opens it.

    `address` is told to the others by other means: it has a secret in it, and whoever does not
    show that, or is another user's process, is turned away. Raises OSError.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_SECRET)
        self._name = b"\0commrt-" + secrets.token_hex(8).encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self._name)
        self._socket.listen(4096)  # a full queue would refuse, not delay
        self._socket.settimeout(_LOOK)

    @property
    def address(self) -> bytes:
        """What the others need to find it."""
        return self._secret + self._name

    def serve(
        self, first: int, own: int, size: int, seconds: float, check: Callable[[], None]
    ) -> list[int]:
        """Take a descriptor of each of the others; give everybody `first`, then one of each rank.

        `own` is ours. Return those of all, in order. Blocks for so long at most; raises OSError.
        """
        deadline = time.monotonic() + seconds
        guests: dict[int, socket.socket] = {}
        found = {0: own}
        try:
            while len(found) < size:
                check()
                try:
                    guest, _ = self._socket.accept()
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"only {len(found)} of {size} ranks have come") from None
                    continue
                self._welcome(guest, guests, found, size)
            everything = [first, *(found[i] for i in range(size))]
            for guest in guests.values():
                for lo in range(0, len(everything), _AT_ONCE):
                    _send(guest, b"d", everything[lo : lo + _AT_ONCE])
        except OSError:
            for place, fd in found.items():
                if place:
                    os.close(fd)
            raise
        finally:
            for guest in guests.values():
                guest.close()
        return [found[i] for i in range(size)]

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _welcome(
        self, guest: socket.socket, guests: dict[int, socket.socket], found: dict[int, int],
        size: int,
    ) -> None:  # fmt: skip
        guest.settimeout(1.0)
        try:
            peer = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERS.size)
            data, fds = _receive(guest)
        except OSError:
            guest.close()
            return
        place = int.from_bytes(data[_SECRET:], "little")
        known = secrets.compare_digest(data[:_SECRET], self._secret)
        ours = known and _PEERS.unpack(peer)[1] == os.getuid()
        if ours and len(fds) == 1 and 0 < place < size and place not in found:
            guests[place], found[place] = guest, fds[0]
            return
        for fd in fds:
            os.close(fd)
        guest.close()


def visit(address: bytes, place: int, own: int, size: int, seconds: float) -> list[int]:
    """Leave our descriptor at a counter; return what `serve` hands out. Blocks; raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(seconds)
        line.connect(address[_SECRET:])
        _send(line, address[:_SECRET] + place.to_bytes(4, "little"), [own])
        found: list[int] = []
        while len(found) < size + 1:
            data, fds = _receive(line)
            found += fds
            if not data:
                for fd in found:
                    os.close(fd)
                raise ConnectionResetError("turned away at the counter of this host's ranks")
        return found


def _send(line: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    space = socket.CMSG_SPACE(_AT_ONCE * fds.itemsize)
    data, ancillary, _, _ = line.recvmsg(256, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)

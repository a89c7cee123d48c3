"""commrun's side of its connections to the shims."""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commrun.spec import UsageError
from commrun.wire import DIGEST, JSON, NONCE, Link, prove, tune, unpack

GONE = b""
"""The kind of the last message of a rank: its connection has ended."""
_STRANGERS = 256

Message = tuple[int, bytes, bytes]
"""A rank, a kind as in `commrun.wire` or `GONE`, and a body."""


def listen_here(directory: str) -> tuple[list[socket.socket], str]:
    """Listen on a unix socket in a private directory; return the address for the shims too."""
    sock = socket.socket(socket.AF_UNIX)
    path = os.path.join(directory, "commrun")
    sock.bind(path)
    sock.listen(socket.SOMAXCONN)
    return [sock], path


def listen_for(hosts: Sequence[str]) -> tuple[list[socket.socket], str]:
    """Listen on the interfaces that lead to these hosts. Raises UsageError for unknown hosts."""
    sockets = []
    for family, address in dict.fromkeys(_own_address(host) for host in hosts):
        sock = socket.socket(family)
        sock.bind((address, 0))
        sock.listen(socket.SOMAXCONN)
        sockets.append(sock)
    names = [sock.getsockname()[:2] for sock in sockets]
    return sockets, ";".join(f"{address} {port}" for address, port in names)


def _own_address(host: str) -> tuple[int, str]:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return family, str(probe.getsockname()[0])
    except OSError as exc:
        raise UsageError(f"host {host} can't be reached: {exc.strerror}") from None


@dataclass(slots=True)
class _Peer:
    """One connection. `rank` is None until a shim has proved itself and said hello."""

    link: Link
    nonce: bytes
    trusted: bool = False
    rank: int | None = None


class Switchboard:
    """Talks with the shims; whoever does not know the secret is dropped without a word."""

    def __init__(self, listeners: Sequence[socket.socket], secret: bytes, np: int) -> None:
        self._secret = secret
        self._most_strangers = np + _STRANGERS
        self._listeners = {sock.fileno(): sock for sock in listeners}
        self._peers: dict[int, _Peer] = {}
        self._ranks: dict[int, _Peer] = {}
        for sock in listeners:
            sock.setblocking(False)

    def ranks(self) -> list[int]:
        """Return the ranks whose shims are connected."""
        return list(self._ranks)

    def register(self, poller: select.poll) -> None:
        """Say what to poll for."""
        for fd in self._listeners:
            poller.register(fd, select.POLLIN)
        for fd, peer in self._peers.items():
            poller.register(fd, select.POLLIN | (select.POLLOUT if peer.link.outbox else 0))

    def serve(self, fd: int) -> list[Message]:
        """Deal with a descriptor that is ready; not ours, or no longer: nothing happens."""
        if fd in self._listeners:
            self._admit(self._listeners[fd])
        peer = self._peers.get(fd)
        if peer is None:
            return []
        try:
            peer.link.flush()
        except OSError:
            peer.link.outbox.clear()  # it reads no more, but may have said something
        try:
            peer.link.fill()
            return self._hear(peer)
        except (OSError, ValueError):
            return self._drop(fd)

    def tell(self, rank: int, /, **message: Any) -> None:
        """Send a message to a rank's shim, if it is there; its end is told by `serve`."""
        if rank in self._ranks:
            try:
                self._ranks[rank].link.tell(**message)
            except OSError:
                pass

    def stop_listening(self) -> None:
        """Let nobody else in; a unix socket is removed."""
        for sock in self._listeners.values():
            path = sock.getsockname() if sock.family == socket.AF_UNIX else None
            sock.close()
            if path is not None and os.path.exists(path):
                os.unlink(path)
        self._listeners.clear()

    def close(self) -> None:
        """Drop everybody: shims that are still there end their ranks."""
        self.stop_listening()
        for fd in list(self._peers):
            self._drop(fd)

    def _admit(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if sock.family != socket.AF_UNIX:
            tune(sock)
        strangers = [fd for fd, peer in self._peers.items() if not peer.trusted]
        if len(strangers) >= self._most_strangers:
            self._drop(strangers[0])
        peer = _Peer(Link(sock), os.urandom(NONCE))
        self._peers[sock.fileno()] = peer
        peer.link.outbox += peer.nonce

    def _hear(self, peer: _Peer) -> list[Message]:
        if not peer.trusted and not self._trust(peer):
            return []
        frames = unpack(peer.link.inbox)
        if peer.rank is None and frames:
            self._name(peer, frames[0])
        return [(peer.rank, kind, body) for kind, body in frames if peer.rank is not None]

    def _trust(self, peer: _Peer) -> bool:
        """Check the answer to our challenge, once it is there. Raises ConnectionError."""
        inbox = peer.link.inbox
        if len(inbox) < NONCE + DIGEST:
            return False
        theirs, proof = bytes(inbox[:NONCE]), bytes(inbox[NONCE : NONCE + DIGEST])
        del inbox[: NONCE + DIGEST]
        if not hmac.compare_digest(proof, prove(self._secret, b"shim", peer.nonce, theirs)):
            raise ConnectionError("a stranger")
        peer.trusted = True
        peer.link.outbox += prove(self._secret, b"commrun", theirs, peer.nonce)
        peer.link.flush()
        return True

    def _name(self, peer: _Peer, frame: tuple[bytes, bytes]) -> None:
        hello = json.loads(frame[1]) if frame[0] == JSON else {}
        rank = hello.get("rank")
        if not isinstance(rank, int) or rank in self._ranks:
            raise ConnectionError("not a shim, or one too many")
        peer.rank = rank
        self._ranks[rank] = peer

    def _drop(self, fd: int) -> list[Message]:
        peer = self._peers.pop(fd)
        peer.link.sock.close()
        if peer.rank is None:
            return []
        del self._ranks[peer.rank]
        return [(peer.rank, GONE, b"")]

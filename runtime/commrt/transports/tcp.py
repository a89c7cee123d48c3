"""The wire over TCP: one connection for each two ranks that talk, driven by the engine's poller."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress

from commrt.transports.base import Flat, Test
from commrt.transports.door import Address, Door
from commrt.transports.greeting import Badge
from commrt.transports.stream import Awaited, Slip, Stream

_BACKLOG = 4096
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),  # a machine that is gone is missed after 25 s
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)


def listen(host: str) -> socket.socket:
    """Return a listening socket on an address of this machine, any port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=_BACKLOG)


class TcpWire:
    """See `Wire`. `listener` is ours from now on. Messages raise PeerLostError where they move."""

    swift = False

    def __init__(
        self, listener: socket.socket, badge: Badge, addresses: Mapping[int, Address]
    ) -> None:
        self._door = Door(listener, badge, addresses, self._welcome)
        self._streams: dict[int, Stream] = {}
        self._awaited = Awaited()
        self._epoll = select.epoll()
        self._always = os.eventfd(1, os.EFD_CLOEXEC)  # readable
        self._watched: list[int] = []

    def send(self, peer: int, tag: int, data: Flat) -> Test:
        """Start sending."""
        return self._stream(peer).send(tag, data)

    def receive(self, peer: int, tag: int, data: Flat) -> Slip:
        """Start receiving."""
        return self._stream(peer).receive(tag, data)

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable, once armed."""
        return (self._epoll.fileno(),)

    def arm(self) -> None:
        """Wake the sleeper when a message moves that he has looked at in vain."""
        if self._awaited.any_over():
            self._watch(self._always, reads=True, writes=False)
            return
        alone = False
        for stream, (reads, writes) in self._awaited.streams().items():
            if stream.attached:
                self._watch(stream.fileno(), reads, writes)
            else:
                alone = True
        for sock, speaks in self._door.sockets() if alone else ():
            self._watch(sock.fileno(), not speaks, speaks)

    def sleep(self, asleep: bool) -> bool:
        """Once awake, need no waking. What has come by `arm` wakes us at once."""
        for fd in () if asleep else self._watched:
            with suppress(OSError):  # it was closed
                self._epoll.unregister(fd)
        self._watched.clear()
        return False

    def after_fork(self) -> None:
        """In a child: keep no connection open."""
        self.close(orderly=False)

    def close(self, orderly: bool) -> None:
        """Close everything. What the kernel has taken still goes out."""
        if self._epoll.closed:
            return
        for stream in self._streams.values():
            stream.close()
        self._door.close()
        self._epoll.close()
        os.close(self._always)

    def _stream(self, peer: int) -> Stream:
        stream = self._streams.get(peer)
        if stream is None:
            stream = self._streams[peer] = Stream(peer, self._door.move, self._awaited)
            self._door.call(peer)
        return stream

    def _welcome(self, peer: int, sock: socket.socket) -> None:
        if peer not in self._streams:
            self._streams[peer] = Stream(peer, self._door.move, self._awaited)
        if self._streams[peer].attached:
            sock.close()  # it has called twice
            return
        for level, option, value in _OPTIONS:
            sock.setsockopt(level, option, value)
        self._streams[peer].attach(sock)

    def _watch(self, fd: int, reads: bool, writes: bool) -> None:
        self._epoll.register(fd, select.EPOLLIN * reads | select.EPOLLOUT * writes)
        self._watched.append(fd)

"""One connection's messages: they go out in the order of `send` and are asked for by tag."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable

import numpy as np

from commrt.errors import EngineError, PeerLostError
from commrt.transports.base import Flat, as_bytes

_FRAME = struct.Struct("<4sIQ")  # magic, tag, bytes that follow
_MAGIC = b"cmrt"

_TURN = 1 << 20
"""Bytes moved in one call: far below 2 ms."""

_LOW_WATER = 2 << 20
"""Bytes that have to come before a sleeper is woken, if as many are missing."""


class Awaited:
    """The messages that somebody has looked at in vain: he wants to be woken for these alone.

    Some may be through by now, in the wake of others.
    """

    def __init__(self) -> None:
        self._parcels: set[Parcel] = set()
        self._slips: set[Slip] = set()

    def parcel(self, parcel: Parcel) -> bool:
        """Note whether it is sent."""
        (self._parcels.discard if parcel.over else self._parcels.add)(parcel)
        return parcel.over

    def slip(self, slip: Slip) -> bool:
        """Note whether it has arrived."""
        (self._slips.discard if slip.over else self._slips.add)(slip)
        return slip.over

    def forget(self, slip: Slip) -> None:
        """Note that it is asked for no more."""
        self._slips.discard(slip)

    def any_over(self) -> bool:
        """Is one through, and nobody knows?"""
        return any(m.over for m in self._parcels) or any(m.over for m in self._slips)

    def streams(self) -> dict[Stream, tuple[bool, bool]]:
        """Return whose bytes have to come, and where bytes have to go."""
        reads = {slip.stream for slip in self._slips}
        writes = {parcel.stream for parcel in self._parcels}
        return {stream: (stream in reads, stream in writes) for stream in reads | writes}


class Parcel:
    """A message to be sent; see `Test`."""

    __slots__ = ("_rest", "over", "stream")

    def __init__(self, stream: Stream, tag: int, data: Flat) -> None:
        self.stream = stream
        frame = _FRAME.pack(_MAGIC, tag, data.nbytes)
        self._rest = [memoryview(frame), as_bytes(data).data]
        self.over = False

    def __call__(self) -> bool:
        """May its memory change? True once the kernel has taken all."""
        if not self.over and self.stream.is_next(self):
            self.stream.push()
        return self.stream.awaited.parcel(self)

    def send(self, sock: socket.socket) -> None:
        """Send it all. Raises BlockingIOError when that would mean to wait."""
        while self._rest:
            n = sock.sendmsg([part[:_TURN] for part in self._rest])
            while self._rest and n >= len(self._rest[0]):
                n -= len(self._rest.pop(0))
            if self._rest:
                self._rest[0] = self._rest[0][n:]
        self.over = True


class Slip:
    """A message that is asked for; see `Incoming`.

    `rest`: where its next byte goes. `early`: nobody had asked for it when it began to come;
    `heir`: who has done so since.
    """

    __slots__ = ("_tag", "data", "early", "heir", "over", "rest", "stream")

    def __init__(self, stream: Stream, tag: int, data: Flat) -> None:
        self.stream = stream
        self._tag = tag
        self.data = as_bytes(data)
        self.rest = self.data.data
        self.over = self.early = False
        self.heir: Slip | None = None

    def test(self) -> bool:
        """Has it arrived?"""
        if not self.over:
            self.stream.pull()
        return self.stream.awaited.slip(self)

    def cancel(self) -> None:
        """Take the request back."""
        self.stream.awaited.forget(self)
        if not self.over:
            self.stream.withdraw(self._tag, self)


class Stream:
    """Messages to and from one peer, over a socket that comes later: `reach` sees to that.

    A message that nobody asks for waits in the kernel; only if others are asked for, which come
    behind it, is it kept here. Moving raises PeerLostError once the connection is lost.
    Thread safety: background thread only.
    """

    def __init__(self, peer: int, reach: Callable[[], None], awaited: Awaited) -> None:
        self.awaited = awaited
        self._peer = peer
        self._reach = reach
        self._socket: socket.socket | None = None
        self._outbox: deque[Parcel] = deque()
        self._asked: dict[int, deque[Slip]] = {}
        self._early: dict[int, deque[Slip]] = {}
        self._missing = 0
        self._reader = Reader()

    def attach(self, sock: socket.socket) -> None:
        """Move messages over this connected, non-blocking socket, which is ours from now on."""
        self._socket = sock

    @property
    def attached(self) -> bool:
        """Is there a socket?"""
        return self._socket is not None

    def send(self, tag: int, data: Flat) -> Parcel:
        """Queue a message."""
        parcel = Parcel(self, tag, data)
        self._outbox.append(parcel)
        return parcel

    def receive(self, tag: int, data: Flat) -> Slip:
        """Ask for the next message of a tag."""
        slip = Slip(self, tag, data)
        early = self._early.get(tag)
        if not early:
            self._asked.setdefault(tag, deque()).append(slip)
            self._missing += 1
            return slip
        found = early.popleft()
        if not early:
            del self._early[tag]
        self._check(found.data.size, slip)
        if found.over:
            np.copyto(slip.data, found.data)
            slip.over = True
        else:
            found.heir = slip
            self._missing += 1
        return slip

    def withdraw(self, tag: int, slip: Slip) -> None:
        """Ask for a message no more that has not begun to come."""
        self._take(tag, slip)
        self._missing -= 1

    def is_next(self, parcel: Parcel) -> bool:
        """Is this the next message to go out?"""
        return self._outbox[0] is parcel

    def push(self) -> None:
        """Send what goes without waiting."""
        if self._socket is None:
            self._reach()
        if self._socket is None:
            return
        try:
            while self._outbox:
                self._outbox[0].send(self._socket)
                self._outbox.popleft()
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost(exc) from exc

    def pull(self) -> None:
        """Take in what has come, as long as anything is asked for."""
        if self._socket is None:
            self._reach()
        if self._socket is None:
            return
        try:
            while self._missing and self._read(self._socket):
                continue
        except BlockingIOError:
            return
        except OSError as exc:
            raise self._lost(exc) from exc

    def fileno(self) -> int:
        """Return the descriptor to sleep on, which then wakes us as late as it may."""
        assert self._socket is not None
        if self._missing:
            self._reader.lower_water(self._socket)
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket; what the kernel has taken still goes out."""
        if self._socket is not None:
            self._socket.close()

    def _read(self, sock: socket.socket) -> bool:
        """Read once; may there be more?"""
        reader = self._reader
        if reader.slip is None:
            if not reader.read_frame(sock):
                return False
            reader.slip = self._find(*reader.frame())
        more = reader.read_message(sock)
        if not reader.slip.rest:
            self._end(reader.slip)
            reader.slip = None
        return more

    def _find(self, tag: int, nbytes: int) -> Slip:
        """A message begins: find who asked for it, or room to keep it in."""
        if tag in self._asked:
            slip = self._asked[tag][0]
            self._check(nbytes, slip)
            self._take(tag, slip)
            return slip
        slip = Slip(self, tag, np.empty(nbytes, np.uint8))
        slip.early = True
        self._early.setdefault(tag, deque()).append(slip)
        return slip

    def _end(self, slip: Slip) -> None:
        slip.over = True
        if slip.heir is not None:
            np.copyto(slip.heir.data, slip.data)
            slip.heir.over = True
        if slip.heir is not None or not slip.early:
            self._missing -= 1

    def _take(self, tag: int, slip: Slip) -> None:
        asked = self._asked[tag]
        asked.remove(slip)
        if not asked:
            del self._asked[tag]

    def _check(self, nbytes: int, slip: Slip) -> None:
        if nbytes != slip.data.size:
            raise EngineError(
                f"rank {self._peer} sent {nbytes} bytes where {slip.data.size} are expected"
            )

    def _lost(self, exc: OSError) -> PeerLostError:
        """Give the connection up: whoever moves messages gets this error from now on."""
        text = f"its data connection was lost: {exc.strerror or exc}"

        def fail() -> None:
            raise PeerLostError(text, [self._peer])

        self.close()
        self._socket, self._reach = None, fail
        return PeerLostError(text, [self._peer])


class Reader:
    """Where in the stream of incoming bytes we are: in a frame, or in the message of `slip`."""

    def __init__(self) -> None:
        self.slip: Slip | None = None
        self._head = bytearray(_FRAME.size)
        self._filled = 0
        self._low_water = 1

    def read_frame(self, sock: socket.socket) -> bool:
        """Read what has come of a frame; is it whole?"""
        self._filled += _received(sock, memoryview(self._head)[self._filled :])
        return self._filled == _FRAME.size

    def frame(self) -> tuple[int, int]:
        """Return tag and size of the message that follows."""
        self._filled = 0
        magic, tag, nbytes = _FRAME.unpack(self._head)
        if magic != _MAGIC:
            raise OSError("it sends what is no message")
        return tag, nbytes

    def read_message(self, sock: socket.socket) -> bool:
        """Read what has come of a message, but not more than is moved at once; was that all?"""
        assert self.slip is not None
        rest = self.slip.rest[:_TURN]
        n = _received(sock, rest) if rest else 0
        self.slip.rest = self.slip.rest[n:]
        return n == len(rest)

    def lower_water(self, sock: socket.socket) -> None:
        """Let sleepers be woken when enough has come, and no later than that is possible."""
        missing = len(self.slip.rest) if self.slip is not None else _FRAME.size - self._filled
        level = min(missing, _LOW_WATER)
        if level != self._low_water:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, level)
            self._low_water = level


def _received(sock: socket.socket, into: memoryview) -> int:
    n = sock.recv_into(into)
    if not n:
        raise OSError("it was closed by the other side")
    return n

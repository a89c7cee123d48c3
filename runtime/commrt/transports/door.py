"""Connections between ranks: made when they are first needed, by the lower rank of two."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable, Mapping
from math import inf

from commrt.errors import PeerLostError
from commrt.transports.greeting import Badge, Caller, Greeting, Host

log = logging.getLogger("commrt.transports")

Address = tuple[str, int]

_PATIENCE = 10.0
"""Seconds until a caller must have proved itself, once we are at our door. A rank that we call may
take its time: it comes to its door when it needs somebody, and others notice if it is gone."""

_CALLS = 5
"""Times that a rank is called that turns us away: it may do so while we are stopped."""

_STRANGERS = 64
"""Greetings of unknown callers under way at once, beyond one for each rank."""


class Meeting:
    """A fresh connection, on which the greeting is under way, perhaps not on the first `call`."""

    def __init__(
        self, sock: socket.socket, greeting: Greeting, first: bytes, until: float, call: int = 1
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.greeting = greeting
        self.until = until
        self.call = call
        self._inbox = b""
        self._outbox = first

    def move(self) -> bool:
        """Go on without waiting; is the greeting over? Raises OSError or ValueError."""
        try:
            while self._outbox or self.greeting.expects:
                self._speak() if self._outbox else self._listen()
        except BlockingIOError:
            return False
        return True

    def speaks(self) -> bool:
        """Is it our turn?"""
        return bool(self._outbox)

    def _speak(self) -> None:
        try:
            n = self.sock.send(self._outbox)
        except OSError as exc:
            if exc.errno == errno.ENOTCONN:  # not yet
                raise BlockingIOError from exc
            raise
        self._outbox = self._outbox[n:]

    def _listen(self) -> None:
        got = self.sock.recv(self.greeting.expects - len(self._inbox))
        if not got:
            raise OSError("it has closed the connection")
        self._inbox += got
        if len(self._inbox) == self.greeting.expects:
            told, self._inbox = self._inbox, b""
            self._outbox = self.greeting.answer(told)


class Door:
    """One rank's end of all connections that are being made. Thread safety: background thread only.

    `welcome` gets each rank with its connected socket.
    """

    def __init__(
        self, listener: socket.socket, badge: Badge, addresses: Mapping[int, Address],
        welcome: Callable[[int, socket.socket], None],
    ) -> None:  # fmt: skip
        listener.setblocking(False)
        self._listener = listener
        self._badge = badge
        self._addresses = addresses
        self._welcome = welcome
        self._calls: dict[int, Meeting] = {}
        self._guests: list[Meeting] = []
        self._turned_away = 0

    def call(self, peer: int, call: int = 1) -> None:
        """See to it that there will be a connection; `call` counts. Raises PeerLostError."""
        if peer < self._badge.rank:
            return  # it calls us
        host, port = self._addresses[peer]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex((host, port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise self._unreachable(peer, OSError(code, errno.errorcode.get(code, "")))
        caller = Caller(self._badge, peer)
        self._calls[peer] = Meeting(sock, caller, caller.hello, inf, call)

    def move(self) -> None:
        """Go on with all greetings. Raises PeerLostError if a rank cannot be reached."""
        now = time.monotonic()
        self._accept(now)
        for meeting in list(self._guests):
            self._receive(meeting, now)
        for peer, meeting in list(self._calls.items()):
            try:
                if meeting.move():
                    del self._calls[peer]
                    self._welcome(peer, meeting.sock)
            except (OSError, ValueError) as exc:
                self._hang_up(peer, exc)

    def sockets(self) -> list[tuple[socket.socket, bool]]:
        """Return what to sleep on: a socket, and whether it waits to send."""
        meetings = [*self._guests, *self._calls.values()]
        return [(self._listener, False), *((m.sock, m.speaks()) for m in meetings)]

    def close(self) -> None:
        """Close everything that is not a rank's own connection by now."""
        for sock, _ in self.sockets():
            sock.close()

    def _hang_up(self, peer: int, exc: OSError | ValueError) -> None:
        meeting = self._calls.pop(peer)
        meeting.sock.close()
        if isinstance(exc, (ValueError, ConnectionRefusedError)) or meeting.call >= _CALLS:
            raise self._unreachable(peer, exc) from exc
        self.call(peer, meeting.call + 1)

    def _accept(self, now: float) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:  # out of descriptors, or a caller that has gone again
                log.debug("rank %d: no connection accepted: %s", self._badge.rank, exc)
                return
            guest = Meeting(sock, Host(self._badge), b"", now + _PATIENCE)
            self._guests.append(guest)
            self._receive(guest, now)
            if len(self._guests) > _STRANGERS + len(self._addresses):
                self._turn_away(self._most_strange(), "too many wait at the door")

    def _receive(self, meeting: Meeting, now: float) -> None:
        try:
            if meeting.move():
                self._guests.remove(meeting)
                self._welcome(meeting.greeting.peer, meeting.sock)
            elif now > meeting.until:
                self._turn_away(meeting, f"it has not proved itself for {_PATIENCE:.0f} s")
        except (OSError, ValueError) as exc:
            self._turn_away(meeting, str(exc))

    def _most_strange(self) -> Meeting:
        """Return who has waited longest without a greeting; if all have greeted, the first."""
        return next((g for g in self._guests if g.greeting.peer < 0), self._guests[0])

    def _turn_away(self, meeting: Meeting, why: str) -> None:
        self._guests.remove(meeting)
        level = logging.DEBUG if self._turned_away else logging.WARNING
        self._turned_away += 1
        log.log(level, "rank %d: turned a data connection from %s away: %s (the next ones are "
                "logged as debug)", self._badge.rank, _who(meeting.sock), why)  # fmt: skip
        meeting.sock.close()

    def _unreachable(self, peer: int, exc: Exception) -> PeerLostError:
        host, port = self._addresses[peer]
        why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return PeerLostError(
            f"no data connection to rank {peer} at {host}, port {port}: {why}", [peer]
        )


def _who(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "somebody who has gone"

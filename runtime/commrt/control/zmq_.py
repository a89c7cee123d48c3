"""Control link over ZeroMQ: a ROUTER on rank 0, a DEALER on every other rank, CURVE on all.

Addresses are abstract unix sockets inside a machine and TCP on one interface across.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence

import zmq

from commrt.control.base import Event, PeerGone, Received
from commrt.control.launcher import LauncherLine
from commrt.control.monitor import ConnectionMonitor
from commrt.control.sentry import Probes, Sentry, Waker
from commrt.control.sockets import descriptor, endpoint_of, readable
from commrt.control.zap import Doorkeeper

log = logging.getLogger("commrt.control")

_HUNG_UP = "its control connection was closed"


class ZmqLink:
    """See `ControlLink`. Rank 0 `listen`s, the others `connect`.

    Thread safety: `wake` any thread; the rest background thread only.
    """

    def __init__(self, rank: int, launcher: LauncherLine) -> None:
        self._rank = rank
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(
            zmq.ROUTER if rank == 0 else zmq.DEALER
        )
        self._sentry = Sentry(launcher)
        self._monitor = ConnectionMonitor(self._socket)
        self._doorkeeper: Doorkeeper | None = None
        self._waker = Waker()
        self._probes = Probes()
        for option, value in (
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),  # too
            (zmq.RECONNECT_IVL, -1),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 10),
            (zmq.TCP_KEEPALIVE_INTVL, 5),
            (zmq.TCP_KEEPALIVE_CNT, 3),
            (zmq.TCP_MAXRT, 20_000),
        ):
            self._socket.setsockopt(option, value)
        self._fd = descriptor(self._socket)
        self._unsure = True  # ZeroMQ's descriptor tells of what comes only until the socket is used
        self._sentry.watch(self._waker.fileno(), self._fd, self._monitor.fd)

    def listen(self, ranks: Mapping[bytes, int], address: str | None) -> tuple[bytes, list[str]]:
        """Rank 0: admit the holders of these public keys; return our own key and addresses.

        Inside the machine always; on `address` (an IP of one interface) too unless it is None.
        """
        public, secret = zmq.curve_keypair()
        self._doorkeeper = Doorkeeper(self._context, ranks)
        self._sentry.watch(self._doorkeeper.fd)
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        addresses = [f"ipc://@commrt-{uuid.uuid4().hex}"]
        if address is not None:
            addresses.append(f"tcp://[{address}]:0" if ":" in address else f"tcp://{address}:0")
        bound = []
        for endpoint in addresses:
            self._socket.bind(endpoint)
            bound.append(endpoint_of(self._socket))
        return public, bound

    def connect(self, address: str, server: bytes, public: bytes, secret: bytes) -> None:
        """Other ranks: connect to rank 0."""
        self._socket.setsockopt(zmq.ROUTING_ID, b"r%d" % self._rank)
        self._socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        self._socket.connect(address)

    def guard(self, pids: Mapping[int, int]) -> None:
        """Watch the processes of these ranks on this host."""
        self._sentry.guard(pids)

    def send(self, rank: int, data: bytes) -> None:
        """Queue a message; never blocks."""
        self._unsure = True
        try:
            if self._rank == 0:
                self._socket.send_multipart((b"r%d" % rank, data), zmq.NOBLOCK, copy=True)
            else:
                self._socket.send(data, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return  # rank 0 is gone; the monitor says so
        except zmq.ZMQError as exc:
            if exc.errno != zmq.EHOSTUNREACH:
                raise
            self._probes.start(time.monotonic())

    def poll(self, timeout: float | None) -> list[Event]:
        """Return what has come; sleep at most `timeout` seconds if nothing has."""
        if self._unsure and readable(self._socket):
            timeout = 0
        ready = self._sentry.wait(self._probes.limit(timeout))
        events: list[Event] = list(self._sentry.gone())
        self._waker.clear()
        if self._monitor.fd in ready and self._monitor.read():
            if self._rank != 0:
                events.append(PeerGone(0, _HUNG_UP, hung_up=True))
            else:
                self._probes.start(time.monotonic())
        if self._doorkeeper is not None:
            if self._doorkeeper.fd in ready:
                self._doorkeeper.answer()
            events += self._unreachable()
        if self._unsure or self._fd in ready:
            while readable(self._socket):
                events += self._receive()
            self._unsure = False
        return events

    def wake(self) -> None:
        """Make a sleeping or the next `poll` return."""
        self._waker.set()

    def watch(self, *fds: int) -> None:
        """Let `poll` return when one of these descriptors is readable."""
        self._sentry.watch(*fds)

    def inherited(self) -> list[int]:
        """Return the descriptors by which a forked child would keep our connections open."""
        return [*self._monitor.connections, *self._sentry.inherited()]

    def close(self, linger: float = 0.0) -> None:
        """Deliver what is queued for at most `linger` seconds, then close."""
        if self._socket.closed:
            return
        self._sentry.close()
        self._monitor.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()
        self._socket.close(linger=round(1000 * linger))
        self._context.term()
        self._waker.close()

    def _receive(self) -> list[Event]:
        if self._rank != 0:
            data = self._socket.recv(zmq.NOBLOCK)
            return [Received(0, data)] if data else []
        frames = self._socket.recv_multipart(zmq.NOBLOCK)
        if len(frames) == 2 and frames[0][:1] == b"r" and frames[0][1:].isdigit():
            return [Received(int(frames[0][1:]), frames[1])]
        log.warning("rank 0: ignored a control message that no rank can have sent")
        return []

    def _unreachable(self) -> Sequence[PeerGone]:
        """After a disconnect: find out whose it was. An empty message is no message."""
        if not self._probes.due(time.monotonic()):
            return []
        gone = []
        self._unsure = True
        assert self._doorkeeper is not None
        for rank in sorted(self._doorkeeper.admitted):
            try:
                self._socket.send_multipart((b"r%d" % rank, b""), zmq.NOBLOCK)
            except zmq.ZMQError:
                gone.append(PeerGone(rank, _HUNG_UP, hung_up=True))
                self._doorkeeper.admitted.discard(rank)
        if gone:
            self._probes = Probes()
        return gone

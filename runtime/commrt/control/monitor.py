"""What happens to a ZeroMQ socket's connections."""

from __future__ import annotations

import logging

import zmq
from zmq.utils.monitor import recv_monitor_message

from commrt.control.sockets import descriptor, readable

log = logging.getLogger("commrt.control")

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_OPENED = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_LISTENING
_CLOSED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class ConnectionMonitor:
    """Tells of disconnects, logs refused visitors, keeps the numbers of open descriptors."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self._watched = watched
        self._socket = watched.get_monitor_socket(_OPENED | _CLOSED | _FAILED)
        self.fd = descriptor(self._socket)
        self.connections: set[int] = set()
        self._refused = False
        self.read()  # a socket that was never found empty does not make its descriptor readable

    def read(self) -> bool:
        """Take in all events; has a connection been closed?"""
        closed = False
        while readable(self._socket):
            message = recv_monitor_message(self._socket, zmq.NOBLOCK)
            event, value = int(message["event"]), int(message["value"])
            if event & _OPENED:
                self.connections.add(value)
            elif event & _CLOSED:
                self.connections.discard(value)
                closed |= bool(event & zmq.EVENT_DISCONNECTED)
            elif event & _FAILED:
                self._refuse()
        return closed

    def close(self) -> None:
        """Stop monitoring."""
        self._watched.disable_monitor()
        self._socket.close(linger=0)

    def _refuse(self) -> None:
        level = logging.DEBUG if self._refused else logging.WARNING
        self._refused = True
        log.log(level, "refused a connection to the control socket: it has no key of this job")

"""Typed reading of ZeroMQ socket options."""

from __future__ import annotations

from typing import Any, cast

import zmq


def readable(socket: zmq.Socket[Any]) -> bool:
    """Is a message there? Also takes in what the I/O thread has to say."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def descriptor(socket: zmq.Socket[Any]) -> int:
    """Return the descriptor that becomes readable when `readable` is worth asking."""
    return cast(int, socket.getsockopt(zmq.FD))


def endpoint_of(socket: zmq.Socket[Any]) -> str:
    """Return the address that a socket was bound to."""
    return cast(bytes, socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

"""The control link between two ranks of this process."""

from __future__ import annotations

import time

import pytest
import zmq

from commrt.control.base import Event, Received
from commrt.control.launcher import LauncherLine
from commrt.control.zmq_ import ZmqLink


def next_event(link: ZmqLink) -> Event:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for event in link.poll(1.0):
            return event
    raise AssertionError("nothing came")


@pytest.mark.parametrize("address", [None, "127.0.0.1", "::1"])
def test_a_message_gets_there_on_every_kind_of_address(address: str | None) -> None:
    first, second = ZmqLink(0, LauncherLine("")), ZmqLink(1, LauncherLine(""))
    public, secret = zmq.curve_keypair()
    try:
        server, addresses = first.listen({public: 1}, address)
        assert len(addresses) == 1 + (address is not None)
        second.connect(addresses[-1], server, public, secret)
        second.send(0, b"here")
        event = next_event(first)
        assert isinstance(event, Received) and (event.rank, event.data) == (1, b"here")
    finally:
        second.close(0.0)
        first.close(0.0)

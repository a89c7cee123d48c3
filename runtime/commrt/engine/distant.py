"""Meets the ranks of other hosts on TCP."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

import msgspec

from commrt.control.base import Rendezvous
from commrt.control.interfaces import common_address
from commrt.control.peers import Card, same_machine
from commrt.transports.greeting import Badge
from commrt.transports.tcp import TcpWire, listen

_LOOPBACK = "127.0.0.1"
_KEY = 32


class Invitation(msgspec.Struct, array_like=True, frozen=True):
    """Where a rank can be called, or why not. `key`: the job's, from rank 0."""

    host: str = ""
    port: int = 0
    key: bytes = b""
    trouble: str = ""


def connect(rank: int, cards: Sequence[Card], rendezvous: Rendezvous) -> TcpWire | str:
    """Return a wire, or why some rank can't be reached; the same on all. Blocks.

    All ranks must call it. Connections are made when they are first needed.
    """
    listener: socket.socket | None = None
    try:
        listener = listen(reachable_address(rank, cards))
        host, port, *_ = listener.getsockname()
        key = secrets.token_bytes(_KEY) if rank == 0 else b""
        invitation = Invitation(host, port, key)
    except OSError as exc:
        invitation = Invitation(trouble=f"rank {rank} on {cards[rank].host}: {exc}")
    blobs = rendezvous.exchange(msgspec.msgpack.encode(invitation))
    invitations = [msgspec.msgpack.decode(blob, type=Invitation) for blob in blobs]
    trouble = next((i.trouble for i in invitations if i.trouble), "")
    if listener is None or trouble:
        if listener is not None:
            listener.close()
        return trouble
    badge = Badge(invitations[0].key, max(card.generation for card in cards), rank)
    addresses = {r: (i.host, i.port) for r, i in enumerate(invitations)}
    return TcpWire(listener, badge, addresses)


def reachable_address(rank: int, cards: Sequence[Card]) -> str:
    """Return an address of ours that all others can call. Raises OSError if there is none."""
    own = cards[rank]
    far = [card.addresses for card in cards if not same_machine(own, card)]
    if not far:
        return _LOOPBACK
    found = common_address(own.addresses, far)
    if found is None:
        raise OSError(
            "no network interface has a subnet that all other hosts share; its addresses are "
            + ", ".join(own.addresses)
        )
    return found

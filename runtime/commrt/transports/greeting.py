"""How two ranks make sure, before data moves, that both belong to this job.

Each proves, over numbers that both have drawn, that it knows the job's key: the three-pass mutual
authentication of ISO/IEC 9798-4. Data itself is neither encrypted nor signed. Sans-IO.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass
from typing import Protocol

_NONCE = 32
_PROOF = 32
_HELLO = struct.Struct(f"<8sQII{_NONCE}s")  # magic, generation, from, to, nonce
_MAGIC = b"commrt/1"


@dataclass(frozen=True, slots=True)
class Badge:
    """What a rank shows: the key that only its job has, its start's number, its own."""

    key: bytes
    generation: int
    rank: int


class Greeting(Protocol):
    """One side's part. `expects`: bytes that have to come next; 0 once each knows the other.

    `peer`: the other's rank.
    """

    expects: int
    peer: int

    def answer(self, told: bytes) -> bytes:
        """Return what to send after these bytes. Raises ValueError if it is a stranger."""


class Caller:
    """The side that connects; it sends `hello` first. See `Greeting`."""

    def __init__(self, badge: Badge, peer: int) -> None:
        self.peer = peer
        self.expects = _NONCE + _PROOF
        self._key = badge.key
        nonce = secrets.token_bytes(_NONCE)
        self.hello = _HELLO.pack(_MAGIC, badge.generation, badge.rank, peer, nonce)

    def answer(self, told: bytes) -> bytes:
        """See `Greeting`."""
        talk = self.hello + told[:_NONCE]
        _verify(self._key, b"host", talk, told[_NONCE:])
        self.expects = 0
        return _proof(self._key, b"caller", talk)


class Host:
    """The side that is connected to. See `Greeting`."""

    def __init__(self, badge: Badge) -> None:
        self.peer = -1
        self.expects = _HELLO.size
        self._badge = badge
        self._talk = b""

    def answer(self, told: bytes) -> bytes:
        """See `Greeting`."""
        if self._talk:
            _verify(self._badge.key, b"caller", self._talk, told)
            self.expects = 0
            return b""
        magic, generation, caller, to, _ = _HELLO.unpack(told)
        badge = self._badge
        if magic != _MAGIC:
            raise ValueError("it is no commrt")
        if (generation, to) != (badge.generation, badge.rank):
            raise ValueError("it looks for another job")
        nonce = secrets.token_bytes(_NONCE)
        self._talk, self.peer, self.expects = told + nonce, caller, _PROOF
        return nonce + _proof(badge.key, b"host", self._talk)


def _proof(key: bytes, side: bytes, talk: bytes) -> bytes:
    return hmac.digest(key, side + talk, "sha256")


def _verify(key: bytes, side: bytes, talk: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(_proof(key, side, talk), proof):
        raise ValueError("it does not know this job's key")

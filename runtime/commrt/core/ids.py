"""Short names for operations that come again, bounded in number on both sides."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from commrt.types import Kind, Request, Signature

Key = tuple[int, str]
"""(process set id, name): what an operation is matched by."""


def unnamed(kind: Kind) -> str:
    """Return how the names of operations of a kind begin that their callers gave none."""
    return f"{kind.value}.unnamed."


CAPACITY = 4096
"""Ids kept. One more forgets the one unused for longest, which is then announced in full again."""


class IdTable:
    """Maps ids to announced requests and back. Ids are never given twice."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._next = 0
        self._by_id: OrderedDict[int, Request] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        self._signatures: dict[Signature, Signature] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def request(self, id: int) -> Request | None:
        """Return what an id stands for, or None if it is forgotten."""
        request = self._by_id.get(id)
        if request is not None:
            self._by_id.move_to_end(id)
        return request

    def find(self, request: Request) -> int | None:
        """Return the id of a request of this key and signature."""
        id = self._by_key.get((request.set_id, request.name))
        if id is None:
            return None
        known = self._by_id[id]
        if known.signature is not request.signature and known.signature != request.signature:
            return None
        self._by_id.move_to_end(id)
        return id

    def add(self, request: Request) -> int:
        """Give a request the next id (coordinator)."""
        self.learn(self._next, request)
        return self._next - 1

    def learn(self, id: int, request: Request) -> None:
        """Note what an id stands for; an older id of the same key is forgotten."""
        self._next = max(self._next, id + 1)
        key = (request.set_id, request.name)
        old = self._by_key.pop(key, None)
        if old is not None:
            del self._by_id[old]
        while len(self._by_id) >= self._capacity:
            _, evicted = self._by_id.popitem(last=False)
            del self._by_key[evicted.set_id, evicted.name]
        self._by_id[id] = self._sharing(request)
        self._by_key[key] = id

    def _sharing(self, request: Request) -> Request:
        """Let requests that are alike but for their names share one signature: it is large."""
        if len(self._signatures) >= self._capacity:
            self._signatures.clear()
        shared = self._signatures.setdefault(request.signature, request.signature)
        return request if shared is request.signature else replace(request, signature=shared)

    def forget(self, id: int) -> Request | None:
        """Drop an id; return what it stood for."""
        request = self._by_id.pop(id, None)
        if request is not None:
            del self._by_key[request.set_id, request.name]
        return request

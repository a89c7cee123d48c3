"""What has been submitted, by whom, and who is still needed: the coordinator's books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commrt.core.ids import Key
from commrt.core.joining import Joining
from commrt.core.stall import StallWatch
from commrt.types import WORLD, Kind, ProcessSetSpec, Request, Signature


@dataclass(slots=True)
class Pending:
    """An operation that some members of its set have submitted."""

    requests: dict[int, Request] = field(default_factory=dict)
    by_name: bool = False

    @property
    def signature(self) -> Signature:
        """What the first rank submitted."""
        return next(iter(self.requests.values())).signature

    @property
    def kind(self) -> Kind:
        """What the first rank submitted."""
        return self.signature.kind


class Ledger:
    """Process sets and the operations pending in them. Pure."""

    def __init__(self, sets: Mapping[int, ProcessSetSpec], stalls: StallWatch) -> None:
        self._sets = dict(sets)
        self._new_set = max(self._sets) + 1
        self._pending: dict[Key, Pending] = {}
        self._stalls = stalls
        self.joining = Joining()

    def members(self, set_id: int) -> tuple[int, ...]:
        """Return the ranks of a set in order; none if there is no such set."""
        return self._sets[set_id].ranks if set_id in self._sets else ()

    def enter(self, rank: int, request: Request, by_name: bool, since: float) -> list[Key]:
        """Note that a rank has submitted an operation; return what is complete by that."""
        key = (request.set_id, request.name)
        pending = self._pending.get(key)
        joins = request.signature.kind is Kind.JOIN
        if pending is None:
            pending = self._pending[key] = Pending()
        if not joins:  # a rank that has joined may wait for as long as the others have data
            self._stalls.begin(key, since)
        pending.requests[rank] = request
        pending.by_name |= by_name
        complete: list[Key] = []
        if joins:
            self.joining.add(rank)
            complete = [k for k in self._pending if k != key and not self.missing(k)]
        return complete if self.missing(key) else [*complete, key]

    def take(self, key: Key) -> Pending:
        """Close an operation."""
        self._stalls.end(key)
        pending = self._pending.pop(key)
        if pending.kind is Kind.JOIN:
            self.joining.clear()
        return pending

    def pending(self) -> list[Request]:
        """Return what each open operation is to the first rank that submitted it."""
        return [next(iter(pending.requests.values())) for pending in self._pending.values()]

    def forget(self) -> None:
        """Forget all that is open: who submitted it will do so again, or needs not."""
        for key in list(self._pending):
            self.take(key)

    def submitters(self, key: Key) -> set[int]:
        """Return the ranks that have submitted an operation."""
        return set(self._pending[key].requests) if key in self._pending else set()

    def missing(self, key: Key) -> list[int]:
        """Return the ranks that an operation waits for."""
        pending = self._pending[key]
        return [
            r
            for r in self._sets[key[0]].ranks
            if r not in pending.requests and not self.joining.stands_in(pending.signature, r)
        ]

    def refused(self) -> list[tuple[Key, str]]:
        """Return what can't run because ranks have joined, and why."""
        found = []
        for key, pending in self._pending.items():
            request = next(iter(pending.requests.values()))
            text = self.joining.refusal(request, self.missing(key))
            if text is not None:
                found.append((key, text))
        return found

    def waiting_for(self, rank: int) -> list[Key]:
        """Return the operations that wait for a rank."""
        return [key for key in self._pending if rank in self.missing(key)]

    def submitted_by(self, rank: int) -> list[Key]:
        """Return the operations that a rank has submitted."""
        return [key for key, pending in self._pending.items() if rank in pending.requests]

    def busy(self) -> set[int]:
        """Return the ranks that have something open."""
        return {r for pending in self._pending.values() for r in pending.requests}

    def kind(self, key: Key) -> Kind:
        """Return what an operation is."""
        return self._pending[key].kind

    def add_set(self, ranks: Sequence[int]) -> int:
        """Make a process set; return its id, which is never used again."""
        id, self._new_set = self._new_set, self._new_set + 1
        self._sets[id] = ProcessSetSpec(id, tuple(ranks))
        return id

    def removable(self, set_id: int) -> bool:
        """Is there such a set, and is it not the world?"""
        return set_id != WORLD and set_id in self._sets

    def remove_set(self, set_id: int) -> list[tuple[Key, list[int]]]:
        """Forget a process set; return what was open in it, and the ranks that wait for it."""
        keys = [key for key in self._pending if key[0] == set_id]
        requests = [self.take(key).requests for key in keys]
        del self._sets[set_id]
        return [(key, sorted(ranks)) for key, ranks in zip(keys, requests, strict=True)]

"""The coordinator's side of negotiation: counts who is ready and orders all buckets of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from commrt.core import fusion
from commrt.core.actions import Action, SendControl
from commrt.core.agreement import agree
from commrt.core.dooms import Dooms
from commrt.core.goodbye import Goodbye
from commrt.core.ids import CAPACITY, IdTable, Key
from commrt.core.stall import StallWatch
from commrt.core.wire import (
    Failed,
    Forgotten,
    Hello,
    Item,
    Leaving,
    Lost,
    Message,
    Ready,
    Report,
    Schedule,
    Scheduled,
    Stalled,
    bits_to_ids,
)
from commrt.types import Agreed, ProcessSetSpec, Request


@dataclass(slots=True)
class Pending:
    """An operation that some members of its set have submitted."""

    requests: dict[int, Request] = field(default_factory=dict)
    by_name: bool = False


class Coordinator:
    """Decides for all process sets under one global order. Background thread of rank 0 only.

    Control messages in, actions out; never raises on what a rank sends.
    """

    def __init__(
        self,
        size: int,
        sets: Mapping[int, ProcessSetSpec],
        limit: int,
        stalls: StallWatch,
        capacity: int = CAPACITY,
    ) -> None:
        self._sets = dict(sets)
        self._limit = limit
        self._ids = IdTable(capacity)
        self._pending: dict[Key, Pending] = {}
        self._dooms = Dooms()
        self._stalls = stalls
        self._goodbye = Goodbye(size)
        self._numbers = 0

    def receive(self, rank: int, message: Message, now: float) -> list[Action]:
        """Take in one message of a member."""
        match message:
            case Ready():
                return self._ready(rank, message, now)
            case Report():
                return self._report(rank, message)
            case Leaving():
                return self._leave(rank, message)
            case Hello():
                return self._goodbye.hello(rank)
        return []

    def lost(self, ranks: Sequence[int], why: Sequence[str]) -> list[Action]:
        """Tell everyone, ourselves last, that these ranks are lost."""
        self._goodbye.lose(ranks)
        return list(self._goodbye.broadcast(Lost(tuple(ranks), tuple(why))))

    def stop(self, message: Message) -> list[SendControl]:
        """Tell every other rank that still listens."""
        return self._goodbye.broadcast(message, without=(0,))

    def tick(self, now: float) -> list[Action]:
        """Name late ranks; fail what is too late."""
        actions: list[Action] = []
        late = self._stalls.late(now)
        if late:
            text = self._stalls.text(late, self._missing, now)
            waiting = {r for key in late for r in self._pending[key].requests}
            actions += [SendControl(r, Stalled(text)) for r in sorted(waiting)]
        for key in self._stalls.expired(now):
            text = self._stalls.text([key], self._missing, now)
            actions += self._fail(key, "StallError", text, set())
        return actions + self._farewells() if actions else []

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        return self._stalls.deadline()

    def _report(self, rank: int, message: Report) -> list[Action]:
        key = (message.set_id, message.name)
        if self._dooms.take(key, rank) is not None:
            return []  # it has failed already, and this rank did not wait for it
        actions = self._fail(key, "RemoteError", f"rank {rank}: {message.text}", {rank})
        return actions + self._farewells()

    def _leave(self, rank: int, message: Leaving) -> list[Action]:
        if not message.final and self._goodbye.postpone(rank, message):
            return []
        actions = self._abandon_without(rank, self._goodbye.leave(rank, message.why))
        if message.final:
            actions += self._withdraw(rank)
        return actions + self._farewells()

    def _ready(self, rank: int, message: Ready, now: float) -> list[Action]:
        actions: list[Action] = []
        complete: list[Key] = []
        unknown: list[int] = []
        announced = [(request, True) for request in message.new]
        for id in bits_to_ids(message.base, message.bits):
            request = self._ids.request(id)
            if request is None:
                unknown.append(id)
                continue
            rows, absent = message.rows.get(id, ()), message.absent.get(id, ())
            if rows != request.rows or absent != request.absent:
                request = replace(request, rows=rows, absent=absent)
            announced.append((request, False))
        for request, by_name in announced:
            key = (request.set_id, request.name)
            refusal = self._refuse(rank, key, request)
            if refusal is not None:
                actions.append(refusal)
                continue
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = Pending()
                self._stalls.begin(key, now)
            pending.requests[rank] = request
            pending.by_name |= by_name
            if len(pending.requests) == len(self._sets[request.set_id].ranks):
                complete.append(key)
        if unknown:
            self._goodbye.ask_again(rank)
            actions.append(SendControl(rank, Forgotten(tuple(unknown))))
        if complete:
            actions += self._schedule(complete)
        leaving = self._goodbye.answered(rank) if message.again else None
        return actions if leaving is None else actions + self._leave(rank, leaving)

    def _refuse(self, rank: int, key: Key, request: Request) -> Action | None:
        doomed = self._dooms.take(key, rank)
        if doomed is not None:
            return SendControl(rank, Failed(*key, doomed.error, doomed.text))
        members = self._sets.get(request.set_id)
        if members is None or rank not in members.ranks:
            text = f"rank {rank} is not in process set {request.set_id}"
            return SendControl(rank, Failed(*key, "ArgumentError", text))
        submitted = self._pending[key].requests if key in self._pending else {}
        left = self._goodbye.left_among(r for r in members.ranks if r not in submitted)
        if left:
            text = f"{request.signature.kind.value} {request.name!r} needs {left}"
            return SendControl(rank, Failed(*key, "ShutdownError", text))
        return None

    def _schedule(self, complete: Sequence[Key]) -> list[Action]:
        actions: list[Action] = []
        ready: list[tuple[int, Agreed]] = []
        items: dict[Key, Item] = {}
        for key in complete:
            pending = self._pending.pop(key)
            self._stalls.end(key)
            ranks = self._sets[key[0]].ranks
            agreed = agree(pending.requests, ranks)
            if isinstance(agreed, str):
                failed = Failed(*key, "MismatchError", agreed)
                actions += [SendControl(r, failed) for r in ranks]
                continue
            ready.append((key[0], agreed))
            items[key] = self._item(pending, pending.requests[ranks[0]], agreed)
        buckets: dict[int, list[Scheduled]] = {}
        for set_id, operations in fusion.plan(ready, self._limit):
            found = tuple(items[set_id, operation.name] for operation in operations)
            scheduled = Scheduled(self._numbers, set_id, found)
            self._numbers += 1
            for rank in self._sets[set_id].ranks:
                buckets.setdefault(rank, []).append(scheduled)
        # Our own copy last: peers get theirs while we are still busy with ours.
        for rank in sorted(buckets, reverse=True):
            actions.append(SendControl(rank, Schedule(tuple(buckets[rank]))))
        return actions + self._farewells()

    def _item(self, pending: Pending, request: Request, agreed: Agreed) -> Item:
        if not request.named:
            return Item(-1, request.name, agreed.rows, agreed.absent)
        id = self._ids.find(request)
        new = id is None  # also when others of the same message have just evicted it
        if id is None:
            id = self._ids.add(replace(request, rows=(), absent=()))
        by_name = new or pending.by_name
        return Item(id, request.name if by_name else "", agreed.rows, agreed.absent)

    def _fail(self, key: Key, error: str, text: str, done: set[int]) -> list[Action]:
        """Fail an operation on every member; those not in `done` fail when they submit it."""
        pending = self._pending.pop(key, None)
        self._stalls.end(key)
        members = self._sets.get(key[0])
        if members is None:
            return []
        submitted = set(pending.requests) if pending else set()
        self._dooms.add(key, error, text, set(members.ranks) - submitted - done)
        failed = Failed(*key, error, text)
        return [SendControl(r, failed) for r in sorted(submitted)]

    def _abandon_without(self, rank: int, text: str) -> list[Action]:
        """Fail what waits for a rank that submits nothing more."""
        actions: list[Action] = []
        for key in [k for k in self._pending if rank in self._missing(k)]:
            submitted = self._pending.pop(key).requests
            self._stalls.end(key)
            kind = next(iter(submitted.values())).signature.kind.value
            failed = Failed(*key, "ShutdownError", f"{kind} {key[1]!r} needs {text}")
            actions += [SendControl(r, failed) for r in submitted]
        return actions

    def _withdraw(self, rank: int) -> list[Action]:
        """Forget what a rank submitted and no longer waits for."""
        actions: list[Action] = []
        text = self._goodbye.left_among([rank])
        for key in [k for k, p in self._pending.items() if rank in p.requests]:
            others = set(self._pending.pop(key).requests) - {rank}
            self._stalls.end(key)
            failed = Failed(*key, "ShutdownError", f"{key[1]!r} needs {text}")
            actions += [SendControl(r, failed) for r in sorted(others)]
        return actions

    def _missing(self, key: Key) -> list[int]:
        submitted = self._pending[key].requests
        return [r for r in self._sets[key[0]].ranks if r not in submitted]

    def _farewells(self) -> list[Action]:
        busy = {r for pending in self._pending.values() for r in pending.requests}
        return self._goodbye.farewells(busy)

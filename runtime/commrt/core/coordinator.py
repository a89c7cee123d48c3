"""The coordinator's side of negotiation: counts who is ready and orders all buckets of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from commrt.core import fusion
from commrt.core.actions import Action, SendControl
from commrt.core.agreement import agree
from commrt.core.dooms import Dooms
from commrt.core.goodbye import Goodbye
from commrt.core.ids import CAPACITY, IdTable, Key, unnamed
from commrt.core.lease import Lease
from commrt.core.ledger import Ledger, Pending
from commrt.core.rhythm import Beat, Turn, provable, slot_of
from commrt.core.stall import StallWatch
from commrt.core.wire import (
    Deviate,
    Failed,
    Forgotten,
    Frozen,
    Hello,
    Item,
    Leaving,
    Lost,
    Message,
    Ready,
    Recount,
    Report,
    Schedule,
    Scheduled,
    Stalled,
    bits_to_ids,
)
from commrt.types import Agreed, Kind, ProcessSetSpec, Request

Items = dict[int, Item]
"""What each rank is told of an operation."""


class Coordinator:
    """Decides for all process sets under one global order. Background thread of rank 0 only.

    Control messages in, actions out; never raises on what a rank's `Member` sends.
    """

    def __init__(
        self,
        size: int,
        sets: Mapping[int, ProcessSetSpec],
        limit: int,
        stalls: StallWatch,
        lease: Lease,
        capacity: int = CAPACITY,
    ) -> None:
        self._ledger = Ledger(sets, stalls)
        self._limit = limit
        self._ids = IdTable(capacity)
        self._dooms = Dooms()
        self._stalls = stalls
        self._goodbye = Goodbye(size)
        self._held: dict[int, Request] = {}
        self._lease = lease

    def receive(self, rank: int, message: Message, now: float) -> list[Action]:
        """Take in one message of a member."""
        if isinstance(message, Report | Leaving) and self._lease.free():
            self._lease.hear(rank)
        match message:
            case Deviate(epoch=epoch, why=why):
                if not self._lease.is_about(epoch):
                    return []
                return [*self._lease.freeze(now, f"Rank {rank}: {why}")]
            case Frozen(epoch=epoch, begun=begun):
                return self._unlock(rank, begun) if self._lease.is_about(epoch) else []
            case Ready() if not self._lease.free():
                return []  # it crossed our Lock, and follows the plan or is announced again
            case Report(text=text) if not self._lease.free():  # it is said again
                return [*self._lease.freeze(now, f"Rank {rank}: {text}")]
            case Leaving(why=why, final=True) if not self._lease.free():
                return self.lost([rank], [f"it has shut down ({why})"])
            case Leaving(why=why) if not self._lease.free():  # it is said again
                return [*self._lease.freeze(now, f"Rank {rank} leaves: {why}")]
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
            text = self._stalls.text(late, self._ledger.missing, now)
            waiting = {r for key in late for r in self._ledger.submitters(key)}
            actions += [SendControl(r, Stalled(text)) for r in sorted(waiting)]
        for key in self._stalls.expired(now):
            text = self._stalls.text([key], self._ledger.missing, now)
            actions += self._fail(key, "StallError", text, set())
        actions += self._lease.tick(now)
        return actions + self._farewells() if actions else []

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        times = (self._stalls.deadline(), self._lease.deadline())
        return min((t for t in times if t is not None), default=None)

    def _report(self, rank: int, message: Report) -> list[Action]:
        key = (message.set_id, message.name)
        if self._dooms.take(key, rank) is not None:
            return []  # it has failed already, and this rank did not wait for it
        actions = self._fail(key, "RemoteError", f"rank {rank}: {message.text}", {rank})
        return actions + self._farewells()

    def _leave(self, rank: int, message: Leaving) -> list[Action]:
        if not message.final and self._goodbye.postpone(rank, message):
            return []
        text = self._goodbye.leave(rank, message.why)
        actions: list[Action] = []
        self._held.pop(rank, None)
        for key in self._ledger.submitted_by(rank):
            if message.final or self._ledger.kind(key) is Kind.JOIN:
                needs = f"{key[1]!r} needs {text}"
                actions += self._end(key, "ShutdownError", needs, rank if message.final else -1)
        actions += self._abandon_without(rank, text)
        return actions + self._farewells()

    def _ready(self, rank: int, message: Ready, now: float) -> list[Action]:
        actions: list[Action] = []
        complete: list[Key] = []
        unknown: list[int] = []
        leaving = self._goodbye.answered(rank) if message.again else None
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
        if rank in self._held and not self._goodbye.asks(rank):
            announced.append((self._held.pop(rank), True))
        for request, by_name in announced:
            joins = request.signature.kind is Kind.JOIN
            if joins and (unknown or self._goodbye.asks(rank)):
                self._held[rank] = request  # what it has submitted before comes first
                continue
            key = (request.set_id, request.name)
            refusal = self._refuse(rank, key, request)
            if refusal is not None:
                actions.append(refusal)
                continue
            complete += self._ledger.enter(rank, request, by_name, now - message.waited)
            if joins:
                self._dooms.release(rank)
                for refused, text in self._ledger.refused():
                    actions += self._end(refused, "MismatchError", text)
        if unknown:
            self._goodbye.ask_again(rank)
            actions.append(SendControl(rank, Forgotten(tuple(unknown))))
        if complete:
            actions += self._schedule(list(dict.fromkeys(complete)))
        return actions if leaving is None else actions + self._leave(rank, leaving)

    def _refuse(self, rank: int, key: Key, request: Request) -> Action | None:
        doomed = self._dooms.take(key, rank)
        if doomed is not None:
            return SendControl(rank, Failed(*key, doomed.error, doomed.text))
        members = self._ledger.members(request.set_id)
        if rank not in members:
            text = f"rank {rank} is not in process set {request.set_id}"
            return SendControl(rank, Failed(*key, "ArgumentError", text))
        if self._ledger.joining.has(rank):
            text = f"rank {rank} has joined and submits nothing until join() has ended"
            return SendControl(rank, Failed(*key, "MismatchError", text))
        submitted = self._ledger.submitters(key)
        missing = [r for r in members if r not in submitted]
        left = self._goodbye.left_among(missing)
        if left:
            text = f"{request.signature.kind.value} {request.name!r} needs {left}"
            return SendControl(rank, Failed(*key, "ShutdownError", text))
        joined = self._ledger.joining.refusal(request, missing)
        if joined is not None:
            return SendControl(rank, Failed(*key, "MismatchError", joined))
        return None

    def _schedule(self, complete: Sequence[Key]) -> list[Action]:
        actions: list[Action] = []
        ready: list[tuple[int, Agreed]] = []
        items: dict[Key, Items] = {}
        beats: dict[Key, Beat] = {}
        for key in complete:
            if not self._ledger.submitters(key):
                continue  # its process set was removed just before
            ranks, last = self._ledger.members(key[0]), self._ledger.joining.last()
            pending = self._ledger.take(key)
            agreed = agree(pending.requests, ranks)
            if isinstance(agreed, Agreed):
                agreed, orphaned = self._settle(agreed, last)
                actions += orphaned
            if isinstance(agreed, str):
                failed = Failed(*key, "MismatchError", agreed)
                actions += [SendControl(r, failed) for r in pending.requests]
                continue
            ready.append((key[0], agreed))
            item = self._item(pending, next(iter(pending.requests.values())), agreed)
            items[key] = _told(pending, ranks, agreed, item)
            beats[key] = _beat(pending, ranks, agreed, item)
        return actions + self._order(ready, beats, items) + self._farewells()

    def _order(
        self, ready: list[tuple[int, Agreed]], beats: dict[Key, Beat], items: dict[Key, Items]
    ) -> list[Action]:
        """Put operations into buckets and tell, or begin to follow a plan that has them."""
        actions: list[Action] = []
        buckets: dict[int, list[Scheduled]] = {}
        turns = [self._turn(*group, beats) for group in fusion.plan(ready, self._limit)]
        for place, turn in enumerate(turns):
            plan = self._lease.step(turn)
            if plan and self._serves(plan, turns[place:]):
                self._ledger.forget()
                actions = list(self._lease.lock(plan, self._ledger.members))
                break
            self._lease.add(turn)
            told = [items[turn.set_id, beat.agreed.name] for beat in turn.beats]
            number = self._lease.number()
            for rank in told[0]:
                found = tuple(item[rank] for item in told)
                buckets.setdefault(rank, []).append(Scheduled(number, turn.set_id, found))
        # Our own copy last: peers get theirs while we are still busy with ours.
        ranks = sorted(buckets, reverse=True)
        return [*(SendControl(r, Schedule(tuple(buckets[r]))) for r in ranks), *actions]

    def _turn(self, set_id: int, operations: Sequence[Agreed], beats: dict[Key, Beat]) -> Turn:
        size = len(self._ledger.members(set_id))
        sound = all(provable(operation, size) for operation in operations)
        return Turn(set_id, tuple(beats[set_id, o.name] for o in operations), sound)

    def _serves(self, plan: Sequence[Turn], turns: Sequence[Turn]) -> bool:
        """May all follow a plan, and is everything that is open in it?"""
        if not self._goodbye.calm() or self._held or self._ledger.joining.ranks():
            return False
        known = {(turn.set_id, slot_of(beat)) for turn in plan for beat in turn.beats}
        for set_id, name in self._dooms.expected():  # of these some rank has one more to come
            kind = next((kind for kind in Kind if name.startswith(unnamed(kind))), name)
            if not known.isdisjoint(((set_id, name), (set_id, kind))):
                return False
        wanted = {(turn.set_id, slot_of(beat)) for turn in turns for beat in turn.beats}
        for request in self._ledger.pending():
            wanted.add((request.set_id, request.name if request.named else request.signature.kind))
        return wanted <= known

    def _unlock(self, rank: int, begun: dict[int, int]) -> list[Action]:
        """Note how far a rank is; once all have answered, negotiate again."""
        if not self._lease.answer(rank, begun):
            return []
        return [*self._lease.unlock(self._ledger.members)]

    def _settle(self, agreed: Agreed, last: int) -> tuple[Agreed | str, list[Action]]:
        """Do here what an operation on the job itself asks for; its result travels as rows."""
        subject = agreed.signature.subject
        match agreed.signature.kind:
            case Kind.JOIN:
                return replace(agreed, rows=((last,),)), []
            case Kind.ADD_SET:
                return replace(agreed, rows=((self._ledger.add_set(subject),),)), []
            case Kind.REMOVE_SET if not subject or not self._ledger.removable(subject[0]):
                return f"process sets {list(subject)} can't be removed", []
            case Kind.REMOVE_SET:
                orphaned: list[Action] = []
                for key, waiting in self._ledger.remove_set(subject[0]):
                    failed = Failed(*key, "ArgumentError", f"process set {subject[0]} was removed")
                    orphaned += [SendControl(r, failed) for r in waiting]
                self._dooms.forget(subject[0])
                return agreed, orphaned
        return agreed, []

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
        late = set(self._ledger.members(key[0])) - self._ledger.submitters(key) - done
        late -= self._ledger.joining.ranks()
        self._dooms.add(key, error, text, late)
        return self._end(key, error, text)

    def _end(self, key: Key, error: str, text: str, without: int = -1) -> list[Action]:
        """Fail an operation on the ranks that have submitted it."""
        waiting = self._ledger.submitters(key)
        joined = self._ledger.joining.ranks()
        failed = Failed(*key, error, text)
        actions: list[Action] = [SendControl(r, failed) for r in sorted(waiting) if r != without]
        if waiting and self._ledger.take(key).kind is Kind.JOIN:
            actions += self._scatter(joined, text)
        return actions

    def _scatter(self, joined: set[int], text: str) -> list[Action]:
        """Begin anew after a join that failed: nothing can wait for those who had joined."""
        actions: list[Action] = []
        for key in [k for r in sorted(joined) for k in self._ledger.waiting_for(r)]:
            actions += self._end(key, "ShutdownError", text)
        return actions + list(self._goodbye.broadcast(Recount()))

    def _abandon_without(self, rank: int, text: str) -> list[Action]:
        """Fail what waits for a rank that submits nothing more."""
        actions: list[Action] = []
        for key in self._ledger.waiting_for(rank):
            kind = self._ledger.kind(key).value
            actions += self._end(key, "ShutdownError", f"{kind} {key[1]!r} needs {text}")
        return actions

    def _farewells(self) -> list[Action]:
        return self._goodbye.farewells(self._ledger.busy())


def _told(pending: Pending, ranks: Sequence[int], agreed: Agreed, item: Item) -> Items:
    """Return what each rank is told of an operation; those that have joined are told all."""
    full = Item(-1, agreed.name, agreed.rows, agreed.absent, agreed.signature)
    return {r: item if r in pending.requests else full for r in ranks}


def _beat(pending: Pending, ranks: Sequence[int], agreed: Agreed, item: Item) -> Beat:
    """Return an operation as it may come again in the next step."""
    requests = [pending.requests[r] for r in ranks if r in pending.requests]
    named = requests[0].named
    ident = item.id if named else (agreed.signature.kind, agreed.signature)
    return Beat(agreed, named, ident, tuple((r.rows, r.absent) for r in requests))

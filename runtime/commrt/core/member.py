"""One rank's side of negotiation: announces what is submitted, obeys the coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from commrt import errors
from commrt.core.actions import (
    Action,
    CountAnew,
    Execute,
    Fail,
    Inform,
    PeersLeft,
    Revoke,
    SendControl,
    Started,
    Stop,
    Warn,
)
from commrt.core.ids import CAPACITY, IdTable, Key
from commrt.core.schedule_lock import LockedPlan, Waiting
from commrt.core.silence import Silence
from commrt.core.wire import (
    COORDINATOR,
    SPREAD,
    Deviate,
    Failed,
    Farewell,
    Forgotten,
    Freeze,
    Frozen,
    Item,
    Leaving,
    Left,
    Lock,
    Lost,
    Message,
    Ready,
    Recount,
    Report,
    Schedule,
    Scheduled,
    Stalled,
    Unlock,
    Welcome,
    ids_to_bits,
)
from commrt.core.wire import Stop as StopMessage
from commrt.errors import CommError, PeerLostError
from commrt.types import Agreed, Bucket, Kind, Request

Note = Report | Leaving

_KEPT = 1024  # notes that may not have been heard: they were sent within a moment


class Notes:
    """Reports and goodbyes of this rank, each with its place among what it has submitted. Pure."""

    def __init__(self) -> None:
        self.turn = 0
        self.count = 0
        self._sent: deque[tuple[int, Note]] = deque(maxlen=_KEPT)
        self._held: list[tuple[int, Note]] = []

    def send(self, note: Note) -> None:
        """Note what is told now."""
        self.count += 1
        self._sent.append((self.turn, note))

    def hold(self, note: Note) -> None:
        """Keep what can't be told while there is a plan."""
        self._held.append((self.turn, note))

    def unheard(self, heard: int) -> bool:
        """Keep what was told after the coordinator had heard so many; is there any?"""
        lost = self.count - heard
        self._held += list(self._sent)[len(self._sent) - lost :] if lost else []
        self.count = heard
        return bool(lost)

    def release(self) -> list[tuple[int, Note]]:
        """Return what was kept, in order."""
        held, self._held = self._held, []
        return held


class Member:
    """Turns submissions and the coordinator's messages into actions. Background thread only.

    While there is a plan, submissions go where it has them, and nothing is said.
    """

    def __init__(
        self, rank: int, hosts: Sequence[str], stall_warn: float, stall_fail: float = 0.0,
        capacity: int = CAPACITY,
    ) -> None:  # fmt: skip
        self._rank = rank
        self._hosts = tuple(hosts)
        self._silence = Silence(hosts, stall_warn, stall_fail)
        self._ids = IdTable(capacity)
        self._open: dict[Key, tuple[Waiting, int | None]] = {}
        self._open_ids: dict[int, Key] = {}
        self._plan: LockedPlan | None = None
        self._notes = Notes()

    def submit(self, requests: Sequence[Request], now: float) -> list[Action]:
        """Announce new submissions in one message, or put them where the plan has them."""
        self._notes.turn += 1
        waiting = [Waiting(request, now, self._notes.turn) for request in requests]
        self._open.update({(w.request.set_id, w.request.name): (w, None) for w in waiting})
        return self._announce(waiting, now) if self._plan is None else self._follow(waiting, now)

    def ended(self, bucket: Bucket) -> list[Action]:
        """Note that a bucket is done here: the next one of the plan may begin."""
        if self._plan is None:
            return []
        self._plan.end(bucket.number)
        return self._begin(self._plan)

    def is_blocked(self) -> bool:
        """Does the plan have anything wait for something that is still to be submitted here?"""
        return self._plan is not None and self._plan.is_blocked()

    def blocked(self) -> list[Key]:
        """Return what does."""
        return [] if self._plan is None else self._plan.blocked()

    def awaited(self, key: Key, now: float) -> list[Action]:
        """Give up a plan that has a caller wait for what he has not submitted yet."""
        if self._plan is None:
            return []
        return self._deviate(self._plan, f"{key[1]!r} is waited for before its turn", now)

    def negotiates(self) -> bool:
        """Is there no plan?"""
        return self._plan is None

    def report(self, set_id: int, name: str, text: str, now: float) -> list[Action]:
        """Tell every rank that an operation fails here."""
        return self._say(Report(set_id, name, text), text, now)

    def leave(self, why: str, now: float, final: bool = False) -> list[Action]:
        """Ask to leave; the coordinator answers when nothing of ours is open.

        While there is a plan, ask to give it up first.
        """
        return self._say(Leaving(why, final), f"it leaves ({why})", now)

    def open_names(self) -> list[str]:
        """Names of the operations submitted here that have not begun."""
        return [name for _, name in self._open]

    def receive(self, message: Message, now: float) -> list[Action]:
        """Obey the coordinator. Never raises: unknown operations are ignored."""
        match message:
            case Schedule(buckets=buckets):
                return [Execute(self._bucket(b)) for b in buckets]
            case Lock():
                return self._lock(message, now)
            case Freeze(epoch=epoch) if self._plan is not None and epoch == self._plan.epoch:
                return [self._tell(Frozen(epoch, self._plan.freeze()))]
            case Unlock() if self._plan is not None:
                return self._unlock(self._plan, message, now)
            case Failed(set_id=set_id, name=name, error=error, text=text):
                self._close((set_id, name))
                return [Fail(set_id, name, make_error(error, text))]
            case Forgotten(ids=ids):
                return self._announce_again(ids)
            case Recount():
                return [CountAnew()]
            case Stalled(text=text):
                self._silence.broken()
                return [Warn(text)]
            case Welcome():
                return [Started()]
            case Left(ranks=ranks):
                return [PeersLeft(ranks)]
            case Farewell():
                return [Stop(None)]
            case Lost(ranks=ranks, why=why):
                return [Stop(peer_lost(ranks, self._hosts, why))]
            case StopMessage(error=error, text=text):
                return [Stop(make_error(error, text))]
        return []

    def tick(self, now: float) -> list[Action]:
        """Warn when the coordinator is late; give up a plan that does not get on.

        Once the job negotiates again the coordinator can say who is late.
        """
        actions: list[Action] = [*self._silence.tick(self._unanswered(), self.open_names(), now)]
        if self._watched() and now >= self._silence.next_look():
            assert self._plan is not None
            if self._silence.overdue(self._plan.oldest(), now):
                actions += self._deviate(self._plan, "it waits for others", now)
        return actions

    def deadline(self) -> float:
        """When `tick` is next needed."""
        answer = self._silence.deadline(self._unanswered())
        return min(answer, self._silence.next_look()) if self._watched() else answer

    def _watched(self) -> bool:
        """May a plan fail to get on?"""
        plan = self._plan
        return plan is not None and plan.deviated is None and not plan.idle()

    def _unanswered(self) -> float | None:
        """Since when the coordinator should have answered."""
        if self._rank == COORDINATOR:
            return None
        if self._plan is not None:
            return self._plan.deviated
        # A join may take as long as the others have data.
        return next((w.since for w, _ in self._open.values() if not _joins(w.request)), None)

    def _lock(self, message: Lock, now: float) -> list[Action]:
        self._plan = LockedPlan(message)
        self._open_ids.clear()
        text = f"from bucket {message.first} on {len(message.plan)} buckets come again and again"
        actions: list[Action] = [Inform(text)]
        if self._notes.unheard(message.heard):
            actions += self._deviate(self._plan, "it has just said otherwise", now)
        return actions + self._follow([w for w, _ in self._open.values()], now)

    def _follow(self, waiting: Sequence[Waiting], now: float) -> list[Action]:
        plan = self._plan
        assert plan is not None
        actions: list[Action] = []
        for each in waiting:
            if plan.deviated is not None:
                break  # what comes later must not be taken for what should have come here
            why = plan.place(each)
            if why is not None:
                actions += self._deviate(plan, why, now)
        return actions + self._begin(plan)

    def _say(self, note: Note, why: str, now: float) -> list[Action]:
        """Tell it, after what was submitted before; while there is a plan give that up first."""
        if self._plan is None:
            self._notes.send(note)
            return [self._tell(note)]
        self._notes.hold(note)
        return self._deviate(self._plan, why, now)

    def _begin(self, plan: LockedPlan) -> list[Action]:
        buckets = plan.begin()
        for bucket in buckets:
            for operation in bucket.operations:
                self._close((bucket.set_id, operation.name))
        return [Execute(bucket) for bucket in buckets]

    def _deviate(self, plan: LockedPlan, why: str, now: float) -> list[Action]:
        if plan.deviated is not None:
            return []
        plan.deviated = now
        return [self._tell(Deviate(plan.epoch, why))]

    def _unlock(self, plan: LockedPlan, message: Unlock, now: float) -> list[Action]:
        """Take back what not all have begun; announce all that is not finished, in its order."""
        self._plan = None
        buckets, back = plan.unlock(message)
        actions: list[Action] = [Inform(f"the job negotiates again. {message.why}")]
        actions += [Revoke(bucket) for bucket in buckets]
        waiting = [*back, *(w for w, _ in self._open.values())]
        waiting.sort(key=lambda each: each.turn)  # stable
        self._open = {(w.request.set_id, w.request.name): (w, None) for w in waiting}
        for turn, note in self._notes.release():
            earlier = [each for each in waiting if each.turn <= turn]
            waiting = waiting[len(earlier) :]
            actions += self._announce(earlier, now)
            self._notes.send(note)
            actions.append(self._tell(note))
        return actions + self._announce(waiting, now)

    def _announce(self, waiting: Sequence[Waiting], now: float) -> list[Action]:
        if not waiting:
            return []
        new: list[Request] = []
        known: list[int] = []
        rows: dict[int, tuple[int, ...]] = {}
        absent: dict[int, tuple[int, ...]] = {}
        for each in waiting:
            request = each.request
            id = self._ids.find(request) if request.named else None
            if id is not None and known and abs(id - known[0]) > SPREAD:
                id = None
            if id is None:
                new.append(request)
                continue
            key = (request.set_id, request.name)
            self._open[key] = (each, id)
            self._open_ids[id] = key
            known.append(id)
            if request.rows:
                rows[id] = request.rows
            if request.absent:
                absent[id] = request.absent
        base, bits = ids_to_bits(known)
        since = min(each.since for each in waiting)
        return [self._tell(Ready(tuple(new), base, bits, rows, absent, waited=now - since))]

    def _bucket(self, scheduled: Scheduled) -> Bucket:
        agreed = tuple(self._agreed(scheduled.set_id, item) for item in scheduled.items)
        return Bucket(scheduled.number, scheduled.set_id, agreed)

    def _agreed(self, set_id: int, item: Item) -> Agreed:
        if item.signature is not None:
            return Agreed(item.name, item.signature, item.rows, item.absent, joined=True)
        key = (set_id, item.name) if item.name else self._open_ids[item.id]
        request = self._close(key)
        assert request is not None
        if item.name and item.id >= 0:
            self._ids.learn(item.id, request)
        return Agreed(request.name, request.signature, item.rows, item.absent)

    def _close(self, key: Key) -> Request | None:
        waiting, id = self._open.pop(key, (None, None))
        if id is not None:
            self._open_ids.pop(id, None)
        return None if waiting is None else waiting.request

    def _announce_again(self, ids: Sequence[int]) -> list[Action]:
        keys = [self._open_ids.pop(i, None) for i in ids]
        for i in ids:
            self._ids.forget(i)
        again = tuple(self._open[key][0].request for key in keys if key is not None)
        return [self._tell(Ready(again, again=True))]

    def _tell(self, message: Message) -> SendControl:
        return SendControl(COORDINATOR, message)


def _joins(request: Request) -> bool:
    return request.signature.kind is Kind.JOIN


def make_error(name: str, text: str) -> CommError:
    """Return the error of `commrt.errors` of that name, or a CommError."""
    cls = getattr(errors, name, CommError)
    if isinstance(cls, type) and issubclass(cls, CommError):
        return cls(text)
    return CommError(text)


def peer_lost(
    ranks: Sequence[int], hosts: Sequence[str] | Mapping[int, str], why: Sequence[str]
) -> PeerLostError:
    """Return the error for lost ranks, on `hosts[rank]`; the engine adds what was in flight."""
    each = "; ".join(f"rank {r} on {hosts[r]}: {w}" for r, w in zip(ranks, why, strict=True))
    return PeerLostError(f"lost {each}", ranks, [hosts[r] for r in ranks])

"""One rank's side of negotiation: announces what is submitted, obeys the coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commrt import errors
from commrt.core.actions import (
    Action,
    CountAnew,
    Execute,
    Fail,
    PeersLeft,
    SendControl,
    Started,
    Stop,
    Warn,
)
from commrt.core.ids import CAPACITY, IdTable, Key
from commrt.core.wire import (
    SPREAD,
    Failed,
    Farewell,
    Forgotten,
    Item,
    Leaving,
    Left,
    Lost,
    Message,
    Ready,
    Recount,
    Report,
    Schedule,
    Scheduled,
    Stalled,
    Welcome,
    ids_to_bits,
)
from commrt.core.wire import Stop as StopMessage
from commrt.errors import CommError, PeerLostError
from commrt.types import Agreed, Bucket, Kind, Request

COORDINATOR = 0
"""World rank whose engine coordinates."""


class Member:
    """Turns submissions and the coordinator's messages into actions. Background thread only."""

    def __init__(
        self, rank: int, hosts: Sequence[str], stall_warn: float, capacity: int = CAPACITY
    ) -> None:
        self._rank = rank
        self._hosts = tuple(hosts)
        self._stall_warn = stall_warn
        self._ids = IdTable(capacity)
        self._open: dict[Key, tuple[Request, float, int | None]] = {}
        self._open_ids: dict[int, Key] = {}
        self._warned_at = 0.0

    def submit(self, requests: Sequence[Request], now: float) -> list[Action]:
        """Announce new submissions in one message."""
        new: list[Request] = []
        known: list[int] = []
        rows: dict[int, tuple[int, ...]] = {}
        absent: dict[int, tuple[int, ...]] = {}
        for request in requests:
            id = self._ids.find(request) if request.named else None
            if id is not None and known and abs(id - known[0]) > SPREAD:
                id = None
            self._open[request.set_id, request.name] = (request, now, id)
            if id is None:
                new.append(request)
                continue
            known.append(id)
            self._open_ids[id] = (request.set_id, request.name)
            if request.rows:
                rows[id] = request.rows
            if request.absent:
                absent[id] = request.absent
        base, bits = ids_to_bits(known)
        return [self._tell(Ready(tuple(new), base, bits, rows, absent))]

    def report(self, set_id: int, name: str, text: str) -> list[Action]:
        """Tell every rank that an operation fails here."""
        return [self._tell(Report(set_id, name, text))]

    def leave(self, why: str, final: bool = False) -> list[Action]:
        """Ask to leave; the coordinator answers when nothing of ours is open."""
        return [self._tell(Leaving(why, final))]

    def open_names(self) -> list[str]:
        """Names of the operations submitted here and not yet scheduled."""
        return [name for _, name in self._open]

    def receive(self, message: Message) -> list[Action]:
        """Obey the coordinator. Never raises: unknown operations are ignored."""
        match message:
            case Schedule(buckets=buckets):
                return [Execute(self._bucket(b)) for b in buckets]
            case Failed(set_id=set_id, name=name, error=error, text=text):
                self._close((set_id, name))
                return [Fail(set_id, name, make_error(error, text))]
            case Forgotten(ids=ids):
                return self._announce_again(ids)
            case Recount():
                return [CountAnew()]
            case Stalled(text=text):
                self._warned_at = float("inf")
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
        """Warn when the coordinator itself is the one that is late."""
        since = self._oldest()
        if since is None or now < self._silence_deadline(since):
            return []
        self._warned_at = float("inf")
        names = ", ".join(repr(name) for name in self.open_names()[:6])
        return [
            Warn(
                f"rank {COORDINATOR} on {self._hosts[COORDINATOR]} has not answered for "
                f"{now - since:.0f} s; it is stopped, or busy outside Python. Waiting for {names}"
            )
        ]

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        since = self._oldest()
        if since is None or self._warned_at == float("inf"):
            return None
        return self._silence_deadline(since)

    def _silence_deadline(self, since: float) -> float:
        return float("inf") if self._warned_at == float("inf") else since + 1.5 * self._stall_warn

    def _oldest(self) -> float | None:
        since = None
        if self._rank != COORDINATOR:  # a join may take as long as the others have data
            since = next((t for r, t, _ in self._open.values() if not _joins(r)), None)
        if since is None:
            self._warned_at = 0.0
        return since

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
        request, _, id = self._open.pop(key, (None, 0.0, None))
        if id is not None:
            self._open_ids.pop(id, None)
        return request

    def _announce_again(self, ids: Sequence[int]) -> list[Action]:
        keys = [self._open_ids.pop(i, None) for i in ids]
        for i in ids:
            self._ids.forget(i)
        again = tuple(self._open[key][0] for key in keys if key is not None)
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

"""Negotiation without threads or time: all cores of a job and the messages between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commrt.core import wire
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
from commrt.core.coordinator import Coordinator
from commrt.core.ids import CAPACITY, Key
from commrt.core.lease import Lease
from commrt.core.member import Member
from commrt.core.stall import StallWatch
from commrt.errors import ShutdownError
from commrt.types import WORLD, Bucket, ProcessSetSpec, Request

Link = tuple[str, int]
"""`up` from a rank to the coordinator, `down` to it; `done`: a rank's buckets that may end."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the cores of a job are made with. `warn` and `fail` are seconds."""

    size: int
    sets: Mapping[int, ProcessSetSpec]
    limit: int = 1 << 20
    capacity: int = CAPACITY
    warn: float = 60.0
    fail: float = 600.0
    lock: bool = False


@dataclass(slots=True)
class SimulatedRank:
    """What one rank's engine would hold: operations by key, in the order in which they ended.

    `begun` are the buckets in the order in which they began, but for `revoked` ones.
    """

    open: dict[Key, Request] = field(default_factory=dict)
    begun: list[Bucket] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    revoked: list[Bucket] = field(default_factory=list)
    failed: list[Fail] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    recounts: int = 0
    started: bool = False
    end: Stop | None = None

    def carry_out(self, action: Action) -> None:
        """Take note of what the member decided. Raises KeyError for an operation not open."""
        match action:
            case Execute(bucket=bucket):
                self.begun.append(bucket)
            case Revoke(bucket=bucket):
                assert bucket not in self.buckets, f"{bucket} has ended"
                self.begun = [b for b in self.begun if b.number != bucket.number]
                self.revoked.append(bucket)
            case Fail(set_id=set_id, name=name):
                if self.open.pop((set_id, name), None) is not None:
                    self.failed.append(action)
            case Warn(text=text):
                self.warnings.append(text)
            case Inform(text=text):
                self.news.append(text)
            case PeersLeft(ranks=ranks):
                self.gone.update(ranks)
            case CountAnew():
                self.recounts += 1
            case Started():
                self.started = True
            case Stop():
                self.end = self.end or action

    def finish(self, bucket: Bucket) -> None:
        """Take note of the end of a bucket. Raises KeyError for an operation not open."""
        for operation in bucket.operations:
            if not operation.joined:
                del self.open[bucket.set_id, operation.name]
        self.buckets.append(bucket)


Event = tuple[object, ...]


class Cores:
    """The decisions of a job: one event in, the actions of the core that got it out."""

    def __init__(self, settings: Settings) -> None:
        hosts = [f"host{r}" for r in range(settings.size)]
        stalls = StallWatch(settings.warn, settings.fail, hosts)
        lease = Lease(hosts, settings.warn, settings.fail, settings.lock)
        self.coordinator = Coordinator(
            settings.size, settings.sets, settings.limit, stalls, lease, settings.capacity
        )
        self.members = [
            Member(r, hosts, settings.warn, settings.fail, settings.capacity)
            for r in range(settings.size)
        ]

    def take(self, event: Event) -> list[Action]:
        """Let the core that an event is for decide."""
        match event:
            case ("coordinator", int(rank), bytes(data), float(now)):
                return self.coordinator.receive(rank, wire.decode(data)[1], now)
            case ("member", int(rank), bytes(data), float(now)):
                return self.members[rank].receive(wire.decode(data)[1], now)
            case ("submit", int(rank), tuple(requests), float(now)):
                return self.members[rank].submit(requests, now)
            case ("report", int(rank), int(set_id), str(name), str(text), float(now)):
                return self.members[rank].report(set_id, name, text, now)
            case ("leave", int(rank), str(why), bool(final), float(now)):
                return self.members[rank].leave(why, now, final)
            case ("ended", int(rank), Bucket() as bucket):
                return self.members[rank].ended(bucket)
            case ("awaited", int(rank), tuple(key), float(now)):
                return self.members[rank].awaited(key, now)
            case ("lost", tuple(ranks), tuple(why)):
                return self.coordinator.lost(ranks, why)
            case ("time", -1, float(now)):
                return self.coordinator.tick(now)
            case ("time", int(rank), float(now)):
                return self.members[rank].tick(now)
        raise ValueError(f"no such event: {event}")


class Network:
    """A job of simulated ranks. Messages wait on their links until a test delivers them.

    `log` records every event and what the core answered.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.ranks = [SimulatedRank() for _ in range(settings.size)]
        self.log: list[tuple[Event, str]] = []
        self.now = 0.0
        self._cores = Cores(settings)
        ways = [(way, r) for way in ("up", "down") for r in range(settings.size)]
        self._links: dict[Link, deque[bytes]] = {way: deque() for way in ways}
        self._done: dict[Link, deque[Bucket]] = {("done", r): deque() for r in range(settings.size)}

    def submit(self, rank: int, requests: Sequence[Request]) -> None:
        """Submit operations in one go. None of their names may be open."""
        for request in requests:
            key = (request.set_id, request.name)
            assert key not in self.ranks[rank].open, f"{key} is open on rank {rank}"
            self.ranks[rank].open[key] = request
        self._happen(rank, ("submit", rank, tuple(requests), self.now))

    def report(self, rank: int, set_id: int, name: str, text: str) -> None:
        """Report an error instead of submitting an operation."""
        self._happen(rank, ("report", rank, set_id, name, text, self.now))

    def leave(self, rank: int, why: str, final: bool = False) -> None:
        """Say goodbye; a `final` one does not wait for an answer."""
        self._happen(rank, ("leave", rank, why, final, self.now))
        if final:
            self.ranks[rank].carry_out(Stop(ShutdownError(why)))

    def hello(self, rank: int) -> None:
        """Connect a rank."""
        self.inject(rank, wire.Hello())

    def inject(self, rank: int, message: wire.Message) -> None:
        """Send the coordinator a message of a rank that its core did not make."""
        self._links["up", rank].append(wire.encode(1, message))

    def lose(self, ranks: Sequence[int], why: str) -> None:
        """Let ranks other than 0 die: what they sent before may still arrive."""
        for rank in ranks:
            self.ranks[rank].end = Stop(ShutdownError(f"dead: {why}"))
        self._happen(-1, ("lost", tuple(ranks), (why,) * len(ranks)))

    def advance(self, seconds: float) -> None:
        """Let time pass on every core."""
        self.now += seconds
        for core in range(-1, self.settings.size):
            if core < 0 or self.ranks[core].end is None:
                self._happen(core, ("time", core, self.now))

    def under_way(self) -> list[Link]:
        """Return the links on which something waits."""
        links = [link for link, messages in self._links.items() if messages]
        return links + [link for link, buckets in self._done.items() if buckets]

    def deliver(self, link: Link) -> None:
        """Deliver what waits on a link for longest. A rank that has ended hears nothing."""
        way, rank = link
        if way == "done":
            self._finish(rank, self._done[link].popleft())
            return
        data = self._links[link].popleft()
        if way == "up":
            self._happen(-1, ("coordinator", rank, data, self.now))
        elif self.ranks[rank].end is None:
            self._happen(rank, ("member", rank, data, self.now))

    def blocked(self, rank: int) -> list[Key]:
        """Return what can't begin on a rank before it submits more."""
        alive = self.ranks[rank].end is None
        return self._cores.members[rank].blocked() if alive else []

    def wait(self, rank: int, key: Key) -> None:
        """Let a rank's caller wait for something that is blocked."""
        self._happen(rank, ("awaited", rank, key, self.now))

    def negotiates(self, rank: int) -> bool:
        """Does a rank follow no plan?"""
        return self._cores.members[rank].negotiates()

    def settle(self) -> None:
        """Deliver everything, link by link."""
        while links := self.under_way():
            self.deliver(links[0])

    def replay(self) -> list[tuple[Event, str]]:
        """Give the recorded events to new cores; return the log that they make."""
        cores = Cores(self.settings)
        return [(event, repr(cores.take(event))) for event, _ in self.log]

    def _happen(self, core: int, event: Event) -> None:
        actions = self._cores.take(event)
        self.log.append((event, repr(actions)))
        for action in actions:
            if isinstance(action, Execute):
                self._begin(core, action.bucket)
            elif not isinstance(action, SendControl):
                self.ranks[core].carry_out(action)
            elif core < 0:
                self._links["down", action.rank].append(wire.encode(1, action.message))
            else:
                self._links["up", core].append(wire.encode(1, action.message))

    def _begin(self, rank: int, bucket: Bucket) -> None:
        """Let a bucket end at once, or, where a plan is followed, once all members have begun."""
        self.ranks[rank].carry_out(Execute(bucket))
        if self._cores.members[rank].negotiates():
            self.ranks[rank].finish(bucket)
            return
        members = self.settings.sets[bucket.set_id].ranks
        started = [b for r in members for b in self.ranks[r].begun if b.number == bucket.number]
        if len(started) == len(members):
            for member in members:
                [own] = [b for b in self.ranks[member].begun if b.number == bucket.number]
                self._done["done", member].append(own)

    def _finish(self, rank: int, bucket: Bucket) -> None:
        state = self.ranks[rank]
        if state.end is None or state.end.error is None:  # what was begun before is finished
            taken_back = [b.number for b in state.revoked]
            assert bucket.number not in taken_back, f"{bucket} was begun by all"
            state.finish(bucket)
            self._happen(rank, ("ended", rank, bucket))


def world_of(size: int, *subsets: Sequence[int]) -> dict[int, ProcessSetSpec]:
    """Return the process sets of a job: all ranks, then the subsets."""
    every = [tuple(range(size)), *(tuple(sorted(ranks)) for ranks in subsets)]
    return {id: ProcessSetSpec(id, ranks) for id, ranks in enumerate(every, start=WORLD)}

"""The plan that a job follows without negotiation, as one member does.

A member begins the buckets of its sets in the plan's order, each once it has all of it. No
transport ends a bucket, or changes an array, before all members have begun it; so those that not
all have begun can be taken back, and those that anybody has finished were begun by all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commrt.core.ids import Key
from commrt.core.wire import Lock, Place, Unlock
from commrt.types import Agreed, Bucket, Kind, Request, Signature

IN_FLIGHT = 2
"""Buckets on the wire at once: the second fills the gaps that the first one's ends leave."""

_Slot = tuple[int, str | Kind]
"""Process set, and a name or the kind of what has none."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request, when it was submitted, and its place among all that this rank has said."""

    request: Request
    since: float
    turn: int


class LockedPlan:
    """Pure. Turns of the plan are counted without end: turn t is place t modulo its length.

    `deviated`: when it was given up here.
    """

    def __init__(self, message: Lock) -> None:
        self.epoch = message.epoch
        self.deviated: float | None = None
        self._first = message.first
        self._course = Course(message.plan)
        self._filling: dict[int, dict[int, Waiting]] = {}
        self._head = self._course.ours(0)
        self._flight = Flight()
        self._frozen = False

    def place(self, waiting: Waiting) -> str | None:
        """Put a request into the bucket that it belongs to, or say why there is none."""
        request = waiting.request
        slot = request.set_id, request.name if request.named else request.signature.kind
        found = self._course.next(slot)
        if found is None:
            return f"{request.name!r} is not in the plan"
        turn, position = found
        planned = self._course.place(turn).operations[position]
        if not self._course.fits(turn, position, request.signature):
            return f"{request.name!r} is not what the plan has"
        if request.rows != planned.own_rows or request.absent != planned.own_absent:
            return f"{request.name!r} has other rows or gradients than the plan"
        if self._course.round(turn) > self._course.round(self._head) and not self._full():
            return f"{request.name!r} comes before its turn"
        self._course.take(slot)
        self._filling.setdefault(turn, {})[position] = waiting
        return None

    def begin(self) -> list[Bucket]:
        """Return the buckets that begin now."""
        buckets = []
        while not self._frozen and self._flight.room() and self._full():
            place = self._course.place(self._head)
            filled = self._filling.pop(self._head)
            waiting = [filled[i] for i in range(len(place.operations))]
            agreed = tuple(
                Agreed(each.request.name, each.request.signature, planned.rows, planned.absent)
                for each, planned in zip(waiting, place.operations, strict=True)
            )
            bucket = Bucket(self._first + self._head, place.set_id, agreed)
            self._flight.begin(bucket, waiting)
            self._head = self._course.ours(self._head + 1)
            buckets.append(bucket)
        return buckets

    def end(self, number: int) -> None:
        """Note that a bucket is done here."""
        self._flight.end(number)

    def is_blocked(self) -> bool:
        """Does anything wait while the first bucket to come lacks something of us?"""
        return self.deviated is None and bool(self._filling) and not self._full()

    def blocked(self) -> list[Key]:
        """Return what does."""
        if not self.is_blocked():
            return []
        filled = (each.request for f in self._filling.values() for each in f.values())
        return [(request.set_id, request.name) for request in filled]

    def oldest(self) -> float | None:
        """When the first of what is not done was submitted."""
        times = [each.since for f in self._filling.values() for each in f.values()]
        return min([*times, *self._flight.times()], default=None)

    def idle(self) -> bool:
        """Is nothing to be done?"""
        return not (self._filling or self._flight.busy())

    def freeze(self) -> dict[int, int]:
        """Begin nothing more; return how many buckets of each set have begun."""
        self._frozen = True
        return self._flight.counts()

    def unlock(self, message: Unlock) -> tuple[list[Bucket], list[Waiting]]:
        """Return the buckets to take back, in order, and what of ours is in them."""
        back = self._flight.beyond(message.kept)
        counts = self._flight.counts()
        turns = [
            self._course.turn(set_id, count)
            for set_id, begun in message.begun.items()
            for count in range(counts.get(set_id, 0), begun)
        ]
        missed = [self._stand_in(turn) for turn in turns if self._course.place(turn).operations]
        buckets = sorted([*(b.bucket for b in back), *missed], key=lambda bucket: bucket.number)
        return buckets, [waiting for begun in back for waiting in begun.waiting]

    def _full(self) -> bool:
        filling = self._filling.get(self._head)
        place = self._course.place(self._head)
        return filling is not None and len(filling) == len(place.operations)

    def _stand_in(self, turn: int) -> Bucket:
        """Return a bucket that others have begun, of things that change nothing."""
        place = self._course.place(turn)
        agreed = tuple(
            Agreed(p.name, p.signature, p.rows, p.absent, joined=True) for p in place.operations
        )
        return Bucket(self._first + turn, place.set_id, agreed)


@dataclass(frozen=True, slots=True)
class Begun:
    """A bucket under way, and how many of its set began before it."""

    bucket: Bucket
    before: int
    waiting: Sequence[Waiting]


class Flight:
    """The buckets of a plan that are under way, and how many of each set ever were. Pure."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._flying: dict[int, Begun] = {}

    def begin(self, bucket: Bucket, waiting: Sequence[Waiting]) -> None:
        """Note that a bucket begins."""
        before = self._counts.get(bucket.set_id, 0)
        self._flying[bucket.number] = Begun(bucket, before, waiting)
        self._counts[bucket.set_id] = before + 1

    def end(self, number: int) -> None:
        """Note that a bucket is done."""
        self._flying.pop(number, None)

    def room(self) -> bool:
        """May one more begin?"""
        return len(self._flying) < IN_FLIGHT

    def busy(self) -> bool:
        """Is anything under way?"""
        return bool(self._flying)

    def counts(self) -> dict[int, int]:
        """Return how many of each set have begun."""
        return dict(self._counts)

    def times(self) -> list[float]:
        """Return when what is under way was submitted."""
        return [each.since for begun in self._flying.values() for each in begun.waiting]

    def beyond(self, kept: Mapping[int, int]) -> list[Begun]:
        """Return what is under way of each set after its first `kept` buckets."""
        return [b for b in self._flying.values() if b.before >= kept.get(b.bucket.set_id, 0)]


class Course:
    """A plan repeated without end. Pure."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._slots: dict[_Slot, list[tuple[int, int]]] = {}
        self._sets: dict[int, list[int]] = {}
        self._taken: dict[_Slot, int] = {}
        self._known: dict[tuple[int, int], Signature] = {}
        ordinals: dict[tuple[int, int], int] = {}
        for number, place in enumerate(places):
            self._sets.setdefault(place.set_id, []).append(number)
            for position, planned in enumerate(place.operations):
                slot = (place.set_id, planned.name or planned.signature.kind)
                self._slots.setdefault(slot, []).append((number, position))
                ordinals[number, position] = planned.ordinal
        for where in self._slots.values():
            where.sort(key=ordinals.__getitem__)  # stable; fusion takes some past others

    def place(self, turn: int) -> Place:
        """Return the bucket of a turn."""
        return self._places[turn % len(self._places)]

    def round(self, turn: int) -> int:
        """Return how often the plan has come round before a turn."""
        return turn // len(self._places)

    def ours(self, turn: int) -> int:
        """Return the first turn from `turn` on that has something of ours."""
        for later in range(turn, turn + len(self._places)):
            if self.place(later).operations:
                return later
        return turn

    def next(self, slot: _Slot) -> tuple[int, int] | None:
        """Return the turn and position that come next for a slot; None if it is not planned."""
        where = self._slots.get(slot)
        if where is None:
            return None
        rounds, i = divmod(self._taken.get(slot, 0), len(where))
        number, position = where[i]
        return rounds * len(self._places) + number, position

    def fits(self, turn: int, position: int, signature: Signature) -> bool:
        """Is that what the plan has there?"""
        where = turn % len(self._places), position
        if self._known.get(where) is signature:  # a comparison takes long
            return True
        fits = signature == self._places[where[0]].operations[position].signature
        if fits:
            self._known[where] = signature
        return fits

    def take(self, slot: _Slot) -> None:
        """Note that the next of a slot is taken."""
        self._taken[slot] = self._taken.get(slot, 0) + 1

    def turn(self, set_id: int, count: int) -> int:
        """Return the turn of a set's bucket, counted from 0."""
        numbers = self._sets[set_id]
        rounds, i = divmod(count, len(numbers))
        return rounds * len(self._places) + numbers[i]

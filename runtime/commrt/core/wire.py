"""Control messages: msgspec structs in a msgpack envelope of (generation, message)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from commrt.types import Request, Signature

COORDINATOR = 0
"""World rank whose engine coordinates."""


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """Member to coordinator, once: I am connected."""


class Welcome(msgspec.Struct, tag="welcome", array_like=True, frozen=True):
    """Coordinator to all, once: everyone is connected."""


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Member to coordinator: these operations are submitted here.

    `new` are announced in full; bit i of `bits` (little endian) stands for id `base + i`.
    `rows` and `absent` complete the requests behind ids. `again`: it answers a `Forgotten`.
    `waited`: seconds since the first of them was submitted.
    """

    new: tuple[Request, ...] = ()
    base: int = 0
    bits: bytes = b""
    rows: dict[int, tuple[int, ...]] = {}
    absent: dict[int, tuple[int, ...]] = {}
    again: bool = False
    waited: float = 0.0


class Report(msgspec.Struct, tag="report", array_like=True, frozen=True):
    """Member to coordinator: `name` of a set fails here with `text`; fail it everywhere."""

    set_id: int
    name: str
    text: str


class Leaving(msgspec.Struct, tag="leaving", array_like=True, frozen=True):
    """Member to coordinator: nothing more will be submitted here. `final`: do not wait for me."""

    why: str
    final: bool = False


class Item(msgspec.Struct, array_like=True, frozen=True):
    """One operation of a scheduled bucket: by name when the id is new or there is none (-1).

    `signature`: for a rank that has joined and so has not submitted it.
    """

    id: int
    name: str = ""
    rows: tuple[tuple[int, ...], ...] = ()
    absent: tuple[int, ...] = ()
    signature: Signature | None = None


class Scheduled(msgspec.Struct, array_like=True, frozen=True):
    """One bucket in the job's order."""

    number: int
    set_id: int
    items: tuple[Item, ...]


class Schedule(msgspec.Struct, tag="schedule", array_like=True, frozen=True):
    """Coordinator to member: run these buckets, in this order."""

    buckets: tuple[Scheduled, ...]


class Planned(msgspec.Struct, array_like=True, frozen=True):
    """One operation of a plan; `name` is "" for an unnamed one, which `ordinal` puts in order.

    `rows` and `absent` are what all agreed on, `own_rows` and `own_absent` this member's own.
    """

    name: str
    signature: Signature
    rows: tuple[tuple[int, ...], ...] = ()
    absent: tuple[int, ...] = ()
    own_rows: tuple[int, ...] = ()
    own_absent: tuple[int, ...] = ()
    ordinal: int = -1


class Place(msgspec.Struct, array_like=True, frozen=True):
    """One bucket of a plan; without operations if it is another set's."""

    set_id: int
    operations: tuple[Planned, ...] = ()


class Lock(msgspec.Struct, tag="lock", array_like=True, frozen=True):
    """Coordinator to all: from here on follow this plan, again and again, without asking.

    Its buckets are numbered from `first` on. `heard`: how many reports and goodbyes of this member
    were heard before. One that has said more stands where the others do not.
    """

    epoch: int
    first: int
    heard: int
    plan: tuple[Place, ...]


class Deviate(msgspec.Struct, tag="deviate", array_like=True, frozen=True):
    """Member to coordinator: the plan does not hold here."""

    epoch: int
    why: str


class Freeze(msgspec.Struct, tag="freeze", array_like=True, frozen=True):
    """Coordinator to all: begin no bucket more, and say how far you are."""

    epoch: int


class Frozen(msgspec.Struct, tag="frozen", array_like=True, frozen=True):
    """Member to coordinator: how many buckets of each set have begun here."""

    epoch: int
    begun: dict[int, int]


class Unlock(msgspec.Struct, tag="unlock", array_like=True, frozen=True):
    """Coordinator to all: finish the first `kept` buckets of each set, take back up to `begun`.

    What is not finished is announced anew. `why`: what did not follow the plan, for people.
    """

    epoch: int
    why: str
    kept: dict[int, int]
    begun: dict[int, int]


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """Coordinator to member: this operation fails, with an error of class `error`."""

    set_id: int
    name: str
    error: str
    text: str


class Forgotten(msgspec.Struct, tag="forgotten", array_like=True, frozen=True):
    """Coordinator to member: these ids mean nothing any more; announce in full."""

    ids: tuple[int, ...]


class Recount(msgspec.Struct, tag="recount", array_like=True, frozen=True):
    """Coordinator to all: a join has failed; count unnamed operations from 0 again."""


class Stalled(msgspec.Struct, tag="stalled", array_like=True, frozen=True):
    """Coordinator to waiting members: who is late, for their logs."""

    text: str


class Left(msgspec.Struct, tag="left", array_like=True, frozen=True):
    """Coordinator to all: these ranks have said goodbye; their end is no loss."""

    ranks: tuple[int, ...]


class Farewell(msgspec.Struct, tag="farewell", array_like=True, frozen=True):
    """Coordinator to a leaving member: nothing of yours is open; go."""


class Lost(msgspec.Struct, tag="lost", array_like=True, frozen=True):
    """Coordinator to all: these ranks are lost, and why."""

    ranks: tuple[int, ...]
    why: tuple[str, ...]


class Stop(msgspec.Struct, tag="stop", array_like=True, frozen=True):
    """Any rank to all: the runtime ends, with an error of class `error`."""

    error: str
    text: str


Message = (
    Hello
    | Welcome
    | Ready
    | Report
    | Leaving
    | Schedule
    | Lock
    | Deviate
    | Freeze
    | Frozen
    | Unlock
    | Failed
    | Forgotten
    | Recount
    | Stalled
    | Left
    | Farewell
    | Lost
    | Stop
)

UPWARD = (Hello, Ready, Report, Leaving, Deviate, Frozen)
"""What members send to the coordinator; all else comes from there."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[int, Message])


def encode(generation: int, message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode((generation, message))


def decode(data: bytes) -> tuple[int, Message]:
    """Return (generation, message). Raises ValueError on anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ValueError(f"not a control message: {exc}") from None


SPREAD = 1 << 15
"""Largest spread of ids in one bit set: an id far from the others is dearer than its name."""


def ids_to_bits(ids: Iterable[int]) -> tuple[int, bytes]:
    """Return (base, bit set) of ids; the bit set is as long as their spread."""
    wanted = list(ids)
    if not wanted:
        return 0, b""
    base = min(wanted)
    number = 0
    for i in wanted:
        number |= 1 << (i - base)
    return base, number.to_bytes((number.bit_length() + 7) // 8, "little")


def bits_to_ids(base: int, bits: bytes) -> list[int]:
    """Return the ids of a bit set, ascending."""
    number = int.from_bytes(bits, "little")
    ids = []
    while number:
        low = number & -number
        ids.append(base + low.bit_length() - 1)
        number ^= low
    return ids

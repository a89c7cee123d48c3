"""The words that every part of the runtime uses. Standard library only: `commrun` imports it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

WORLD = 0
"""Id of the process set of all ranks."""


class ReduceOp(enum.Enum):
    """How values of different ranks become one."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


class Kind(enum.Enum):
    """What a collective does. The value is its name in messages and automatic names."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"
    ADD_SET = "add_process_set"
    REMOVE_SET = "remove_process_set"


@dataclass(frozen=True, slots=True)
class Topology:
    """Where this process stands. `hosts[r]` is the host name of rank r."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessSetSpec:
    """A subset of the world: `ranks` are world ranks in ascending order."""

    id: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """One tensor's span in a flat array: elements [start, stop)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as all ranks must agree on it.

    `order` lists the axes from the slowest to the fastest in memory; None is C order.
    """

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """What all ranks must agree on for one operation.

    First dimensions of an allgather or alltoall may differ, so their specs hold 0 there.
    `fusable`: may share a bucket with others; what lies in one piece already gains nothing by
    that. `subject`: the ranks of a process set to add, or the id of one to remove. `layout`: where
    the tensors lie in the one flat array that is submitted; () if each is an array of its own.
    `partial`: an allgather that goes on without members that have joined; they give no rows.
    """

    kind: Kind
    tensors: tuple[TensorSpec, ...]
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    codec: str = "none"
    root: int = -1
    fusable: bool = True
    subject: tuple[int, ...] = ()
    layout: tuple[Segment, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's wish: run `signature` under `name` with the members of process set `set_id`.

    `rows` are the first dimensions of an allgather's tensors, or how many rows of an alltoall go to
    each member. `absent` are the positions of tensors that
    have no gradient on this rank: they count as zeros. `site` is the caller's file and line.
    """

    set_id: int
    name: str
    named: bool
    signature: Signature
    rows: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    site: str = ""


@dataclass(frozen=True, slots=True)
class Agreed:
    """One operation that every member has submitted.

    `rows[i][r]` is the first dimension of an allgather's tensor i on set-local rank r; `rows[r]`
    are the rows that an alltoall's set-local rank r sends to each; `rows[0][0]` is the rank that
    joined last, or the id of a new process set. `absent` are the positions of tensors that no rank
    has. `joined`: this rank has joined, so neutral elements stand in for what it did not submit.
    """

    name: str
    signature: Signature
    rows: tuple[tuple[int, ...], ...] = ()
    absent: tuple[int, ...] = ()
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """Operations that move together, under one number that orders all buckets of the job."""

    number: int
    set_id: int
    operations: tuple[Agreed, ...] = field(default=())

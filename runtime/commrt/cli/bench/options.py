"""What each benchmark can be told. Standard library only: the command line imports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from commrt.config import parse_bytes

Peer = Literal["mpi", "gloo", "ddp"]

TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
TRAINABLE = ("resnet18", "resnet152")
MODELS = (*TRAINABLE, "bert-large")


class UsageError(Exception):
    """What was asked for cannot be done here. Raised on every rank."""


@dataclass(frozen=True, slots=True)
class Latency:
    """`commrt bench latency`."""

    rounds: int
    nbytes: int
    iterations: int
    peer: Peer | None


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """`commrt bench bandwidth`. `sizes` are bytes; 0 iterations: chosen by size.

    `memory`: `numpy`, or `commrt` for arrays of `commrt.zeros`.
    """

    rounds: int
    sizes: tuple[int, ...]
    dtype: str
    iterations: int
    peer: Peer | None
    memory: str


@dataclass(frozen=True, slots=True)
class Hosts:
    """On how many test hosts a benchmark runs; their links have a rate in tc's words, or none."""

    hosts: int
    rate: str | None
    ranks_per_host: int


@dataclass(frozen=True, slots=True)
class Idle:
    """`commrt bench idle`."""

    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    """`commrt bench soak`."""

    rounds: int
    operations: int


@dataclass(frozen=True, slots=True)
class Hooks:
    """`commrt bench hooks`."""

    rounds: int
    parameters: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Model:
    """`commrt bench model`."""

    rounds: int
    name: str
    hooks: bool
    iterations: int
    peer: Peer | None


@dataclass(frozen=True, slots=True)
class Step:
    """`commrt bench step`. `image`: pixels along a side.

    `settle`: steps before the first round. `buckets`: fixed sizes to compare with, in bytes.
    `explain`: say where the buckets of the last step spent their time.
    """

    rounds: int
    name: str
    batch: int
    image: int
    iterations: int
    settle: int
    buckets: tuple[int, ...]
    explain: bool
    peer: Peer | None


def read_sizes(text: str) -> tuple[int, ...]:
    """Read `4K:64M` (doubling), `4K:64M:4` or `4K,25M` as bytes. Raises ValueError."""
    if ":" not in text:
        return tuple(_positive(parse_bytes(word)) for word in text.split(","))
    low, high, factor = (*text.split(":"), "2")[:3]
    size, last, times = _positive(parse_bytes(low)), parse_bytes(high), int(factor)
    if times < 2 or last < size:
        raise ValueError(f"{text!r} is not LOW:HIGH[:FACTOR] with a factor of 2 or more")
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= times
    return tuple(sizes)


def _positive(nbytes: int) -> int:
    if nbytes <= 0:
        raise ValueError("a size must be positive")
    return nbytes

"""Which ready operations move together."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from commrt.types import Agreed, Kind, Signature

_ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

Group = tuple[int, list[Agreed]]
"""Process set id and the operations of one bucket."""


def nbytes(signature: Signature) -> int:
    """Bytes of one rank's tensors. An allgather counts as 0: its rows are not part of it."""
    return sum(_ITEM_BYTES[t.dtype] * prod(t.shape) for t in signature.tensors)


def plan(ready: Iterable[tuple[int, Agreed]], limit: int) -> list[Group]:
    """Group ready operations into buckets of at most `limit` bytes, in order of readiness.

    Only fusable allreduces of one set, dtypes, op, scales and codec share a bucket; it takes later
    ones past others in between. An operation larger than the limit goes alone. Pure.
    """
    groups: list[Group] = []
    open_groups: dict[tuple[object, ...], tuple[list[Agreed], int]] = {}
    for set_id, operation in ready:
        signature = operation.signature
        if not signature.fusable or signature.kind is not Kind.ALLREDUCE or not signature.tensors:
            groups.append((set_id, [operation]))
            continue
        key = (
            set_id,
            tuple(sorted({t.dtype for t in signature.tensors})),
            signature.op,
            signature.prescale,
            signature.postscale,
            signature.codec,
        )
        size = nbytes(signature)
        members, used = open_groups.get(key, (None, 0))
        if members is None or used + size > limit:
            members, used = [], 0
            groups.append((set_id, members))
        members.append(operation)
        open_groups[key] = (members, used + size)
    return groups

"""Do the ranks mean the same operation? If not, one text that says who gave what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commrt.types import Agreed, Kind, Request, Signature, TensorSpec


def agree(requests: Mapping[int, Request], members: Sequence[int]) -> Agreed | str:
    """Merge the requests of `members`, in the set's order, or say where they differ.

    Members that have joined have none.
    """
    ranks = [r for r in members if r in requests]
    first = requests[ranks[0]]
    if any(requests[r].signature != first.signature for r in ranks):
        return _difference(requests, ranks)
    rows: tuple[tuple[int, ...], ...] = ()
    if first.signature.kind is Kind.ALLGATHER:
        if any(len(requests[r].rows) != len(first.signature.tensors) for r in ranks):
            return f"allgather {first.name!r}: a rank did not give one first dimension per tensor"
        none = (0,) * len(first.signature.tensors)
        of_members = (requests[r].rows if r in requests else none for r in members)
        rows = tuple(zip(*of_members, strict=True))
    if first.signature.kind is Kind.ALLTOALL:
        if any(len(requests[r].rows) != len(ranks) for r in ranks):
            return f"alltoall {first.name!r}: a rank did not give one number of rows per member"
        rows = tuple(requests[r].rows for r in ranks)
    absent: tuple[int, ...] = ()
    if all(requests[r].absent for r in ranks):
        everywhere = set(first.absent).intersection(*(requests[r].absent for r in ranks))
        absent = tuple(sorted(everywhere))
    return Agreed(first.name, first.signature, rows, absent)


def _difference(requests: Mapping[int, Request], ranks: Sequence[int]) -> str:
    first = requests[ranks[0]]
    for what, of in _FACETS:
        values = {r: of(requests[r].signature) for r in ranks}
        if any(value != values[ranks[0]] for value in values.values()):
            said = "; ".join(
                f"{_ranks(who)}: {value}{_site(requests, who)}" for value, who in _by_value(values)
            )
            return (
                f"{first.signature.kind.value} {first.name!r}: {what} differs between ranks. {said}"
            )
    return f"{first.signature.kind.value} {first.name!r}: a scale factor is not a number"


def _by_value(values: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    grouped: dict[str, list[int]] = {}
    for rank, value in values.items():
        grouped.setdefault(value, []).append(rank)
    return list(grouped.items())


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}{' …' if len(ranks) > 8 else ''}"


def _site(requests: Mapping[int, Request], ranks: Sequence[int]) -> str:
    site = requests[ranks[0]].site
    return f" (called from {site})" if site else ""


def _each(tensors: Sequence[TensorSpec], text: str) -> str:
    return text if len(tensors) == 1 else f"[{text}]"


def _shapes(signature: Signature) -> str:
    tensors = signature.tensors
    return _each(tensors, ", ".join(str(t.shape) for t in tensors))


def _dtypes(signature: Signature) -> str:
    return ", ".join(sorted({t.dtype for t in signature.tensors}))


def _orders(signature: Signature) -> str:
    tensors = signature.tensors
    text = ", ".join(
        "C" if t.order is None else f"axes {t.order} slowest to fastest" for t in tensors
    )
    return _each(tensors, text)


_FACETS = (
    ("the kind of operation", lambda s: s.kind.value),
    ("the number of tensors", lambda s: str(len(s.tensors))),
    ("the dtype", _dtypes),
    ("the shape", _shapes),
    ("the memory order (strides)", _orders),
    ("the op", lambda s: s.op.value),
    ("the prescale factor", lambda s: repr(s.prescale)),
    ("the postscale factor", lambda s: repr(s.postscale)),
    ("the compression", lambda s: s.codec),
    ("the root rank", lambda s: str(s.root)),
    ("whether it may be fused", lambda s: str(s.fusable)),
    ("the process set", lambda s: str(list(s.subject))),
    ("whether joined ranks are needed", lambda s: str(not s.partial)),
    ("where tensors lie", lambda s: str([(a.start, a.stop) for a in s.layout])),
)

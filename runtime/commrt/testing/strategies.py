"""Hypothesis strategies for what ranks may submit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from commrt.testing.crowd import Operation, Scenario
from commrt.testing.network import world_of
from commrt.types import Kind, ProcessSetSpec, ReduceOp, Request, Segment, Signature, TensorSpec

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

PLAIN = tuple(k for k in Kind if k not in (Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET))
"""Kinds of operations that change nothing but arrays."""

FACETS = (
    "kind",
    "number",
    "dtype",
    "shape",
    "order",
    "op",
    "prescale",
    "postscale",
    "codec",
    "root",
    "fusable",
    "subject",
    "layout",
    "partial",
)
"""Where signatures may differ; see `altered`."""


@st.composite
def tensor_specs(draw: st.DrawFn, dtype: str | None = None) -> TensorSpec:
    """Draw the spec of one tensor, often small, sometimes empty."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    axes = tuple(range(len(shape)))
    order = draw(st.none() | st.permutations(axes).map(tuple)) if len(shape) > 1 else None
    return TensorSpec(dtype or draw(st.sampled_from(DTYPES)), shape, order)


@st.composite
def signatures(draw: st.DrawFn, ranks: tuple[int, ...] = (0,)) -> Signature:
    """Draw what an operation of the process set of `ranks` is."""
    kind = draw(st.sampled_from(PLAIN))
    dtype = draw(st.sampled_from(DTYPES))
    match kind:
        case Kind.ALLREDUCE:
            specs = tuple(draw(st.lists(tensor_specs(dtype), max_size=3)))
            return Signature(
                kind,
                specs,
                draw(st.sampled_from(ReduceOp)),
                draw(st.sampled_from((1.0, 0.5))),
                draw(st.sampled_from((1.0, 2.0))),
                draw(st.sampled_from(("none", "fp16"))),
                fusable=draw(st.integers(0, 3)) > 0,
            )
        case Kind.ALLGATHER | Kind.ALLTOALL:
            return Signature(kind, (TensorSpec(dtype, (0, draw(st.integers(0, 3)))),))
        case Kind.REDUCESCATTER:
            return Signature(kind, (draw(tensor_specs(dtype)),), draw(st.sampled_from(ReduceOp)))
        case Kind.BROADCAST:
            return Signature(kind, (draw(tensor_specs(dtype)),), root=draw(st.sampled_from(ranks)))
        case _:
            return Signature(kind, ())


def altered(signature: Signature, facet: str) -> Signature:
    """Return another signature, different in one facet if it has it."""
    first = signature.tensors[0] if signature.tensors else TensorSpec("float32", (2, 3))
    rest = signature.tensors[1:]
    match facet:
        case "kind":
            barrier = signature.kind is Kind.BARRIER
            return replace(signature, kind=Kind.ALLREDUCE if barrier else Kind.BARRIER)
        case "number":
            return replace(signature, tensors=(*signature.tensors, first))
        case "dtype":
            dtype = "int8" if first.dtype != "int8" else "int16"
            tensors = [replace(t, dtype=dtype) for t in signature.tensors or (first,)]
            return replace(signature, tensors=tuple(tensors))
        case "shape":
            longer = replace(first, shape=(*first.shape, 7))
            return replace(signature, tensors=(longer, *rest))
        case "order":
            order = (1, 0) if first.order != (1, 0) else None
            return replace(signature, tensors=(replace(first, order=order), *rest))
        case "op":
            average = signature.op is ReduceOp.AVERAGE
            return replace(signature, op=ReduceOp.SUM if average else ReduceOp.AVERAGE)
        case "prescale":
            return replace(signature, prescale=signature.prescale * 3)
        case "postscale":
            return replace(signature, postscale=signature.postscale * 3)
        case "codec":
            return replace(signature, codec="bf16")
        case "partial":
            return replace(signature, partial=not signature.partial)
        case "layout":
            return replace(signature, layout=(*signature.layout, Segment(0, 1)))
        case "subject":
            return replace(signature, subject=(*signature.subject, 1))
        case "fusable":
            return replace(signature, fusable=not signature.fusable)
        case _:
            return replace(signature, root=signature.root + 1)


def process_sets(size: int) -> st.SearchStrategy[dict[int, ProcessSetSpec]]:
    """Draw the world of `size` ranks and some subsets, which may overlap."""
    subset = st.sets(st.integers(0, size - 1), min_size=1)
    return st.lists(subset, max_size=3).map(lambda s: world_of(size, *map(tuple, s)))


@st.composite
def operations(
    draw: st.DrawFn,
    members: ProcessSetSpec,
    name: str,
    named: bool,
    signature: Signature,
    faulty: bool = True,
) -> Operation:
    """Draw an operation of a name; some are mismatched or reported where `faulty`."""
    tensors = range(len(signature.tensors))
    kind = signature.kind
    counted = members.ranks if kind is Kind.ALLTOALL else tensors
    rows = st.tuples(*(st.integers(0, 4) for _ in counted))
    absent = (
        st.just(()) | st.sets(st.sampled_from(tensors)).map(lambda s: tuple(sorted(s)))
        if tensors and kind is Kind.ALLREDUCE
        else st.just(())
    )
    gather = kind in (Kind.ALLGATHER, Kind.ALLTOALL)
    requests = {
        r: Request(
            members.id,
            name,
            named,
            signature,
            draw(rows) if gather else (),
            draw(absent),
            f"script.py:{r}",
        )
        for r in members.ranks
    }
    fate = draw(st.integers(0, 5)) if faulty else 5
    some = draw(st.sampled_from(members.ranks))
    if fate == 0 and len(members.ranks) > 1:
        facet = draw(st.sampled_from(FACETS if named else FACETS[1:]))
        requests[some] = replace(requests[some], signature=altered(signature, facet))
        return Operation(requests, agrees=False)
    if fate == 1 and named:
        return Operation(requests, reporter=some)
    return Operation(requests)


@st.composite
def scenarios(draw: st.DrawFn, most: int = 6, length: int = 12, faulty: bool = True) -> Scenario:
    """Draw a job of 1 to `most` ranks with at most `length` operations, names coming again."""
    size = draw(st.integers(1, most))
    sets = draw(process_sets(size))
    known: dict[tuple[int, str], Signature] = {}
    ordinals: dict[tuple[int, Kind], int] = {}
    made: list[Operation] = []
    for _ in range(draw(st.integers(0, length))):
        members = sets[draw(st.integers(0, len(sets) - 1))]
        named = draw(st.booleans()) or draw(st.booleans())
        name = draw(st.sampled_from("abcd")) if named else ""
        signature = known.get((members.id, name)) if draw(st.integers(0, 3)) else None
        if signature is None or not named:
            signature = draw(signatures(members.ranks))
        if named:
            known[members.id, name] = signature
        else:
            count = ordinals.setdefault((members.id, signature.kind), 0)
            ordinals[members.id, signature.kind] += 1
            name = f"{signature.kind.value}.unnamed.{count}"
        made.append(draw(operations(members, name, named, signature, faulty)))
    return Scenario(size, sets, tuple(made))


@st.composite
def rhythms(draw: st.DrawFn, most: int = 5) -> Scenario:
    """Draw a job whose steps are alike, but for what happens now and then in some of them."""
    size = draw(st.integers(1, most))
    sets = draw(process_sets(size))
    step = [draw(_beats(sets, name)) for name in "abcdefgh"[: draw(st.integers(1, 5))]]
    rounds = draw(st.integers(5, 16))
    odd = draw(st.sets(st.integers(0, rounds - 1), max_size=3))
    ordinals: dict[tuple[int, Kind], int] = {}
    made: list[Operation] = []
    for number in range(rounds):
        beats = list(step)
        if number in odd:
            beats = draw(_disturbed(step, sets))
        made += [_counted(beat, ordinals) for beat in beats]
    return Scenario(size, sets, tuple(made))


_STEADY = (Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER)


@st.composite
def _beats(draw: st.DrawFn, sets: dict[int, ProcessSetSpec], name: str) -> Operation:
    """Draw an operation that a plan may have; an unnamed one of its kind and set."""
    members = sets[draw(st.integers(0, len(sets) - 1))]
    kind = draw(st.sampled_from(_STEADY))
    rows = len(members.ranks) if kind is Kind.REDUCESCATTER else 0
    shape = (draw(st.integers(1, 3)) * 9,) if kind is Kind.ALLREDUCE else (rows, 2)
    signature = Signature(kind, (TensorSpec("float32", shape),) * draw(st.integers(1, 2)))
    if kind is Kind.REDUCESCATTER:
        signature = replace(signature, tensors=signature.tensors[:1])
    fits = draw(st.integers(0, 9)) > 0
    if not fits:
        signature = Signature(Kind.BROADCAST, signature.tensors[:1], root=members.ranks[0])
    named = draw(st.integers(0, 3)) > 0
    counts = len(signature.tensors) if signature.kind is Kind.ALLGATHER else 0
    requests = {
        r: Request(
            members.id, name if named else "", named, signature,
            tuple(draw(st.integers(1, 3)) for _ in range(counts)), (), f"script.py:{r}",
        )
        for r in members.ranks
    }  # fmt: skip
    return Operation(requests)


@st.composite
def _disturbed(
    draw: st.DrawFn, step: list[Operation], sets: dict[int, ProcessSetSpec]
) -> list[Operation]:
    """Draw a step that is not like the others."""
    beats = list(step)
    place = draw(st.integers(0, len(beats) - 1))
    found = beats[place]
    some = draw(st.sampled_from(sorted(found.requests)))
    named = found.requests[some].named
    match draw(st.integers(0, 5)):
        case 0:
            beats.insert(place, draw(_beats(sets, "x")))
        case 1:
            del beats[place]
        case 2:
            beats = draw(st.permutations(beats))
        case 3 if named:
            beats[place] = Operation(found.requests, reporter=some)
        case 4 if named and len(found.requests) > 1:
            requests = dict(found.requests)
            other = altered(requests[some].signature, draw(st.sampled_from(FACETS)))
            requests[some] = replace(requests[some], signature=other)
            beats[place] = Operation(requests, agrees=False)
        case _:
            absent = {r: replace(q, absent=(0,)) for r, q in found.requests.items()}
            if found.requests[some].signature.kind is Kind.ALLREDUCE:
                kept = draw(st.sets(st.sampled_from(sorted(absent))))
                beats[place] = Operation({r: absent[r] if r in kept else q
                                          for r, q in found.requests.items()})  # fmt: skip
    return beats


def _counted(beat: Operation, ordinals: dict[tuple[int, Kind], int]) -> Operation:
    """Give an unnamed operation the name that its count makes."""
    first = next(iter(beat.requests.values()))
    if first.named:
        return beat
    key = (first.set_id, first.signature.kind)
    ordinals[key] = ordinals.get(key, 0) + 1
    name = f"{first.signature.kind.value}.unnamed.{ordinals[key] - 1}"
    return Operation({r: replace(q, name=name) for r, q in beat.requests.items()}, beat.agrees)

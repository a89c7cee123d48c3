from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commrt.core import fusion
from commrt.kernels.numpy_ import dtype_of
from commrt.testing.strategies import DTYPES, signatures
from commrt.types import Agreed, Kind, Signature, TensorSpec

READY = st.lists(st.tuples(st.integers(0, 2), signatures()), max_size=25).map(
    lambda found: [(set_id, Agreed(f"op{i}", s)) for i, (set_id, s) in enumerate(found)]
)
Ready = list[tuple[int, Agreed]]


def reduction(n: int, dtype: str = "float32", codec: str = "none") -> Signature:
    return Signature(Kind.ALLREDUCE, (TensorSpec(dtype, (n,)),), codec=codec)


def names(groups: list[fusion.Group]) -> list[tuple[int, list[str]]]:
    return [(set_id, [operation.name for operation in found]) for set_id, found in groups]


@given(READY, st.integers(0, 2000))
def test_every_operation_is_in_one_bucket_of_its_set(ready: Ready, limit: int) -> None:
    planned = [(s, o) for s, operations in fusion.plan(ready, limit) for o in operations]
    assert sorted(planned, key=lambda p: p[1].name) == sorted(ready, key=lambda p: p[1].name)


@given(READY, st.integers(0, 2000))
def test_a_bucket_of_several_keeps_to_the_limit_and_to_one_way_of_reducing(
    ready: Ready, limit: int
) -> None:
    for _, operations in fusion.plan(ready, limit):
        if len(operations) == 1:
            continue
        found = [operation.signature for operation in operations]
        assert sum(fusion.nbytes(s) for s in found) <= limit
        assert {s.kind for s in found} == {Kind.ALLREDUCE}
        assert all(s.fusable for s in found)
        ways = {(s.tensors[0].dtype, s.op, s.prescale, s.postscale, s.codec) for s in found}
        assert len(ways) == 1


@given(READY, st.integers(0, 2000))
def test_readiness_orders_buckets_and_what_is_in_them(ready: Ready, limit: int) -> None:
    order = {operation.name: i for i, (_, operation) in enumerate(ready)}
    groups = [[order[o.name] for o in operations] for _, operations in fusion.plan(ready, limit)]
    assert all(places == sorted(places) for places in groups)
    firsts = [places[0] for places in groups]
    assert firsts == sorted(firsts)


@given(READY, st.integers(0, 2000))
def test_no_bucket_could_have_taken_the_one_that_was_opened_after_it(
    ready: Ready, limit: int
) -> None:
    open_at: dict[object, int] = {}
    for set_id, operations in fusion.plan(ready, limit):
        s = operations[0].signature
        if s.kind is not Kind.ALLREDUCE or not s.tensors or not s.fusable:
            continue
        key = (set_id, s.tensors[0].dtype, s.op, s.prescale, s.postscale, s.codec)
        used = open_at.get(key)
        assert used is None or used + fusion.nbytes(s) > limit
        open_at[key] = sum(fusion.nbytes(o.signature) for o in operations)


@given(st.lists(st.integers(0, 9), max_size=3), st.sampled_from(DTYPES))
def test_bytes_are_those_of_numpy(shape: list[int], dtype: str) -> None:
    expected = np.empty(shape, dtype_of(dtype)).nbytes
    spec = TensorSpec(dtype, tuple(shape))
    assert fusion.nbytes(Signature(Kind.ALLREDUCE, (spec, spec))) == 2 * expected


def test_a_bucket_takes_later_ones_past_others_in_between() -> None:
    ready = [
        (0, Agreed("a", reduction(2))),
        (0, Agreed("b", reduction(2, "float64"))),
        (1, Agreed("c", reduction(2))),
        (0, Agreed("d", Signature(Kind.BARRIER, ()))),
        (0, Agreed("e", reduction(2))),
        (0, Agreed("f", reduction(2, codec="fp16"))),
    ]
    assert names(fusion.plan(ready, 1 << 20)) == [
        (0, ["a", "e"]),
        (0, ["b"]),
        (1, ["c"]),
        (0, ["d"]),
        (0, ["f"]),
    ]


def test_what_is_larger_than_the_limit_goes_alone() -> None:
    ready = [(0, Agreed(name, reduction(n))) for name, n in (("a", 1), ("b", 100), ("c", 1))]
    assert names(fusion.plan(ready, 16)) == [(0, ["a"]), (0, ["b"]), (0, ["c"])]

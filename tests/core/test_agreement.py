from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core.agreement import agree
from commrt.testing.strategies import FACETS, altered, signatures
from commrt.types import Agreed, Kind, ReduceOp, Request, Signature, TensorSpec

FLOATS = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (2, 3)),))


def ask(signature: Signature, rank: int, size: int = 2) -> Request:
    rows = (rank,) * len(signature.tensors) if signature.kind is Kind.ALLGATHER else ()
    rows = (rank,) * size if signature.kind is Kind.ALLTOALL else rows
    return Request(0, "x", True, signature, rows, site=f"train.py:{rank}")


@given(signatures(), st.sets(st.integers(0, 20), min_size=1, max_size=5))
def test_equal_signatures_agree(signature: Signature, ranks: set[int]) -> None:
    agreed = agree({r: ask(signature, r, len(ranks)) for r in ranks}, sorted(ranks))
    assert isinstance(agreed, Agreed)
    assert (agreed.name, agreed.signature, agreed.absent) == ("x", signature, ())


@given(signatures(), st.sampled_from(FACETS), st.integers(2, 5), st.data())
@settings(max_examples=200)
def test_any_difference_is_named_with_rank_and_place(
    signature: Signature, facet: str, size: int, data: st.DataObject
) -> None:
    wrong = data.draw(st.integers(0, size - 1))
    other = altered(signature, facet)
    requests = {r: ask(other if r == wrong else signature, r) for r in range(size)}
    text = agree(requests, range(size))
    assert isinstance(text, str)
    assert f"rank {wrong}: " in text
    assert f"(called from train.py:{wrong})" in text
    assert " 'x': " in text


@pytest.mark.parametrize("facet", FACETS)
def test_a_difference_names_its_facet_and_no_other(facet: str) -> None:
    words = {
        "kind": "the kind of operation",
        "number": "the number of tensors",
        "dtype": "the dtype",
        "shape": "the shape",
        "order": "the memory order (strides)",
        "op": "the op",
        "prescale": "the prescale factor",
        "postscale": "the postscale factor",
        "codec": "the compression",
        "root": "the root rank",
        "fusable": "whether it may be fused",
        "subject": "the process set",
        "layout": "where tensors lie",
        "partial": "whether joined ranks are needed",
    }
    text = agree({0: ask(FLOATS, 0), 1: ask(altered(FLOATS, facet), 1)}, (0, 1))
    assert isinstance(text, str)
    assert f"{words[facet]} differs" in text
    assert not any(f"{word} differs" in text for f, word in words.items() if f != facet)


def test_ranks_are_told_in_groups_of_one_mind() -> None:
    requests = {r: ask(FLOATS, r) for r in range(20)}
    requests[3] = ask(replace(FLOATS, op=ReduceOp.AVERAGE), 3)
    assert agree(requests, range(20)) == (
        "allreduce 'x': the op differs between ranks. ranks 0, 1, 2, 4, 5, 6, 7, 8 …: sum "
        "(called from train.py:0); rank 3: average (called from train.py:3)"
    )


def test_shapes_of_a_group_are_told_together() -> None:
    two = replace(FLOATS, tensors=(TensorSpec("float32", (2,)), TensorSpec("float32", ())))
    other = replace(FLOATS, tensors=(TensorSpec("float32", (2,)), TensorSpec("float32", (1,))))
    text = agree({0: ask(two, 0), 1: ask(other, 1)}, (0, 1))
    assert isinstance(text, str)
    assert "rank 0: [(2,), ()]" in text
    assert "rank 1: [(2,), (1,)]" in text

"""Reductions beside sums and averages, and who gets which part: ranks as threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commrt.core.chunks import chunk_bounds
from commrt.errors import CommError
from commrt.kernels.numpy_ import dtype_of
from commrt.session import Session
from commrt.testing import LocalWorld, MemorySwitch
from commrt.testing.strategies import DTYPES
from commrt.types import Kind, ReduceOp, Segment, Signature, TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

SUM, AVERAGE, MIN, MAX, PRODUCT = (
    ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT,
)  # fmt: skip
FOLDS: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    SUM: np.add,
    MIN: np.minimum,
    MAX: np.maximum,
    PRODUCT: np.multiply,
}


def rank_of(session: Session) -> int:
    return session.runtime.topology.rank


def slow() -> MemorySwitch:
    return MemorySwitch(1, hold=3, eager=64)


def inputs(n: int, shape: tuple[int, ...], dtype: str) -> list[Array]:
    """Small whole numbers: every dtype holds their sums and products exactly."""
    low, high = (0, 2) if dtype == "bool" else (1, 4)
    return [
        np.random.default_rng(r).integers(low, high, shape).astype(dtype_of(dtype))
        for r in range(n)
    ]


def folded(op: ReduceOp, arrays: list[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = FOLDS[op](total, array)
    return total


def fits(op: ReduceOp, dtype: str) -> bool:
    return not (dtype.startswith("complex") and op in (MIN, MAX))


@pytest.mark.parametrize("op", FOLDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_op_of_every_dtype_is_numpys(op: ReduceOp, size: int) -> None:
    with LocalWorld(size, switch=slow(), small=64, segment=128) as world:
        for dtype in filter(lambda d: fits(op, d), DTYPES):
            for shape in ((), (0,), (5,), (70, 3)):
                given = inputs(size, shape, dtype)
                found = world.run(lambda s, g=given: s.allreduce_async(g[rank_of(s)], op=op).wait())
                for result in found:
                    assert result.dtype == given[0].dtype
                    np.testing.assert_array_equal(result, folded(op, given))


@pytest.mark.parametrize("op", [MIN, MAX])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_not_a_number_wins(op: ReduceOp, dtype: str) -> None:
    given = [np.array([1, r, np.nan if r == 1 else 2]).astype(dtype_of(dtype)) for r in range(3)]
    with LocalWorld(3) as world:
        found = world.run(lambda s: s.allreduce_async(given[rank_of(s)], op=op).wait())
    for result in found:
        assert np.isnan(result[2])
        assert result[1] == (0 if op is MIN else 2)


def test_scales_apply_to_every_op() -> None:
    given = [np.array([1.0, 2.0]) * (r + 1) for r in range(2)]
    with LocalWorld(2) as world:
        for op in FOLDS:
            found = world.run(
                lambda s, op=op: s.allreduce_async(given[rank_of(s)], None, op, -2.0, 3.0).wait()
            )
            expected = folded(op, [-2.0 * g for g in given]) * 3.0
            np.testing.assert_array_equal(found, [expected] * 2)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("op", [SUM, AVERAGE, MAX, PRODUCT])
def test_a_reducescatter_gives_each_rank_its_rows(size: int, op: ReduceOp) -> None:
    with LocalWorld(size, switch=slow(), small=64, segment=96) as world:
        for dtype in ("float32", "int16", "bfloat16", "uint8", "float64"):
            for shape in ((0, 3), (1,), (size + 1, 2), (40, 3), (7, 0)):
                given = inputs(size, shape, dtype)
                whole = world.run(lambda s, g=given: s.allreduce_async(g[rank_of(s)], op=op).wait())
                found = world.run(
                    lambda s, g=given: s.reducescatter_async(g[rank_of(s)], op=op).wait()
                )
                for (lo, hi), result, of_all in zip(
                    chunk_bounds(shape[0], size), found, whole, strict=True
                ):
                    np.testing.assert_array_equal(result, of_all[lo:hi])
                    assert (result.dtype, result.shape) == (of_all.dtype, of_all[lo:hi].shape)


def test_a_reducescatter_takes_any_layout_and_leaves_it_alone() -> None:
    base = [np.arange(36.0).reshape(6, 6) * (r + 1) for r in range(2)]
    for view in (lambda a: a.T, lambda a: a[:, ::2], np.asfortranarray, lambda a: a[::-1]):
        given = [view(a) for a in base]
        before = [g.copy() for g in given]
        with LocalWorld(2) as world:
            found = world.run(
                lambda s, g=given: s.reducescatter_async(
                    g[rank_of(s)], op=SUM, prescale_factor=2.0
                ).wait()
            )
        np.testing.assert_array_equal(np.concatenate(found), 2.0 * (before[0] + before[1]))
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
@pytest.mark.parametrize("op", [SUM, AVERAGE, MIN, PRODUCT])
def test_compression_serves_every_op_and_form(compression: str, op: ReduceOp) -> None:
    given = [np.full((5, 2), r + 1, np.float32) for r in range(3)]
    with LocalWorld(3) as world:
        whole = world.run(
            lambda s: s.allreduce_async(given[rank_of(s)], op=op, compression=compression).wait()
        )
        parts = world.run(
            lambda s: s.reducescatter_async(
                given[rank_of(s)], op=op, compression=compression
            ).wait()
        )
    expected = 2.0 if op is AVERAGE else float(folded(op, given)[0, 0])
    assert all((result == expected).all() for result in whole)
    assert np.concatenate(parts).tolist() == [[expected] * 2] * 5


def test_groups_may_mix_dtypes_and_end_together() -> None:
    kinds = ("float32", "int8", "float16", "float32", "complex64", "bool")

    def mine(session: Session) -> list[Array]:
        return [np.full((i + 2, 3), rank_of(session) + i).astype(k) for i, k in enumerate(kinds)]

    with LocalWorld(3) as world:
        whole = world.run(lambda s: s.grouped_allreduce_async(mine(s), op=SUM).wait())
        parts = world.run(lambda s: s.grouped_reducescatter_async(mine(s), op=SUM).wait())
        rows = world.run(lambda s: s.grouped_allgather_async(mine(s)).wait())
    for i, kind in enumerate(kinds):
        value = np.full((i + 2, 3), 3 + 3 * i).astype(kind)
        for rank in range(3):
            np.testing.assert_array_equal(whole[rank][i], value)
            assert whole[rank][i].dtype == kind
            np.testing.assert_array_equal(
                rows[rank][i],
                np.concatenate([np.full((i + 2, 3), r + i).astype(kind) for r in range(3)]),
            )
        np.testing.assert_array_equal(np.concatenate([p[i] for p in parts]), value)


def test_a_group_in_place_gives_back_its_arrays() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[float]:
            xs = [np.full(3, float(rank_of(session))), np.ones((2, 2))[:, ::2]]
            results = session.grouped_allreduce_async(xs, op=SUM, inplace=True).wait()
            assert all(a is b for a, b in zip(results, xs, strict=True))
            return [float(x.sum()) for x in xs]

        assert world.run(body) == [[3.0, 4.0]] * 2


def test_a_group_of_more_tensors_than_there_are_tags_is_right() -> None:
    with LocalWorld(3, switch=slow()) as world:
        found = world.run(
            lambda s: s.grouped_allgather_async(
                [np.array([rank_of(s), i]) for i in range(40)]
            ).wait()
        )
    for result in found:
        assert [r.tolist() for r in result] == [[0, i, 1, i, 2, i] for i in range(40)]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_alltoall_sends_rows_where_they_belong(size: int) -> None:
    splits = np.random.default_rng(size).integers(0, 4, (size, size))
    splits[0] = 0

    def body(session: Session) -> tuple[Array, Array]:
        me = rank_of(session)
        rows = [np.full((splits[me][r], 2), 10 * me + r, np.int16) for r in range(size)]
        return session.alltoall_async(np.concatenate(rows), splits[me]).wait()  # type: ignore[no-any-return]

    with LocalWorld(size, switch=slow()) as world:
        found = world.run(body)
    for me, (result, received) in enumerate(found):
        expected = [np.full((splits[r][me], 2), 10 * r + me, np.int16) for r in range(size)]
        np.testing.assert_array_equal(result, np.concatenate(expected))
        assert (received.dtype, received.tolist()) == (np.int64, splits[:, me].tolist())


def test_an_alltoall_without_splits_shares_rows_evenly() -> None:
    with LocalWorld(2) as world:
        found = world.run(lambda s: s.alltoall_async(np.arange(4) + 10 * rank_of(s)).wait()[0])
    assert [f.tolist() for f in found] == [[0, 1, 10, 11], [2, 3, 12, 13]]


def test_an_alltoall_comes_again_under_its_name_with_other_splits() -> None:
    with LocalWorld(2) as world:
        for n in range(5):
            found = world.run(
                lambda s, n=n: s.alltoall_async(np.arange(n + 1), [n, 1], "x").wait()[1].tolist()
            )
            assert found == [[n, n], [1, 1]]


def adasum(vectors: list[Array]) -> Array:
    """Join pairs, then pairs of pairs: the definition, in float64."""
    wide = [v.astype(np.float64) for v in vectors]
    while len(wide) > 1:
        pairs = [wide[i : i + 2] for i in range(0, len(wide), 2)]
        wide = [joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return wide[0]


def joined(a: Array, b: Array) -> Array:
    dot = float(a.ravel() @ b.ravel())
    aa, bb = float((a * a).sum()), float((b * b).sum())
    return np.asarray(
        a * (1 - dot / (2 * aa) if aa else 1.0) + b * (1 - dot / (2 * bb) if bb else 1.0)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_adasum_joins_each_tensor_by_itself(size: int, dtype: str) -> None:
    shapes = ((40, 3), (7,), (1,), (0,))
    given = [
        [np.random.default_rng([r, i]).normal(size=s).astype(dtype_of(dtype)) for i, s in
         enumerate(shapes)] for r in range(size)
    ]  # fmt: skip
    with LocalWorld(size) as world:
        found = world.run(
            lambda s: s.grouped_allreduce_async(given[rank_of(s)], op=ReduceOp.ADASUM).wait()
        )
    eps = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for i in range(len(shapes)):
        expected = adasum([g[i] for g in given])
        for result in found:
            assert result[i].tobytes() == found[0][i].tobytes()
            np.testing.assert_allclose(result[i].astype(np.float64), expected, rtol=eps, atol=eps)


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_equal() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[list[float]]:
            mine = np.zeros(2)
            mine[rank_of(session)] = 3.0
            both = [mine, np.array([4.0, 2.0]), np.zeros(2)]
            return [
                r.tolist() for r in session.grouped_allreduce_async(both, op=ReduceOp.ADASUM).wait()
            ]

        assert world.run(body) == [[[3.0, 3.0], [4.0, 2.0], [0.0, 0.0]]] * 2


def test_adasum_shares_out_rows_that_do_not_come_out_even() -> None:
    given = [np.random.default_rng(r).normal(size=(3, 5)) for r in range(2)]
    with LocalWorld(2) as world:
        found = world.run(
            lambda s: s.reducescatter_async(given[rank_of(s)], op=ReduceOp.ADASUM).wait()
        )
    np.testing.assert_allclose(np.concatenate(found), adasum(given), rtol=1e-13)


@pytest.mark.parametrize("size", [1, 2])
def test_thousands_of_arrays_make_a_group(size: int) -> None:
    group = [np.ones((0 if size > 1 else 2, 2), np.float32)] * 1500
    with LocalWorld(size) as world:
        rows = world.run(lambda s: s.grouped_allgather_async(group).wait(30))
        parts = world.run(lambda s: s.grouped_reducescatter_async(group).wait(30))
    assert all(len(found) == 1500 for found in (*rows, *parts))


@pytest.mark.parametrize("op", [SUM, ReduceOp.ADASUM])
def test_tensors_of_one_array_are_reduced_by_themselves_and_stood_in_for(op: ReduceOp) -> None:
    layout = (Segment(0, 3), Segment(32, 34))  # with padding between
    specs = (TensorSpec("float64", (3,)), TensorSpec("float64", (2,)))
    like = Signature(Kind.ALLREDUCE, specs, op, fusable=False, layout=layout)
    given = [np.random.default_rng(r).normal(size=34) for r in range(2)]
    with LocalWorld(3) as world:

        def body(session: Session) -> Array:
            if rank_of(session) == 2:
                session.join_async().wait(30)
                return given[0]
            mine = given[rank_of(session)].copy()
            session.submit(like, "bucket", mine, lambda _: None).wait(30)
            session.join_async().wait(30)
            return mine

        found = world.run(body)[:2]
    for s in layout:
        parts = [g[s.start : s.stop] for g in given]
        expected = parts[0] + parts[1] if op is SUM else adasum(parts)
        for result in found:
            np.testing.assert_allclose(result[s.start : s.stop], expected, rtol=1e-12)


class FromElsewhere:
    """An array of another library that speaks DLPack and has a namespace of its own."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array_namespace__(self) -> Any:
        return FromElsewhere

    @classmethod
    def from_dlpack(cls, other: Any) -> FromElsewhere:
        return cls(np.from_dlpack(other))


def test_whatever_has_dlpack_is_taken_and_given_back() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[float]:
            mine = FromElsewhere(np.full(3, 1.0 + rank_of(session)))
            result = session.allreduce_async(mine, op=SUM).wait()
            assert isinstance(result, FromElsewhere)
            in_place = session.allreduce_async(mine, op=SUM, inplace=True).wait()
            assert in_place is mine
            return [*result.array.tolist(), *mine.array.tolist()]

        assert world.run(body) == [[3.0] * 6] * 2


def test_a_handle_is_collected_once_and_waited_for_often() -> None:
    with LocalWorld(1) as world:

        def body(session: Session) -> None:
            handle = session.allreduce_async(np.ones(2), "x")
            assert handle.wait().tolist() == handle.wait().tolist() == [1, 1]
            assert handle.collect().tolist() == [1, 1]
            with pytest.raises(CommError, match="'x' was synchronized before"):
                handle.collect()

        world.run(body)

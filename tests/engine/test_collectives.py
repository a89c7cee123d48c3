"""Every operation from end to end: ranks as threads, compared with numpy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commrt.kernels.numpy_ import bfloat16, dtype_of
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.testing import LocalWorld, MemorySwitch
from commrt.testing.strategies import DTYPES
from commrt.types import ReduceOp

BFLOAT16 = bfloat16()

SUM, AVERAGE = ReduceOp.SUM, ReduceOp.AVERAGE
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (3, 0, 2), (5, 3), (700, 3))

Array = np.ndarray[Any, np.dtype[Any]]


def rank_of(session: Session) -> int:
    return session.runtime.topology.rank


def slow(seed: int = 1) -> MemorySwitch:
    return MemorySwitch(seed, hold=3, eager=64)


def same_bits(results: list[Any]) -> bool:
    return len({np.ascontiguousarray(r).tobytes() for r in results}) == 1


def inputs(n: int, shape: tuple[int, ...], dtype: str) -> list[Array]:
    """Small whole numbers: every dtype holds their sums exactly."""
    high = 2 if dtype == "bool" else 9
    return [
        np.random.default_rng(r).integers(0, high, shape).astype(dtype_of(dtype)) for r in range(n)
    ]


def total(arrays: list[Array]) -> Array:
    return np.asarray(sum(widened(a) for a in arrays))


def widened(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_and_averages_of_every_dtype_and_shape(size: int) -> None:
    with LocalWorld(size, switch=slow(), small=256, segment=512) as world:
        for dtype in DTYPES:
            for shape in SHAPES:
                given = inputs(size, shape, dtype)
                check_sum(world, given)
                if dtype != "bool":
                    check_average(world, given)


def check_sum(world: LocalWorld, given: list[Array]) -> None:
    before = [a.copy() for a in given]
    found = world.run(lambda s: s.allreduce_async(given[rank_of(s)], op=SUM).wait())
    assert same_bits(found)
    assert (found[0].dtype, found[0].shape) == (given[0].dtype, given[0].shape)
    expected = total(given)
    if given[0].dtype == np.bool_:
        np.testing.assert_array_equal(found[0], expected > 0)
    else:
        np.testing.assert_array_equal(widened(found[0]), expected)
    for a, b in zip(given, before, strict=True):
        np.testing.assert_array_equal(a, b)


def check_average(world: LocalWorld, given: list[Array]) -> None:
    found = world.run(lambda s: s.allreduce_async(given[rank_of(s)]).wait())
    assert same_bits(found)
    mean = total(given) / len(given)
    if given[0].dtype.kind in "iu":
        np.testing.assert_array_equal(found[0].astype(np.float64), np.trunc(mean))
    else:
        eps = 2.0**-8 if given[0].dtype == BFLOAT16 else float(np.finfo(given[0].dtype).eps)
        np.testing.assert_allclose(widened(found[0]), mean, rtol=2 * eps)


VIEWS: dict[str, Callable[[Array], Array]] = {
    "C": lambda a: a,
    "transposed": lambda a: a.T,
    "F": np.asfortranarray,
    "every second column": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "channels last": lambda a: np.moveaxis(a.reshape(2, 3, 2, 3), 1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("inplace", [False, True])
def test_any_layout_is_reduced_and_keeps_its_shape(view: str, inplace: bool) -> None:
    base = [np.arange(36, dtype=np.float32).reshape(6, 6) * (r + 1) for r in range(3)]
    given = [VIEWS[view](a) for a in base]
    expected = total(given)
    with LocalWorld(3) as world:
        found = world.run(
            lambda s: s.allreduce_async(given[rank_of(s)], op=SUM, inplace=inplace).wait()
        )
    for r, result in enumerate(found):
        np.testing.assert_array_equal(result, expected)
        assert (result is given[r]) == inplace
    if inplace and view == "every second column":
        for r, a in enumerate(base):
            untouched = np.arange(36, dtype=np.float32).reshape(6, 6)[:, 1::2] * (r + 1)
            np.testing.assert_array_equal(a[:, 1::2], untouched)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_in_place_results_are_there_when_the_handle_is_done(dtype: str) -> None:
    given = inputs(3, (5000,), dtype)
    expected = total(given)
    with LocalWorld(3, switch=slow(), small=0, segment=1000) as world:

        def body(session: Session) -> Array:
            mine = given[rank_of(session)]
            handle = session.allreduce_async(mine, op=SUM, inplace=True)
            assert handle.wait() is mine
            kept = mine.copy()
            mine[:] = 0  # nobody may still be reading it
            return kept

        found = world.run(body)
    assert same_bits(found)
    np.testing.assert_array_equal(found[0].astype(np.float64), expected)


@pytest.mark.parametrize("n", [1 << 18, (1 << 18) + 1, 3 * (1 << 17) + 5])
@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_chunks_of_different_numbers_of_slices_meet(n: int, compression: str) -> None:
    dtype = np.float16 if compression == "none" else np.float32
    with LocalWorld(2) as world:
        found = world.run(
            lambda s: s.allreduce_async(np.ones(n, dtype), compression=compression).wait(30)
        )
    assert all((result == 1).all() for result in found)


@pytest.mark.parametrize("scales", [(0.5, 1.0), (1.0, 3.0), (0.5, 4.0)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_scales_come_before_and_after_the_sum(scales: tuple[float, float], dtype: str) -> None:
    given = [np.array([2, 4, 8], dtype) for _ in range(2)]
    with LocalWorld(2) as world:
        found = world.run(lambda s: s.allreduce_async(given[rank_of(s)], None, SUM, *scales).wait())
    expected = np.array([4, 8, 16]) * scales[0] * scales[1]
    assert found[0].tolist() == found[1].tolist() == expected.tolist()


def test_a_group_is_reduced_as_one_operation() -> None:
    shapes = ((3,), (), (0,), (2, 2))
    with LocalWorld(3, switch=slow()) as world:

        def body(session: Session) -> list[Array]:
            mine = [np.full(shape, rank_of(session), np.float64) for shape in shapes]
            return session.grouped_allreduce_async(mine, "group", SUM).wait()  # type: ignore[no-any-return]

        found = world.run(body)
        records = world.sessions[0].runtime.trace()
    assert [record.names for record in records] == [("group",)]
    for results in found:
        assert [r.shape for r in results] == list(shapes)
        assert all((r == 3).all() for r in results)


def test_a_group_in_place_is_written_where_it_lies() -> None:
    base = [np.full((4, 4), r + 1, np.int32) for r in range(3)]
    with LocalWorld(3) as world:

        def body(session: Session) -> None:
            mine = base[rank_of(session)]
            parts = [mine[0], mine[1:3, ::2], mine[3].reshape(2, 2)]
            found = session.grouped_allreduce_async(parts, op=SUM, inplace=True).wait(30)
            assert all(a is b for a, b in zip(found, parts, strict=True))

        world.run(body)
    for r, array in enumerate(base):
        own = r + 1
        assert array.tolist() == [[6] * 4, [6, own] * 2, [6, own] * 2, [6] * 4]


def test_an_empty_group_is_an_empty_list() -> None:
    with LocalWorld(2) as world:
        assert world.run(lambda s: s.grouped_allreduce_async([], "none").wait()) == [[], []]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_allgather_takes_different_numbers_of_rows(size: int) -> None:
    rows = [3, 0, 1, 5][:size]
    for dtype in ("float32", "bool", "bfloat16"):
        for rest in ((), (2,), (2, 0), (2, 3)):
            given = [np.ones((n, *rest)).astype(dtype_of(dtype)) for n in rows]
            with LocalWorld(size, switch=slow(), segment=16) as world:
                found = world.run(lambda s, g=given: s.allgather_async(g[rank_of(s)], "x").wait())  # type: ignore[misc]
            for result in found:
                assert result.dtype == given[0].dtype
                np.testing.assert_array_equal(result, np.concatenate(given))


def test_an_allgather_of_a_number_gives_one_row_of_each_rank() -> None:
    with LocalWorld(3) as world:
        found = world.run(lambda s: s.allgather_async(np.int32(rank_of(s) * 7)).wait())
    assert [result.tolist() for result in found] == [[0, 7, 14]] * 3


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_broadcast_brings_the_root_s_array(root: int, inplace: bool) -> None:
    with LocalWorld(4, switch=slow(), segment=16) as world:
        for dtype in DTYPES:
            for shape in SHAPES[:6]:
                given = [np.full(shape, r == root).astype(dtype_of(dtype)) for r in range(4)]

                def body(session: Session, given: list[Array] = given) -> Array:
                    mine = given[rank_of(session)]
                    return session.broadcast_async(mine, root, inplace=inplace).wait()  # type: ignore[no-any-return]

                for r, result in enumerate(world.run(body)):
                    np.testing.assert_array_equal(result, given[root])
                    assert (result is given[r]) == inplace


def test_objects_of_any_kind_travel() -> None:
    with LocalWorld(3) as world:
        found = world.run(lambda s: s.broadcast_object({"rank": rank_of(s), "f": max}, 1))
        assert found == [{"rank": 1, "f": max}] * 3
        gathered = world.run(lambda s: s.allgather_object([None] * rank_of(s)))
        assert gathered == [[[], [None], [None, None]]] * 3


def test_nobody_passes_a_barrier_before_all_have_come() -> None:
    came: list[int] = []
    with LocalWorld(4, switch=slow()) as world:

        def body(session: Session) -> int:
            came.append(rank_of(session))
            session.barrier_async().wait()
            return len(came)

        assert world.run(body) == [4] * 4


def test_overlapping_sets_work_in_any_order_at_once() -> None:
    pairs = [ProcessSet([0, 1]), ProcessSet([1, 2]), ProcessSet([2, 0])]
    with LocalWorld(3, pairs, switch=slow(), small=0) as world:
        for seed in range(10):

            def body(session: Session, seed: int = seed) -> dict[int | None, list[float]]:
                rank = rank_of(session)
                mine = [p for p in pairs if rank in p.ranks] + [None]
                random.Random(f"{seed} {rank}").shuffle(mine)
                handles = {
                    p and p.process_set_id: session.allreduce_async(
                        np.full(3, 2.0**rank), "x", SUM, process_set=p
                    )
                    for p in mine
                }
                return {id: handle.wait(30).tolist() for id, handle in handles.items()}

            found = world.run(body)
            sums = {1: [3.0] * 3, 2: [6.0] * 3, 3: [5.0] * 3, None: [7.0] * 3}
            for rank, results in enumerate(found):
                ids = [None, *(p.process_set_id for p in pairs if rank in p.ranks)]
                assert results == {id: sums[id] for id in ids}


@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_a_set_of_one_rank_works_like_any_other(compression: str) -> None:
    alone = ProcessSet([1])
    with LocalWorld(2, [alone], small=0) as world:

        def body(session: Session) -> Any:
            if rank_of(session) == 0:
                return None
            x = np.arange(4, dtype=np.float32)
            assert session.allgather_async(x, process_set=alone).wait(30).tolist() == x.tolist()
            assert session.broadcast_object("o", 1, process_set=alone, timeout=30) == "o"
            return (
                session.allreduce_async(x, compression=compression, process_set=alone)
                .wait(30)
                .tolist()
            )

        assert world.run(body) == [None, [0.0, 1.0, 2.0, 3.0]]


def test_many_operations_in_different_orders_are_fused_and_right() -> None:
    count = 60
    with LocalWorld(3, switch=slow()) as world:
        for seed in range(3):

            def body(session: Session, seed: int = seed) -> dict[int, float]:
                rank = rank_of(session)
                order = random.Random(f"{seed} {rank}").sample(range(count), count)
                handles = {
                    i: session.allreduce_async(np.full(i, float(rank + i)), f"grad{i}")
                    for i in order
                }
                return {i: float(handle.wait(30).sum()) for i, handle in handles.items()}

            expected = {i: float(i * (1 + i)) for i in range(count)}
            assert world.run(body) == [expected] * 3
        buckets = world.sessions[0].runtime.parts.trace.totals().buckets
    assert buckets < 3 * count


def test_all_ranks_run_buckets_in_one_order() -> None:
    with LocalWorld(3, switch=slow()) as world:

        def body(session: Session) -> list[int]:
            names = random.Random(rank_of(session)).sample("abcdefghij", 10)
            handles = [session.allreduce_async(np.ones(2), name) for name in names]
            for handle in handles:
                handle.wait(30)
            session.barrier_async().wait()
            return [(r.number, r.names) for r in session.runtime.trace()]  # type: ignore[misc]

        first, *others = world.run(body)
    assert all(sorted(other) == sorted(first) for other in others)


def test_an_operation_can_be_awaited() -> None:
    import asyncio

    async def both(session: Session) -> list[float]:
        handles = [session.allreduce_async(np.full(1, 2.0), name) for name in "ab"]
        results = await asyncio.gather(*map(wait, handles))
        return [float(r[0]) for r in results]

    async def wait(handle: Any) -> Any:
        return await handle

    with LocalWorld(2) as world:
        assert world.run(lambda s: asyncio.run(both(s))) == [[2.0, 2.0]] * 2

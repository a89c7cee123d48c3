"""Ranks that have run out of data: ranks as threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from commrt.errors import MismatchError, ShutdownError
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.testing import LocalWorld
from commrt.types import ReduceOp

Array = np.ndarray[Any, np.dtype[Any]]
OPS = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)


def rank_of(session: Session) -> int:
    return session.runtime.topology.rank


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_a_joined_rank_contributes_what_changes_nothing(dtype: str, named: bool) -> None:
    ops = [op for op in OPS if dtype != "bool" or op is not ReduceOp.AVERAGE]
    with LocalWorld(3) as world:

        def body(session: Session) -> tuple[list[float], int]:
            me = rank_of(session)
            found: list[float] = []
            for step in range(me):  # rank 0 has no data at all
                mine = np.full(3, 1 if dtype == "bool" else 4 + step)
                for op in ops:
                    handle = session.allreduce_async(
                        mine.astype(np.dtype("uint8") if dtype == "bfloat16" else dtype),
                        f"{op.value}.{step}" if named else None,
                        op,
                        prescale_factor=1.0 if dtype == "bool" else 2.0,
                    )
                    found += handle.wait(30).astype(float).tolist()[:1]
            return found, session.join_async().wait(30)

        results = world.run(body)
    assert len({last for _, last in results}) == 1
    two, one = 8.0, 10.0  # scaled values of both steps
    if dtype == "bool":
        assert results[1][0] == [1.0] * 4
        assert results[2][0] == [1.0] * 8
        return
    whole = dtype in ("int8", "uint8", "bfloat16")
    third = (lambda x: float(int(x))) if whole else (lambda x: x)
    first = [2 * two, third(2 * two / 3), two, two, two * two]
    np.testing.assert_allclose(results[1][0], first, rtol=1e-3)
    np.testing.assert_allclose(
        results[2][0], [*first, one, third(one / 3), one, one, one], rtol=1e-3
    )


def test_unnamed_operations_go_on_in_step_after_a_join_and_joins_come_again() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[Any]:
            found: list[Any] = []
            for _ in range(3):
                for _ in range(3 * rank_of(session)):
                    session.allreduce_async(np.ones(2)).wait(30)
                found.append(session.join_async().wait(30))
                found.append(session.allreduce_async(np.ones(2), op=ReduceOp.SUM).wait(30).tolist())
                session.barrier_async().wait(30)
            return found

        first, second = world.run(body)
    assert first == second == [1, [2.0, 2.0]] * 3


def test_other_collectives_fail_with_the_joined_ranks_names_and_life_goes_on() -> None:
    joined, failed = threading.Event(), threading.Event()
    with LocalWorld(3) as world:

        def body(session: Session) -> str:
            text = ""
            if rank_of(session) == 1:
                handle = session.join_async()
                joined.set()
            else:
                early = session.allgather_async(np.ones(1), "early") if rank_of(session) else None
                joined.wait(30)
                calls = [
                    lambda: session.allgather_async(np.ones(1), "late"),
                    lambda: session.broadcast_async(np.ones(1), 0, "from 0"),
                    lambda: session.alltoall_async(np.ones(3)),
                    lambda: session.reducescatter_async(np.ones(3)),
                    session.barrier_async,
                ]
                handles = [call() for call in calls] + ([early] if early else [])
                for waiting in handles:
                    with pytest.raises(MismatchError, match=r"needs rank 1, which has joined"):
                        waiting.wait(30)
                ours = session.allreduce_async(np.ones(1), "still", op=ReduceOp.SUM)
                text = str(ours.wait(30).tolist())
                handle = session.join_async()
            assert handle.wait(30) in (0, 2)
            gathered = session.allgather_async(np.array([rank_of(session)])).wait(30)
            assert gathered.tolist() == [0, 1, 2]
            return text

        assert world.run(body) == ["[2.0]", "", "[2.0]"]
    failed.set()


def test_sets_without_the_joined_rank_are_not_touched() -> None:
    with LocalWorld(3, [ProcessSet([0, 2]), ProcessSet([1, 2])]) as world:
        pair = ProcessSet([0, 2])
        pair.attach(1)
        other = ProcessSet([1, 2])
        other.attach(2)

        def body(session: Session) -> Any:
            if rank_of(session) == 1:
                return session.join_async().wait(30)
            rows = session.allgather_async(np.array([rank_of(session)]), None, pair).wait(30)
            if rank_of(session) == 2:
                alone = session.allreduce_async(np.ones(1), None, process_set=other).wait(30)
                assert alone.tolist() == [0.5]
            return rows.tolist(), session.join_async().wait(30)

        rows, last, again = world.run(body)
    assert rows[0] == again[0] == [0, 2]
    assert rows[1] == again[1] == last


def test_a_rank_that_ends_instead_of_joining_ends_the_wait() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            if rank_of(session) == 0:
                session.runtime.shutdown()
            else:
                with pytest.raises(ShutdownError, match="needs rank 0"):
                    session.join_async().wait(30)

        world.run(body)


@pytest.mark.parametrize("what", ["join", "add"])
def test_whoever_gave_up_waiting_may_wait_again_and_threads_wait_together(what: str) -> None:
    gave_up = threading.Event()
    with LocalWorld(2) as world:

        def change(session: Session, timeout: float) -> int:
            if what == "join":
                return session.join_async().wait(timeout)  # type: ignore[no-any-return]
            return session.add_process_set(ProcessSet([1]), timeout).id()

        def body(session: Session) -> int:
            if rank_of(session) == 0:
                with pytest.raises(TimeoutError):
                    change(session, 0.01)
                gave_up.set()
            gave_up.wait(30)
            if what == "join":
                assert session.join_async() is session.join_async()
            return change(session, 30)

        assert world.run(body) == [1, 1]


def test_objects_are_exchanged_by_those_who_have_not_joined() -> None:
    joined = threading.Event()
    with LocalWorld(3) as world:

        def body(session: Session) -> dict[int, Any] | None:
            found = None
            if rank_of(session) == 1:
                handle = session.join_async()
                joined.set()
            else:
                joined.wait(30)
                found = session.exchange_async(["of", rank_of(session)]).wait(30)
                handle = session.join_async()
            handle.wait(30)
            assert len(session.exchange_async(0).wait(30)) == 3
            return found

        expected = {0: ["of", 0], 2: ["of", 2]}
        assert world.run(body) == [expected, None, expected]

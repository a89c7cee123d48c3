"""Process sets made and removed on the way: ranks as threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commrt.errors import ArgumentError, InitError, MismatchError
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.testing import LocalWorld
from commrt.types import ReduceOp


def rank_of(session: Session) -> int:
    return session.runtime.topology.rank


def total(session: Session, members: ProcessSet) -> Any:
    mine = np.array([rank_of(session) + 1])
    return session.allreduce_async(mine, op=ReduceOp.SUM, process_set=members).wait(30).tolist()


def test_a_set_works_from_the_moment_it_is_registered() -> None:
    with LocalWorld(3, [ProcessSet([0, 1])]) as world:

        def body(session: Session) -> list[Any]:
            made = session.add_process_set(ProcessSet([2, 1]))
            assert (made.ranks, made.process_set_id) == ((1, 2), 2)
            assert (made.size(), made.included()) == (2, rank_of(session) > 0)
            assert made.rank() == {0: None, 1: 0, 2: 1}[rank_of(session)]
            return total(session, made) if made.included() else []  # type: ignore[no-any-return]

        assert world.run(body) == [[], [5], [5]]


def test_overlapping_sets_in_any_order_do_not_block_each_other() -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> list[Any]:
            sets = [session.add_process_set(ProcessSet(p)) for p in ((0, 1), (1, 2), (2, 0))]
            mine = [s for s in sets if s.included()]
            mine = mine if rank_of(session) % 2 else mine[::-1]
            handles = {
                s.ranks: session.allreduce_async(np.ones(2), op=ReduceOp.SUM, process_set=s)
                for s in mine
            }
            return [h.wait(30).tolist() for h in handles.values()]

        assert world.run(body) == [[[2.0, 2.0]] * 2] * 3


def test_a_removed_set_is_gone_for_everyone() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            made = session.add_process_set(ProcessSet([0]))
            if rank_of(session) == 0:
                assert total(session, made) == [1]
            assert session.remove_process_set(made)
            assert not session.remove_process_set(made)
            assert not session.remove_process_set(session.world)
            with pytest.raises(InitError, match="is not registered"):
                session.allreduce_async(np.ones(1), process_set=made)
            again = session.add_process_set(ProcessSet([0]))
            if rank_of(session) == 0:
                assert total(session, again) == [1]

        world.run(body)


def test_what_waits_in_a_set_fails_when_it_is_removed() -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> None:
            pair = session.add_process_set(ProcessSet([0, 1]))
            waiting = None
            if rank_of(session) == 0:
                waiting = session.allreduce_async(np.ones(1), "lonely", process_set=pair)
            session.barrier_async().wait(30)
            assert session.remove_process_set(pair)
            if waiting is not None:
                with pytest.raises(ArgumentError, match=r"process set \d was removed"):
                    waiting.wait(30)

        world.run(body)


def test_ranks_that_name_different_sets_are_told_both_and_go_on() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            with pytest.raises(MismatchError, match=r"rank 0: \[0\].*rank 1: \[1\]"):
                session.add_process_set(ProcessSet([rank_of(session)]))
            made = session.add_process_set(ProcessSet([1]))
            if rank_of(session) == 1:
                assert total(session, made) == [2]

        world.run(body)


def test_three_hundred_sets_come_and_go_without_growth() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[int]:
            for _ in range(300):
                made = session.add_process_set(ProcessSet([1]))
                if rank_of(session) == 1:
                    session.allreduce_async(np.ones(1), "x", process_set=made).wait(30)
                    session.allreduce_async(np.ones(1), process_set=made).wait(30)
                session.remove_process_set(made)
            parts = session.runtime.parts
            held = [len(session._sets), len(parts.queue._ordinals._counts)]
            held.append(len(parts.executor._sets._sets))
            if parts.coordinator is not None:
                held.append(len(parts.coordinator._ledger._sets))
            return held

        for held in world.run(body):
            assert max(held) <= 4

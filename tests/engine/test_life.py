"""What goes wrong, and how a runtime begins and ends: ranks as threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from commrt.config import Config
from commrt.errors import (
    ArgumentError,
    CommError,
    DuplicateNameError,
    InitError,
    MismatchError,
    PeerLostError,
    RemoteError,
    ShutdownError,
    StallError,
)
from commrt.process_sets import ProcessSet
from commrt.session import Session
from commrt.testing import FakeClock, LocalWorld, MemorySwitch
from commrt.types import ReduceOp

ONES = np.ones(3, np.float32)


def rank_of(session: Session) -> int:
    return session.runtime.topology.rank


def works(world: LocalWorld) -> bool:
    """Does an operation of the name that just failed work?"""
    found = world.run(lambda s: s.allreduce_async(ONES, "x").wait(30).tolist())
    return found == [[1.0] * 3] * len(found)


class Warnings(logging.Handler):
    """Lets a test wait for a text in the log."""

    def __init__(self, text: str) -> None:
        super().__init__(logging.WARNING)
        self._text = text
        self.came = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if self._text in self.messages[-1]:
            self.came.set()


@contextmanager
def warnings(text: str) -> Iterator[Warnings]:
    logger, handler = logging.getLogger("commrt.engine"), Warnings(text)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("the shape", lambda s: s.allreduce_async(np.ones(4, np.float32), "x")),
        ("the dtype", lambda s: s.allreduce_async(np.ones(3), "x")),
        ("the op", lambda s: s.allreduce_async(ONES, "x", ReduceOp.SUM)),
        ("the prescale factor", lambda s: s.allreduce_async(ONES, "x", prescale_factor=2.0)),
        ("the postscale factor", lambda s: s.allreduce_async(ONES, "x", postscale_factor=2.0)),
        ("the compression", lambda s: s.allreduce_async(ONES, "x", compression="fp16")),
        ("the kind of operation", lambda s: s.broadcast_async(ONES, 0, "x")),
        (
            "the number of tensors",
            lambda s: s.grouped_allreduce_async([ONES, np.ones(1, "f")], "x"),
        ),
    ],
)
def test_a_mismatch_fails_on_all_ranks_with_one_text_and_life_goes_on(
    said: str, change: object
) -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> str:
            odd = rank_of(session) == 1
            handle = change(session) if odd else session.allreduce_async(ONES, "x")  # type: ignore[operator]
            with pytest.raises(MismatchError) as caught:
                handle.wait(30)
            return str(caught.value)

        [text] = set(world.run(body))
        assert f"{said} differs between ranks" in text
        assert "rank 1: " in text
        assert f"{__file__}:" in text
        assert works(world)


def test_orders_in_memory_must_agree() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            square = np.ones((2, 3), order="FC"[rank_of(session)])  # type: ignore[call-overload]
            with pytest.raises(MismatchError, match=r"the memory order \(strides\) differs"):
                session.allreduce_async(square, "x").wait(30)

        world.run(body)
        assert works(world)


def test_a_mismatch_leaves_all_arrays_as_they_were() -> None:
    arrays = [np.full(3 + r, r, np.float32) for r in range(2)]
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            mine = arrays[rank_of(session)]
            with pytest.raises(MismatchError):
                session.allreduce_async(mine, "x", inplace=True).wait(30)
            session.allreduce_async(ONES, "y").wait(30)

        world.run(body)
    assert [a.tolist() for a in arrays] == [[0.0] * 3, [1.0] * 4]


def test_a_reported_error_fails_on_all_others_and_life_goes_on() -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> None:
            for round in range(3):
                if rank_of(session) == round:
                    session.runtime.report(0, "x", f"no gradient {round}")
                    continue
                with pytest.raises(RemoteError, match=f"rank {round}: no gradient {round}"):
                    session.allreduce_async(ONES, "x").wait(30)

        world.run(body)
        assert works(world)


def test_wrong_arguments_are_refused_on_the_spot_and_life_goes_on() -> None:
    pair = ProcessSet([0, 1])
    with LocalWorld(3, [pair]) as world:

        def body(session: Session) -> None:
            frozen = ONES.copy()
            frozen.flags.writeable = False
            wide = np.broadcast_to(np.ones(1, np.float32), (3,))
            for call in (
                lambda: session.allreduce_async(np.ones(3, np.longdouble), "x"),
                lambda: session.allreduce_async(np.ones(3, complex), "x", op=ReduceOp.MAX),
                lambda: session.allreduce_async(np.ones(3, int), "x", op=ReduceOp.ADASUM),
                lambda: session.allreduce_async(ONES, "x", "sum"),  # type: ignore[arg-type]
                lambda: session.allreduce_async(ONES, "x", compression="gzip"),
                lambda: session.allreduce_async(np.ones(3, bool), "x"),
                lambda: session.allreduce_async(frozen, "x", inplace=True),
                lambda: session.allreduce_async(wide, "x", inplace=True),
                lambda: session.reducescatter_async(np.float32(1), "x"),
                lambda: session.alltoall_async(np.ones(4), name="x"),
                lambda: session.alltoall_async(np.ones(4), [1, 1, 1], "x"),
                lambda: session.alltoall_async(np.ones(4), [5, -1, 0], "x"),
                lambda: session.alltoall_async(np.ones(4), [2.0, 1.0, 1.0], "x"),
                lambda: session.add_process_set(ProcessSet([])),
                lambda: session.add_process_set(ProcessSet([0, 3])),
                lambda: session.add_process_set(ProcessSet([1, 0])),
                lambda: session.broadcast_async(ONES, 3, "x"),
                lambda: session.broadcast_async(ONES, 2, "x", process_set=pair),
                lambda: session.broadcast_object(1, 7, "x"),
            ):
                with pytest.raises(ArgumentError):
                    call()
            if rank_of(session) == 2:
                with pytest.raises(ArgumentError, match="rank 2 is not in"):
                    session.allreduce_async(ONES, "x", process_set=pair)
            with pytest.raises(InitError, match="is not registered"):
                session.allreduce_async(ONES, "x", process_set=ProcessSet([0, 1, 2]))

        world.run(body)
        assert works(world)


def test_a_name_or_memory_in_flight_is_refused_and_the_first_goes_on() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> list[float]:
            mine = ONES.copy()
            if rank_of(session) == 1:
                assert session.allgather_object("go", "gate", timeout=30)
                return session.allreduce_async(mine, "x", inplace=True).wait(30).tolist()  # type: ignore[no-any-return]
            handle = session.allreduce_async(mine, "x", inplace=True)
            with pytest.raises(DuplicateNameError):
                session.allreduce_async(np.ones(3, np.float32), "x")
            with pytest.raises(DuplicateNameError):
                session.allreduce_async(mine, "y", inplace=True)
            assert session.allgather_object("go", "gate", timeout=30)
            return handle.wait(30).tolist()  # type: ignore[no-any-return]

        assert world.run(body) == [[1.0] * 3] * 2


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_rank_ends_the_others_with_what_was_in_flight(lost: int) -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> CommError | None:
            session.barrier_async().wait(30)
            if rank_of(session) == lost:
                world.lose(lost)
                return None
            handle = session.allreduce_async(ONES, f"grad of {rank_of(session)}")
            error = handle.exception(30)
            with pytest.raises(PeerLostError):
                session.allreduce_async(ONES, "after")
            assert isinstance(error, PeerLostError)
            return error

        for rank, error in enumerate(world.run(body)):
            if rank == lost:
                continue
            assert isinstance(error, PeerLostError)
            assert (error.ranks, error.hosts) == ((lost,), ("memory",))
            assert f"rank {lost} on memory: killed by signal 9" in str(error)
            assert f"in flight: 'grad of {rank}'" in str(error)
            assert error.operations == (f"grad of {rank}",)


def test_a_rank_lost_in_a_transfer_ends_the_others() -> None:
    with LocalWorld(3, small=0, segment=1 << 10) as world:
        moving = threading.Barrier(3)

        def body(session: Session) -> None:
            handle = session.allreduce_async(np.ones(1 << 22, np.float32), "large")
            moving.wait()
            if rank_of(session) == 2:
                world.lose(2)
                handle.exception(30)
                return
            error = handle.exception(30)
            assert error is None or isinstance(error, PeerLostError)

        world.run(body)


def fake(size: int, **settings: float) -> tuple[LocalWorld, FakeClock]:
    clock = FakeClock()
    return LocalWorld(size, config=Config(**settings), clock=clock), clock  # type: ignore[arg-type]


def test_a_late_rank_is_named_to_those_who_wait_then_fails_the_operation() -> None:
    world, _ = fake(3, stall_warn=60.0, stall_fail=600.0)
    with warnings("rank 0: rank 1 (on memory) did not submit 'x' for 60 s") as log, world:

        def submit(session: Session) -> object:
            if rank_of(session) == 1:
                session.barrier_async().wait(30)
                return None
            handle = session.allreduce_async(ONES, "x")
            session.barrier_async().wait(30)  # now rank 0 knows of "x"
            return handle

        first, _, third = world.run(submit)
        world.advance(60.0)
        assert log.came.wait(30)
        world.advance(540.0)
        for handle in (first, third):
            error = handle.exception(30)  # type: ignore[union-attr,attr-defined]
            assert isinstance(error, StallError)
            assert "rank 1 (on memory) did not submit 'x' for 600 s" in str(error)

        def late(session: Session) -> None:
            if rank_of(session) == 1:
                with pytest.raises(StallError):
                    session.allreduce_async(ONES, "x").wait(30)

        world.run(late)
        assert works(world)


def test_operations_outstanding_at_shutdown_finish() -> None:
    with LocalWorld(3, switch=MemorySwitch(1, hold=5)) as world:

        def body(session: Session) -> list[float]:
            handles = [session.allreduce_async(np.ones(50_000), f"grad{i}") for i in range(5)]
            session.runtime.shutdown()
            assert not session.runtime.alive()
            assert session.runtime.error() is None
            return [float(handle.wait(0).sum()) for handle in handles]

        assert world.run(body) == [[50_000.0] * 5] * 3


@pytest.mark.parametrize("leaver", [0, 2])
def test_what_waits_for_a_rank_that_left_fails_and_the_rest_goes_on(leaver: int) -> None:
    others = [r for r in range(3) if r != leaver]
    pair = ProcessSet(others)
    with LocalWorld(3, [pair]) as world:
        left = threading.Event()

        def body(session: Session) -> list[float]:
            if rank_of(session) == leaver:
                threading.Thread(target=session.runtime.shutdown, daemon=True).start()
                left.set()
                return []
            left.wait()
            with pytest.raises(ShutdownError, match=f"rank {leaver}, which has shut down"):
                session.allreduce_async(ONES, "x").wait(30)
            return session.allreduce_async(ONES, "y", process_set=pair).wait(30).tolist()  # type: ignore[no-any-return]

        found = world.run(body)
        assert [found[r] for r in others] == [[1.0] * 3] * 2


def test_an_operation_after_the_end_is_refused() -> None:
    with LocalWorld(2) as world:

        def body(session: Session) -> None:
            session.runtime.shutdown()
            session.runtime.shutdown()
            with pytest.raises(
                ShutdownError, match="'x' was submitted after the runtime had ended"
            ):
                session.allreduce_async(ONES, "x")

        world.run(body)


def test_an_aborted_rank_takes_the_others_along() -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> CommError | None:
            handle = session.allreduce_async(ONES, "x") if rank_of(session) else None
            session.barrier_async().wait(30)
            if handle is None:
                session.runtime.abort(CommError("enough"))
                return session.runtime.error()
            return handle.exception(30)  # type: ignore[return-value]

        assert [str(error) for error in world.run(body)] == ["enough"] * 3


def test_a_final_goodbye_waits_for_nothing() -> None:
    with LocalWorld(3) as world:

        def body(session: Session) -> CommError | None:
            handle = session.allreduce_async(ONES, "x") if rank_of(session) else None
            session.barrier_async().wait(30)
            if rank_of(session) == 2:
                session.runtime.shutdown("KeyError: 'a'", final=True)
            return handle.exception(30) if handle is not None else None  # type: ignore[return-value]

        _, second, third = world.run(body)
        assert isinstance(second, ShutdownError)
        assert "rank 2, which has shut down (KeyError: 'a')" in str(second)
        assert isinstance(third, ShutdownError)


def test_a_failing_rank_ends_the_world_with_its_error() -> None:
    world = LocalWorld(3)
    with pytest.raises(ZeroDivisionError), world:

        def body(session: Session) -> None:
            if rank_of(session) == 1:
                raise ZeroDivisionError
            session.allreduce_async(ONES, "x").wait()

        world.run(body)
    assert not any(session.runtime.alive() for session in world.sessions)


def test_it_can_be_started_and_ended_again_and_again() -> None:
    before = threading.active_count()
    for _ in range(20):
        with LocalWorld(2) as world:
            assert works(world)
        assert threading.active_count() == before


def test_one_rank_alone_does_everything() -> None:
    with LocalWorld(1) as world:
        [session] = world.sessions
        assert session.allreduce_async(ONES).wait(30).tolist() == [1.0] * 3
        assert session.allgather_object("a", timeout=30) == ["a"]
        session.barrier_async().wait(30)


def test_the_trace_tells_what_moved_and_when() -> None:
    with LocalWorld(2) as world:
        world.run(lambda s: s.allreduce_async(np.ones(10, np.float32), "x").wait(30))
        for session in world.sessions:
            [record] = session.runtime.trace()
            assert (record.names, record.nbytes, record.wire_nbytes) == (("x",), 40, 40)
            assert record.submitted <= record.ready <= record.started <= record.done

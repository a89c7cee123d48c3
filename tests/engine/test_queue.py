from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from commrt.engine.handle import Handle
from commrt.engine.heart import Heart
from commrt.engine.queue import TensorQueue
from commrt.engine.submission import Submission
from commrt.errors import CommError, DuplicateNameError, EngineError, PeerLostError, ShutdownError
from commrt.testing import FakeClock
from commrt.types import Kind, Request, Signature, TensorSpec


class Bell:
    """Counts wakes."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def queue(bell: Bell | None = None) -> TensorQueue:
    return TensorQueue(bell or Bell(), FakeClock(7.0))


def submission(
    name: str = "", array: Any = None, kind: Kind = Kind.ALLREDUCE, set_id: int = 0
) -> Submission:
    array = np.zeros(4, np.float32) if array is None else array
    spec = TensorSpec(array.dtype.name, array.shape)
    request = Request(set_id, name, bool(name), Signature(kind, (spec,)))
    return Submission(request, (array,), (array,), Handle(name, lambda outcome: outcome, Heart()))


def test_what_is_accepted_wakes_the_engine_and_comes_out_once_in_order() -> None:
    bell = Bell()
    tensors = queue(bell)
    given = [submission("a"), submission("b")]
    for each in given:
        tensors.submit(each)
    assert bell.rung == 2
    assert tensors.names() == ["a", "b"]
    assert tensors.drain() == given
    assert tensors.drain() == []
    assert given[0].submitted == 7.0
    assert tensors.find((0, "a")) is given[0]


def test_a_name_in_flight_is_refused_until_it_has_ended() -> None:
    tensors = queue()
    first = submission("a")
    tensors.submit(first)
    second = submission("a")
    with pytest.raises(DuplicateNameError, match="'a' is in flight already"):
        tensors.submit(second)
    assert not second.handle.done()
    tensors.submit(submission("a", set_id=1))
    tensors.finish(first)
    tensors.submit(second)


def test_memory_in_flight_is_refused_until_it_is_free() -> None:
    tensors = queue()
    memory = np.zeros(8, np.float32)
    first = submission("a", memory[:5])
    tensors.submit(first)
    with pytest.raises(DuplicateNameError, match="'b' uses memory that 'a', still in flight"):
        tensors.submit(submission("b", memory[4:]))
    tensors.submit(submission("c", memory[5:]))
    tensors.fail((0, "a"), CommError("bad"))
    tensors.submit(submission("b", memory[:5]))
    assert tensors.names() == ["c", "b"]


def test_unnamed_ones_are_numbered_by_set_and_kind_when_they_are_accepted() -> None:
    tensors = queue()
    memory = np.zeros(4, np.float32)
    held = submission("", memory)
    tensors.submit(held)
    with pytest.raises(DuplicateNameError):
        tensors.submit(submission("", memory))
    others = [submission(), submission(kind=Kind.BROADCAST), submission(set_id=2), submission()]
    for each in others:
        tensors.submit(each)
    assert held.request.name == held.handle.name == "allreduce.unnamed.0"
    assert [each.request.name for each in others] == [
        "allreduce.unnamed.1",
        "broadcast.unnamed.0",
        "allreduce.unnamed.0",
        "allreduce.unnamed.2",
    ]


def test_a_failed_one_ends_with_its_error_and_others_go_on() -> None:
    tensors = queue()
    first, second = submission("a"), submission("b")
    tensors.submit(first)
    tensors.submit(second)
    error = EngineError("bad")
    tensors.fail((0, "a"), error)
    tensors.fail((0, "never submitted"), error)
    assert first.handle.exception() is error
    assert not second.handle.done()
    assert not tensors.empty()


def test_closing_fails_all_that_is_open_and_refuses_what_comes() -> None:
    tensors = queue()
    given = [submission("a"), submission("b")]
    for each in given:
        tensors.submit(each)
    error = PeerLostError("lost rank 1", [1], ["host"])
    tensors.close(error)
    tensors.close(EngineError("later"))
    assert [each.handle.exception() for each in given] == [error, error]
    assert tensors.drain() == []
    assert tensors.empty()
    with pytest.raises(PeerLostError) as caught:
        tensors.submit(submission("c"))
    assert caught.value is error


def test_after_a_shutdown_the_error_names_what_was_submitted() -> None:
    tensors = queue()
    tensors.close(ShutdownError("rank 0: the runtime was shut down"))
    with pytest.raises(ShutdownError, match="'grad' was submitted after the runtime had ended"):
        tensors.submit(submission("grad"))
    with pytest.raises(ShutdownError, match="'allreduce' was submitted"):
        tensors.submit(submission())


def test_a_callback_of_a_failed_one_may_submit_again() -> None:
    tensors = queue()
    given, refused = submission("a"), []

    def again(_: Handle) -> None:
        with pytest.raises(ShutdownError) as caught:
            tensors.submit(submission("b"))
        refused.append(caught.value)

    given.handle.add_done_callback(again)
    tensors.submit(given)
    tensors.close(ShutdownError("closed"))
    assert len(refused) == 1


def test_whatever_threads_submit_while_it_closes_ends_or_is_refused() -> None:
    for _ in range(20):
        tensors, start = queue(), threading.Barrier(4)
        accepted: list[Submission] = []

        def submit(number: int, into: Any = (tensors, start, accepted)) -> None:
            tensors, start, accepted = into
            start.wait()
            for i in range(20):
                each = submission(f"{number}.{i}")
                try:
                    tensors.submit(each)
                except ShutdownError:
                    return
                accepted.append(each)

        threads = [threading.Thread(target=submit, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        start.wait()
        tensors.close(ShutdownError("closed"))
        for thread in threads:
            thread.join()
        assert all(each.handle.done() for each in accepted)

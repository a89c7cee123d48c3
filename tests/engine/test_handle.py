from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from commrt.engine.handle import Handle, Outcome
from commrt.engine.heart import Heart
from commrt.errors import CommError, EngineError
from commrt.testing import FakeClock


def handle(wrap: Any = None) -> Handle:
    return Handle("grad", wrap or (lambda outcome: outcome.arrays), Heart())


def test_a_completed_one_gives_its_wrapped_result_again_and_again() -> None:
    wrapped: list[Outcome] = []

    def wrap(outcome: Outcome) -> str:
        wrapped.append(outcome)
        return "result"

    done = handle(wrap)
    assert not done.done()
    done.complete(Outcome((1,)))
    assert done.done()
    assert [done.wait(), done.wait(0), done.exception()] == ["result", "result", None]
    assert wrapped == [Outcome((1,))]


def test_a_failed_one_raises_its_error_to_everyone() -> None:
    failed, error = handle(), CommError("bad")
    failed.fail(error)
    for _ in range(2):
        with pytest.raises(CommError) as caught:
            failed.wait()
        assert caught.value is error
    assert failed.exception() is error


def test_the_first_end_counts() -> None:
    failed, error = handle(), CommError("first")
    failed.fail(error)
    failed.fail(CommError("second"))
    assert failed.exception() is error
    done = handle()
    done.complete(Outcome((1,)))
    done.fail(CommError("late"))
    assert done.wait() == (1,)


def test_a_timeout_leaves_it_going_on() -> None:
    late = handle()
    for wait in (late.wait, late.exception):
        with pytest.raises(TimeoutError, match=r"'grad' is not done after 0\.01 s; it goes on"):
            wait(0.01)
    assert not late.done()
    late.complete(Outcome((1,)))
    assert late.wait(0.01) == (1,)


def test_all_waiters_wake() -> None:
    waited, found = handle(), list[Any]()
    threads = [threading.Thread(target=lambda: found.append(waited.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    waited.complete(Outcome((1,)))
    for thread in threads:
        thread.join()
    assert found == [(1,)] * 8


def test_callbacks_are_called_once_at_the_end_or_at_once_after_it() -> None:
    called: list[str] = []
    done = handle()
    done.add_done_callback(lambda h: called.append(f"before {h.wait(0)}"))
    assert called == []
    done.complete(Outcome((1,)))
    done.add_done_callback(lambda h: called.append(f"after {h.wait(0)}"))
    assert called == ["before (1,)", "after (1,)"]


def test_an_error_of_a_callback_is_logged_and_the_next_one_is_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[Handle] = []

    def bad(_: Handle) -> None:
        raise ZeroDivisionError

    failed = handle()
    failed.add_done_callback(bad)
    failed.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR, "commrt.engine"):
        failed.fail(CommError("bad"))
    assert called == [failed]
    assert "a callback of 'grad' raised" in caplog.text


def test_it_can_be_awaited_by_many_tasks() -> None:
    awaited = handle()

    async def wait() -> Any:
        return await awaited

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=awaited.complete, args=(Outcome((1,)),)).start()
        return [*await asyncio.gather(*tasks), await awaited]

    assert asyncio.run(main()) == [(1,)] * 4


def test_awaiting_raises_its_error() -> None:
    failed = handle()
    failed.fail(CommError("bad"))

    async def main() -> None:
        with pytest.raises(CommError, match="bad"):
            await failed

    asyncio.run(main())


def test_a_cancelled_await_leaves_the_operation_going_on() -> None:
    awaited = handle()

    async def main() -> Any:
        async def wait() -> Any:
            return await awaited

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        awaited.complete(Outcome((1,)))
        return await awaited

    assert asyncio.run(main()) == (1,)


def test_a_stuck_engine_is_named_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    heart, clock = Heart(), FakeClock()
    monkeypatch.setattr("commrt.engine.heart.monotonic", clock)
    heart.describe = lambda: "'grad'"
    heart.beat()
    clock.advance(29.0)
    heart.check()
    clock.advance(2.0)
    with pytest.raises(EngineError, match="in one call for 31 s, moving 'grad'"):
        heart.check()
    heart.rest()
    clock.advance(1000.0)
    heart.check()


def test_the_time_that_callers_wait_is_added_up() -> None:
    heart = Heart()
    late = Handle("grad", lambda outcome: outcome, heart)
    with pytest.raises(TimeoutError):
        late.wait(0.01)
    waited = heart.exposed()
    assert waited >= 0.01
    late.complete(Outcome(()))
    late.wait()
    assert heart.exposed() == waited


def test_who_waits_wakes_an_engine_for_which_that_matters() -> None:
    heart, woken = Heart(), []
    heart.wake = lambda: woken.append(True)
    handle = Handle("x", lambda outcome: outcome, heart)
    with pytest.raises(TimeoutError):
        handle.wait(0.02)
    assert handle.wanted(long=False)
    assert (heart.asked, woken) == (True, [])
    heart.blocked = 0.0
    with pytest.raises(TimeoutError):
        handle.wait(0.02)
    assert woken


def test_one_look_is_no_waiting_but_many_are() -> None:
    heart = Heart()
    heart.blocked = 0.0
    handle = Handle("x", lambda outcome: outcome, heart)
    assert not handle.done()
    assert not handle.wanted(long=False)
    deadline = time.monotonic() + 10
    while not handle.wanted(long=False):
        assert not handle.done()
        assert time.monotonic() < deadline


def test_who_has_asked_to_be_called_back_may_be_waiting_after_a_while() -> None:
    handle = Handle("x", lambda outcome: outcome, Heart())
    assert not handle.wanted(long=True)
    handle.add_done_callback(lambda _: None)
    assert not handle.wanted(long=False)
    assert handle.wanted(long=True)

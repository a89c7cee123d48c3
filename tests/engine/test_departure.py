from __future__ import annotations

import threading

from commrt.core import wire
from commrt.core.actions import Action, SendControl, Stop
from commrt.core.member import Member
from commrt.engine.departure import Departure
from commrt.errors import CommError, ShutdownError


def nobody() -> None:
    return None


def parts(patience: float = 10.0) -> tuple[Departure, Member]:
    return Departure(2, patience, nobody), Member(2, ["host"] * 3, 60.0)


def sent(actions: list[Action]) -> list[wire.Message]:
    return [action.message for action in actions if isinstance(action, SendControl)]


def test_nothing_follows_from_nothing() -> None:
    departure, member = parts()
    assert departure.actions(member, True, True, 0.0) == []
    assert departure.deadline() is None


def test_one_who_asks_leaves_once_and_then_waits_for_the_answer() -> None:
    departure, member = parts()
    departure.ask("done", False, nobody)
    departure.ask("again", True, nobody)
    assert sent(departure.actions(member, False, True, 5.0)) == [wire.Leaving("done", False)]
    assert departure.actions(member, False, True, 14.9) == []
    assert departure.deadline() == 15.0


def test_one_whose_patience_ends_goes_without_an_answer() -> None:
    departure, member = parts()
    departure.ask("done", False, nobody)
    departure.actions(member, False, True, 5.0)
    *before, stop = departure.actions(member, False, True, 15.0)
    assert sent(before) == [wire.Leaving("done", True)]
    assert isinstance(stop, Stop)
    assert isinstance(stop.error, ShutdownError)
    text = "rank 2 has shut down (done) with operations still open after 10 s"
    assert str(stop.error) == text
    [*_, stop] = departure.actions(member, True, True, 16.0)
    assert isinstance(stop, Stop)
    assert str(stop.error) == "rank 2 has shut down (done)"


def test_a_final_one_is_at_the_end_of_its_patience_at_once() -> None:
    departure, member = parts()
    departure.ask("exception", True, nobody)
    departure.actions(member, False, True, 5.0)
    assert departure.deadline() == 5.0
    assert isinstance(departure.actions(member, False, True, 5.0)[-1], Stop)


def test_the_first_abort_ends_everything() -> None:
    departure, member = parts()
    error = CommError("enough")
    departure.ask("done", False, nobody)
    departure.abort(error, nobody)
    departure.abort(CommError("more"), nobody)
    assert departure.actions(member, False, True, 0.0) == [Stop(error, ours=True)]


def test_a_report_is_on_its_way_when_the_call_returns() -> None:
    departure, member = parts()
    woken = threading.Event()

    def report() -> None:
        departure.report(1, "x", "bad", woken.set)

    thread = threading.Thread(target=report)
    thread.start()
    assert woken.wait(30)
    assert thread.is_alive()
    assert sent(departure.actions(member, True, True, 0.0)) == [wire.Report(1, "x", "bad")]
    thread.join()
    assert departure.actions(member, True, True, 0.0) == []

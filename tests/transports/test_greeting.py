"""How two ranks make sure that both belong to this job. No byte travels here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.transports.greeting import Badge, Caller, Greeting, Host

KEY = bytes(range(32))
TWO, FIVE = Badge(KEY, 3, 2), Badge(KEY, 3, 5)

Tamper = Callable[[int, bytes], bytes]
"""Changes what is said in a turn: 0 and 2 are the caller's."""


def unchanged(turn: int, said: bytes) -> bytes:
    return said


def greet(caller: Caller, host: Host, tamper: Tamper = unchanged) -> list[bytes]:
    """Let them talk to the end; return what was said. Raises ValueError."""
    said = [caller.hello]
    sides: list[Greeting] = [host, caller]
    for turn in range(3):
        said.append(told(sides[turn % 2], tamper(turn, said[turn])))
    return said


def told(side: Greeting, data: bytes) -> bytes:
    assert len(data) == side.expects
    return side.answer(data)


def test_two_ranks_of_a_job_know_each_other_in_the_end() -> None:
    caller, host = Caller(TWO, 5), Host(FIVE)
    *_, last = greet(caller, host)
    assert (caller.expects, host.expects, last) == (0, 0, b"")
    assert (caller.peer, host.peer) == (5, 2)


def test_a_caller_without_the_key_does_not_get_in() -> None:
    caller, host = Caller(replace(TWO, key=bytes(32)), 5), Host(FIVE)
    answer = told(host, caller.hello)
    with pytest.raises(ValueError, match="does not know this job's key"):
        told(caller, answer)
    with pytest.raises(ValueError, match="does not know this job's key"):
        told(host, bytes(host.expects))
    assert host.expects


def test_a_host_without_the_key_gets_nothing() -> None:
    caller, host = Caller(TWO, 5), Host(replace(FIVE, key=bytes(32)))
    with pytest.raises(ValueError, match="does not know this job's key"):
        told(caller, told(host, caller.hello))
    assert caller.expects


@pytest.mark.parametrize("host", [replace(FIVE, generation=4), replace(FIVE, rank=4)])
def test_a_caller_that_looks_for_another_start_or_rank_is_turned_away_at_once(host: Badge) -> None:
    with pytest.raises(ValueError, match="looks for another job"):
        told(Host(host), Caller(TWO, 5).hello)


def test_something_else_than_a_rank_is_turned_away_at_once() -> None:
    host = Host(FIVE)
    said = b"GET / HTTP/1.1\r\nHost: somewhere\r\n"
    with pytest.raises(ValueError, match="no commrt"):
        told(host, said.ljust(host.expects))


@given(st.data())
def test_a_single_changed_bit_is_noticed_by_the_side_that_hears_it_or_by_the_caller(
    data: st.DataObject,
) -> None:
    changed = data.draw(st.integers(0, 2), "turn")

    def flip(turn: int, said: bytes) -> bytes:
        if turn != changed:
            return said
        bit = data.draw(st.integers(0, 8 * len(said) - 1), "bit")
        flipped = bytearray(said)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    caller, host = Caller(TWO, 5), Host(FIVE)
    with pytest.raises(ValueError):
        greet(caller, host, flip)
    assert host.expects, "it let somebody in"
    assert bool(caller.expects) == (changed < 2)


@given(st.binary(min_size=64, max_size=64), st.booleans())
def test_whatever_strangers_say_ends_in_a_refusal(said: bytes, knows_hello: bool) -> None:
    host, caller = Host(FIVE), Caller(TWO, 5)
    if knows_hello:
        told(host, caller.hello)
    for side in (host, caller):
        with pytest.raises(ValueError):
            told(side, said[: side.expects])
        assert side.expects, "it let somebody in"


def test_a_recorded_talk_opens_no_door() -> None:
    hello, answer, proof, _ = greet(Caller(TWO, 5), Host(FIVE))
    host = Host(FIVE)
    told(host, hello)
    with pytest.raises(ValueError):
        told(host, proof)
    with pytest.raises(ValueError):
        told(Caller(TWO, 5), answer)


def test_what_a_side_has_said_is_no_proof_if_it_is_said_back() -> None:
    caller, host = Caller(TWO, 5), Host(FIVE)
    with pytest.raises(ValueError):
        told(caller, caller.hello.ljust(caller.expects))
    answer = told(host, Caller(TWO, 5).hello)
    with pytest.raises(ValueError):
        told(host, answer[-host.expects :])


def test_the_answer_of_one_talk_does_not_serve_in_another() -> None:
    first, second = Caller(TWO, 5), Caller(TWO, 5)
    with pytest.raises(ValueError):
        told(second, told(Host(FIVE), first.hello))


def test_no_rank_can_be_led_to_another_one() -> None:
    caller = Caller(TWO, 5)
    with pytest.raises(ValueError):
        told(Host(replace(FIVE, rank=4)), caller.hello)  # as if 4 were 5
    stray = Caller(replace(TWO, rank=3), 5)
    with pytest.raises(ValueError):
        told(caller, told(Host(FIVE), stray.hello))


def test_no_two_talks_are_alike() -> None:
    talks = [greet(Caller(TWO, 5), Host(FIVE))[:3] for _ in range(50)]
    assert all(len(set(said)) == len(talks) for said in zip(*talks, strict=True))

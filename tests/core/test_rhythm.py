from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.core.rhythm import LONGEST, Beat, Rhythm, Turn, provable
from commrt.types import Agreed, Kind, ReduceOp, Signature, TensorSpec


def turn(name: str, sound: bool = True) -> Turn:
    """One bucket of one operation; small letters are names, capitals stand for unnamed ones."""
    signature = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (len(name), ord(name[0]))),))
    named = name.islower()
    agreed = Agreed(name if named else "allreduce.unnamed.7", signature)
    return Turn(0, (Beat(agreed, named, name, (((), ()),)),), sound)


def planned(stream: str, needed: int = 3) -> str:
    """Play a stream; return the first plan found, and behind a space how far it had come."""
    rhythm = Rhythm(needed)
    for place, letter in enumerate(stream):
        if rhythm.begins(turn(letter)):
            rhythm.end_step()
            plan = rhythm.plan()
            if plan:
                names = "".join(str(t.beats[0].ident) for t in plan)
                return f"{names} {place}"
        rhythm.add(turn(letter))
    return ""


def test_a_step_seen_three_times_is_a_plan() -> None:
    assert planned("abc" * 5) == "abc 9"


def test_the_order_in_which_a_step_came_last_counts() -> None:
    assert planned("abcacbbcaabc") == "bca 9"


def test_what_has_no_name_ends_no_step_that_has_names() -> None:
    assert planned("aMbM" * 5) == "aMbM 12"


def test_where_nothing_has_a_name_a_step_ends_when_something_comes_again() -> None:
    assert planned("MN" * 5) == "MN 6"


def test_what_had_a_name_once_does_not_keep_what_has_none_from_a_rhythm() -> None:
    assert planned("a" + "M" * 20) == "M 12"


def test_what_comes_before_the_first_name_delays_a_plan_only() -> None:
    assert planned("MMab" * 6) == "abMM 18"


@given(st.integers(1, LONGEST))
def test_a_period_of_several_steps_is_found(period: int) -> None:
    step = "".join("s" + letter for letter in "abcdefgh"[:period])
    found = planned(step * 5)
    assert found == f"{step} {3 * len(step)}"


def test_a_period_of_too_many_steps_is_not() -> None:
    assert planned("".join("s" + letter for letter in "abcdefghi") * 6) == ""


def test_what_is_different_now_and_then_must_repeat_anew() -> None:
    assert planned("ab" * 2 + "axb" + "ab" * 4) == "ab 13"


def test_steps_with_what_proves_nothing_are_no_plan() -> None:
    rhythm = Rhythm()
    for _ in range(12):
        for each in (turn("a"), turn("b", sound=False)):
            if rhythm.begins(each):
                rhythm.end_step()
            rhythm.add(each)
    assert rhythm.plan() == ()


def test_a_plan_that_did_not_hold_makes_the_next_one_wait_longer() -> None:
    rhythm = Rhythm()
    seen = []
    for _ in range(7):
        seen.append(rhythm._needed)
        rhythm = rhythm.after(held=False)
    assert seen == [3, 6, 12, 24, 48, 96, 96]
    assert rhythm.after(held=True)._needed == 3


def test_a_step_that_never_ends_takes_no_memory() -> None:
    rhythm = Rhythm()
    for number in range(20_000):
        each = turn("abcdefghij"[number % 10] * (1 + number // 10))
        if rhythm.begins(each):
            rhythm.end_step()
        rhythm.add(each)
        assert len(rhythm._turns) < 5000
        assert len(rhythm._keys) < 5000
    assert rhythm.plan() == ()


FLOAT = TensorSpec("float32", ())


@pytest.mark.parametrize(
    ("signature", "rows", "proves"),
    [
        (Signature(Kind.ALLREDUCE, (FLOAT,)), (), True),
        (Signature(Kind.ALLREDUCE, (TensorSpec("float32", (0,)),)), (), False),
        (Signature(Kind.ALLREDUCE, (TensorSpec("float16", (3,)),)), (), False),
        (Signature(Kind.ALLREDUCE, (TensorSpec("float16", (4,)),)), (), True),
        (Signature(Kind.ALLREDUCE, (TensorSpec("int32", (3,)),), ReduceOp.AVERAGE), (), False),
        (Signature(Kind.ALLREDUCE, (TensorSpec("int32", (3,)),), ReduceOp.SUM), (), True),
        (Signature(Kind.ALLREDUCE, (FLOAT,), ReduceOp.ADASUM), (), False),
        (Signature(Kind.ALLREDUCE, (FLOAT,), codec="fp16"), (), False),
        (Signature(Kind.REDUCESCATTER, (TensorSpec("float32", (4, 1)),)), (), True),
        (Signature(Kind.REDUCESCATTER, (TensorSpec("float32", (3, 9)),)), (), False),
        (Signature(Kind.REDUCESCATTER, (FLOAT,)), (), False),
        (Signature(Kind.ALLGATHER, (TensorSpec("float32", (0, 2)),)), ((1, 1, 2, 9),), True),
        (Signature(Kind.ALLGATHER, (TensorSpec("float32", (0, 2)),)), ((1, 0, 2, 9),), False),
        (Signature(Kind.ALLGATHER, (TensorSpec("float32", (0, 0)),)), ((1, 1, 2, 9),), False),
        (Signature(Kind.ALLTOALL, (TensorSpec("float32", (0,)),)), ((1, 2),) * 2, True),
        (Signature(Kind.ALLTOALL, (TensorSpec("float32", (0,)),)), ((1, 0),) * 2, False),
        (Signature(Kind.BROADCAST, (FLOAT,), root=0), (), False),
        (Signature(Kind.BARRIER, ()), (), False),
        (Signature(Kind.JOIN, ()), (), False),
    ],
)
def test_only_what_needs_all_four_members_proves_that_all_have_begun(
    signature: Signature, rows: tuple[tuple[int, ...], ...], proves: bool
) -> None:
    assert provable(Agreed("x", signature, rows), 4) == proves

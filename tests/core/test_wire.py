from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.core import wire
from commrt.testing.strategies import signatures
from commrt.types import Request

ROWS = st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple)
REQUESTS = st.builds(
    Request,
    st.integers(0, 9),
    st.text(max_size=5),
    st.booleans(),
    signatures(),
    ROWS,
    ROWS,
    st.text(max_size=5),
)
BY_ID = st.dictionaries(st.integers(0, 1 << 40), ROWS, max_size=2)


@given(
    st.builds(
        wire.Ready,
        st.lists(REQUESTS, max_size=2).map(tuple),
        st.integers(0, 1 << 40),
        st.binary(max_size=4),
        BY_ID,
        BY_ID,
        st.booleans(),
    )
)
@settings(max_examples=50)
def test_what_is_ready_arrives_as_it_was_sent(message: wire.Ready) -> None:
    assert wire.decode(wire.encode(3, message)) == (3, message)


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello(),
        wire.Welcome(),
        wire.Report(1, "x", "bad"),
        wire.Leaving("done", True),
        wire.Failed(1, "x", "StallError", "late"),
        wire.Forgotten((1, 9)),
        wire.Deviate(3, "it leaves"),
        wire.Freeze(3),
        wire.Frozen(3, {0: 7, 2: 1}),
        wire.Unlock(4, "Rank 1: it leaves", {0: 6}, {0: 7}),
        wire.Stalled("late"),
        wire.Left((1, 2)),
        wire.Farewell(),
        wire.Lost((1,), ("killed",)),
        wire.Stop("CommError", ""),
    ],
)
def test_every_other_message_arrives_as_it_was_sent(message: wire.Message) -> None:
    assert wire.decode(wire.encode(7, message)) == (7, message)


@st.composite
def schedules(draw: st.DrawFn) -> wire.Schedule:
    rows = st.lists(ROWS, max_size=2).map(tuple)
    items = st.lists(st.builds(wire.Item, st.integers(-1, 99), st.text(max_size=3), rows, ROWS))
    bucket = st.builds(wire.Scheduled, st.integers(0, 99), st.integers(0, 9), items.map(tuple))
    return wire.Schedule(tuple(draw(st.lists(bucket, max_size=3))))


@given(st.deferred(schedules))
@settings(max_examples=50)
def test_a_schedule_arrives_as_it_was_sent(message: wire.Schedule) -> None:
    assert wire.decode(wire.encode(0, message)) == (0, message)


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_garbage_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a control message"):
        wire.decode(data)


@given(st.binary(min_size=1, max_size=4), st.integers(0, 200))
@settings(max_examples=500)
def test_a_damaged_message_is_another_message_or_a_value_error(damage: bytes, at: int) -> None:
    data = wire.encode(1, wire.Failed(1, "name", "MismatchError", "the shape differs" * 5))
    try:
        generation, message = wire.decode(data[:at] + damage + data[at + len(damage) :])
    except ValueError:
        return
    assert isinstance(message, wire.Message)
    assert isinstance(generation, int)


@pytest.mark.parametrize("depth", [10, 100_000])
def test_bottomless_garbage_is_a_value_error_or_passed_over(depth: int) -> None:
    data = b"\x92\x00\x92\xa5hello" + b"\x91" * depth + b"\xc0"
    try:
        assert wire.decode(data) == (0, wire.Hello())
    except ValueError:
        assert depth > 10


def test_a_message_of_another_shape_is_a_value_error() -> None:
    for wrong in ([0, ["hallo"]], [0, ["report", 1]], [0, 0, ["hello"]], {"a": 1}, None):
        with pytest.raises(ValueError, match="not a control message"):
            wire.decode(msgspec.msgpack.encode(wrong))


@given(st.sets(st.integers(0, 3000)))
def test_ids_come_back_from_their_bits_in_order(ids: set[int]) -> None:
    assert wire.bits_to_ids(*wire.ids_to_bits(ids)) == sorted(ids)


@given(st.sets(st.integers(0, 3000), min_size=1))
def test_the_bits_are_as_long_as_the_ids_spread(ids: set[int]) -> None:
    base, bits = wire.ids_to_bits(ids)
    assert base == min(ids)
    assert len(bits) == (max(ids) - min(ids)) // 8 + 1

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.testing import MemorySwitch


def array(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_a_send_is_through_only_when_its_message_is_delivered() -> None:
    switch = MemorySwitch()
    sent = switch.wire(0).send(1, 5, array(1, 2))
    assert not any(sent() for _ in range(10))
    into = array(0, 0)
    coming = switch.wire(1).receive(0, 5, into)
    assert coming.test()
    assert sent()
    assert into.tolist() == [1, 2]
    assert switch.left() == {}


def test_what_travels_is_what_the_array_holds_when_it_is_delivered() -> None:
    switch, data, into = MemorySwitch(), array(1), array(0)
    switch.wire(0).send(1, 5, data)
    data[:] = 7
    assert switch.wire(1).receive(0, 5, into).test()
    assert into.tolist() == [7]


def test_an_eager_send_is_through_at_once_with_what_the_array_held() -> None:
    switch, data, into = MemorySwitch(eager=4), array(1), array(0)
    assert switch.wire(0).send(1, 5, data)()
    data[:] = 7
    assert switch.wire(1).receive(0, 5, into).test()
    assert into.tolist() == [1]
    assert not switch.wire(0).send(1, 5, array(1, 2))()


@given(st.integers(0, 20), st.integers(0, 1 << 32))
def test_a_held_message_comes_after_so_many_looks(hold: int, seed: int) -> None:
    switch, into = MemorySwitch(seed, hold), array(0)
    switch.wire(0).send(1, 5, array(1))
    coming = switch.wire(1).receive(0, 5, into)
    looks = next(i for i in range(hold + 2) if coming.test())
    assert looks <= hold
    again = MemorySwitch(seed, hold)
    again.wire(0).send(1, 5, array(1))
    coming = again.wire(1).receive(0, 5, into)
    assert next(i for i in range(hold + 2) if coming.test()) == looks


@given(
    st.lists(st.sampled_from(("send", "ask", "look")), max_size=60),
    st.integers(0, 3),
    st.integers(0, 1 << 32),
)
@settings(max_examples=200)
def test_messages_of_one_route_keep_their_order(calls: list[str], hold: int, seed: int) -> None:
    switch = MemorySwitch(seed, hold)
    into, coming, sent = [], [], []
    for call in calls:
        if call == "send":
            sent.append(switch.wire(0).send(1, 2, array(len(sent))))
        elif call == "ask":
            into.append(array(-1))
            coming.append(switch.wire(1).receive(0, 2, into[-1]))
        else:
            arrived = [c.test() for c in coming]
            assert arrived == sorted(arrived, reverse=True)
    both = min(len(sent), len(coming))
    for _ in range(hold * both + both + 1):
        arrived = [c.test() for c in coming]
    assert arrived == [i < both for i in range(len(coming))] if coming else True
    assert [float(a[0]) for a in into] == [float(i) if i < both else -1 for i in range(len(into))]
    assert [test() for test in sent] == [i < both for i in range(len(sent))]


def test_routes_are_apart_by_peer_and_tag() -> None:
    switch = MemorySwitch()
    for source, tag in ((0, 2), (0, 3), (2, 2)):
        switch.wire(source).send(1, tag, array(10 * source + tag))
    found = {}
    for source, tag in ((2, 2), (0, 3), (0, 2)):
        into = array(0)
        assert switch.wire(1).receive(source, tag, into).test()
        found[source, tag] = into[0]
    assert found == {(0, 2): 2, (0, 3): 3, (2, 2): 22}


def test_a_request_taken_back_leaves_its_message_to_the_next() -> None:
    switch, first, second = MemorySwitch(), array(0), array(0)
    coming = switch.wire(1).receive(0, 5, first)
    coming.cancel()
    switch.wire(0).send(1, 5, array(1))
    assert switch.wire(1).receive(0, 5, second).test()
    assert (first[0], second[0]) == (0, 1)


def test_what_finds_no_partner_is_counted() -> None:
    switch = MemorySwitch()
    switch.wire(0).send(1, 5, array(1))
    switch.wire(1).receive(2, 5, array(1))
    assert switch.left() == {(0, 1, 5): (1, 0), (2, 1, 5): (0, 1)}


def test_a_message_of_another_size_is_an_error_that_names_both() -> None:
    switch = MemorySwitch()
    switch.wire(0).send(1, 5, array(1))
    coming = switch.wire(1).receive(0, 5, array(1, 2))
    with pytest.raises(
        AssertionError, match="rank 0 sent 4 bytes with tag 5, but rank 1 expects 8"
    ):
        coming.test()


def test_threads_may_meet_on_it() -> None:
    switch = MemorySwitch(1, hold=3)

    def exchange(rank: int) -> None:
        wire = switch.wire(rank)
        for i in range(200):
            into = array(-1)
            tests = [wire.receive(1 - rank, 0, into).test, wire.send(1 - rank, 0, array(i))]
            while tests:
                tests = [test for test in tests if not test()]
            assert into[0] == i

    threads = [threading.Thread(target=exchange, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert switch.left() == {}

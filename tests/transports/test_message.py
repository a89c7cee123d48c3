from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commrt.testing.wire import MemorySwitch
from commrt.transports.arrays import Scratch
from commrt.transports.base import Channel, Members
from commrt.transports.message import MessageTransport, _tag


@given(st.integers(0, 1 << 40))
def test_operations_in_flight_have_tags_of_their_own_that_any_mpi_allows(number: int) -> None:
    tags = [_tag(Channel(1, number + i, stage)) for i in range(64) for stage in range(16)]
    pairs = {tag + side for tag in tags for side in (0, 1)}
    assert len(pairs) == 2 * len(tags)
    assert 0 <= min(pairs) <= max(pairs) < 32768


def test_a_work_names_those_whose_data_is_missing() -> None:
    switch, array, channel = MemorySwitch(), np.zeros(4, np.float32), Channel(1, 0, 0)
    ranks = (3, 5, 9)
    works = [
        MessageTransport(switch.wire(rank)).broadcast(
            Members(ranks, index), channel, array, np.zeros(4, np.float32), 0
        )
        for index, rank in enumerate(ranks)
    ]
    assert not works[1].progress()
    assert works[1].waiting_for() == (3,)
    assert not works[0].progress()
    assert works[0].waiting_for() == (9,)
    assert works[1].progress()
    assert works[1].waiting_for() == ()
    assert works[2].progress()
    assert works[0].progress()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 9)), max_size=40))
def test_scratch_in_use_shares_no_byte(calls: list[tuple[bool, int, int]]) -> None:
    scratch = Scratch(64)
    held: list[np.ndarray] = []
    for number, (take, n, victim) in enumerate(calls):
        if take or not held:
            array = scratch.take(n, np.dtype(np.float32 if n % 2 else np.uint8))
            array[:] = number
            held.append(array)
            array.flags.writeable = True
        else:
            scratch.give(held.pop(victim % len(held)))
        assert all(len(set(a.tolist())) <= 1 for a in held)
        assert not any(np.shares_memory(a, b) for i, a in enumerate(held) for b in held[:i])

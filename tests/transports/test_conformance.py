"""Every transport that runs in one process, held against the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.testing.wire import MemorySwitch
from commrt.transports.local import LocalTransport
from commrt.transports.message import MessageTransport
from transports.conformance import CHECKS, OneProcess, Party

Check = Callable[[Party, int], None]
NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]


@st.composite
def over_memory(draw: st.DrawFn) -> OneProcess:
    size = draw(st.integers(1, 9))
    switch = MemorySwitch(
        draw(st.integers(0, 1 << 32)),
        hold=draw(st.sampled_from((0, 1, 5, 20))),
        eager=draw(st.sampled_from((-1, 64, 1 << 20))),
    )
    small = draw(st.sampled_from((0, 64, 64 << 10)))
    segment = draw(st.sampled_from((1, 64, 1000, 1 << 20)))
    parts = {r: MessageTransport(switch.wire(r), small, segment) for r in range(size)}
    return OneProcess(parts, switch, draw(st.integers(0, 1 << 14)))


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
@given(over_memory(), st.integers(0, 1 << 32))
@settings(max_examples=100)
def test_message_transport_over_memory(check: Check, party: OneProcess, seed: int) -> None:
    check(party, seed)


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
@given(st.integers(0, 1 << 32))
@settings(max_examples=40)
def test_local_transport(check: Check, seed: int) -> None:
    check(OneProcess({0: LocalTransport()}), seed)

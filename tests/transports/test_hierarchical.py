"""Several ranks on each of several hosts, all in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.kernels.reduction import Reduction
from commrt.testing.wire import MemorySwitch
from commrt.transports.base import Channel, Flat, Incoming, Members, Test, Unwakeable, Wire
from commrt.transports.hierarchical import HierarchicalTransport
from commrt.transports.message import MessageTransport
from commrt.types import ReduceOp
from transports.conformance import CHECKS, OneProcess, Party
from transports.hosts import host

NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]


@st.composite
def homes(draw: st.DrawFn) -> list[list[int]]:
    """Ranks of 1 to 4 hosts, as launchers place them: one host after the other, or in turn."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    if draw(st.booleans()):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [list(range(a, a + n)) for a, n in zip(starts, sizes, strict=True)]
    order = [i for turn in range(3) for i, n in enumerate(sizes) if turn < n]
    return [[rank for rank, i in enumerate(order) if i == j] for j in range(len(sizes))]


def party(
    stack: ExitStack, hosts: list[list[int]], switch: MemorySwitch, start: int, piece: int
) -> OneProcess:
    parts = {}
    for ranks in hosts:
        near = stack.enter_context(host(ranks, 64, 1000))
        for rank in ranks:
            far = MessageTransport(switch.wire(rank), 64, 1000)
            parts[rank] = HierarchicalTransport(near[rank], far, hosts, piece)
    return OneProcess(dict(sorted(parts.items())), switch, start)


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
@given(
    homes(), st.sampled_from((0, 5)), st.sampled_from((-1, 1 << 20)), st.integers(0, 1 << 14),
    st.sampled_from((100, 1000, 1 << 20)), st.integers(0, 1 << 32),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_it_conforms(
    check: Callable[[Party, int], None], hosts: list[list[int]], hold: int, eager: int,
    start: int, piece: int, seed: int,
) -> None:  # fmt: skip
    with ExitStack() as stack:
        check(party(stack, hosts, MemorySwitch(seed, hold, eager), start, piece), seed)


class Counting(Unwakeable):
    """A wire that counts the bytes it sends to each rank."""

    def __init__(self, wire: Wire) -> None:
        self.sent: Counter[int] = Counter()
        self._wire = wire

    def send(self, peer: int, tag: int, data: Flat) -> Test:
        self.sent[peer] += data.nbytes
        return self._wire.send(peer, tag, data)

    def receive(self, peer: int, tag: int, data: Flat) -> Incoming:
        return self._wire.receive(peer, tag, data)

    def close(self, orderly: bool) -> None:
        self._wire.close(orderly)


@pytest.mark.parametrize("piece", [5000, 1 << 20])
@pytest.mark.parametrize("hosts", [[[0, 1], [2, 3]], [[0, 2], [1, 3, 4]], [[0, 1], [2, 3], [4, 5]]])
def test_a_host_sends_as_much_as_one_rank_would(hosts: list[list[int]], piece: int) -> None:
    n, switch = 12_000, MemorySwitch()
    with ExitStack() as stack:
        wires, parts = {}, {}
        for ranks in hosts:
            near = stack.enter_context(host(ranks, 64, 1000))
            for rank in ranks:
                wires[rank] = Counting(switch.wire(rank))
                far = MessageTransport(wires[rank], 64, 1000)
                parts[rank] = HierarchicalTransport(near[rank], far, hosts, piece)
        everyone = sorted(parts)
        arrays = {rank: np.full(n, rank + 1, np.float32) for rank in everyone}
        works = [
            parts[rank].allreduce(
                Members(tuple(everyone), place), Channel(0, 0, 0), arrays[rank], arrays[rank],
                Reduction(ReduceOp.SUM),
            )
            for place, rank in enumerate(everyone)
        ]  # fmt: skip
        while works:
            works = [work for work in works if not work.progress()]
    assert all((array == sum(r + 1 for r in everyone)).all() for array in arrays.values())
    across = 2 * (len(hosts) - 1) * 4 * n // len(hosts)
    assert [sum(sum(wires[r].sent.values()) for r in ranks) for ranks in hosts] == [across] * len(
        hosts
    )
    assert not any(wires[r].sent[peer] for ranks in hosts for r in ranks for peer in ranks)

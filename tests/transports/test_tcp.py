"""The TCP wire between ranks of one process."""

from __future__ import annotations

import gc
import os
import random
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.errors import PeerLostError
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Flat, Members
from commrt.transports.greeting import Badge, Caller
from commrt.transports.message import MessageTransport
from commrt.transports.tcp import TcpWire, listen
from commrt.types import ReduceOp
from transports.conformance import CHECKS, KINDS, OneProcess, Operation, Party

KEY = bytes(range(32))
NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]
LARGE = 8 << 20
"""More bytes than the kernel keeps for a connection."""


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test gives all descriptors back."""
    before = descriptors()
    yield
    assert descriptors() == before


def make_wires(size: int) -> tuple[dict[int, TcpWire], dict[int, tuple[str, int]]]:
    listeners = [listen("127.0.0.1") for _ in range(size)]
    addresses = {rank: door.getsockname() for rank, door in enumerate(listeners)}
    return {
        rank: TcpWire(door, Badge(KEY, 1, rank), addresses) for rank, door in enumerate(listeners)
    }, addresses


@contextmanager
def job(size: int) -> Iterator[dict[int, TcpWire]]:
    """Yield the wire of each rank."""
    wires, _ = make_wires(size)
    try:
        yield wires
    finally:
        for wire in wires.values():
            wire.close(orderly=True)


class OverTcp(OneProcess):
    """Ranks of this process over TCP."""

    def __init__(self, wires: Mapping[int, TcpWire], small: int, segment: int, start: int) -> None:
        transports = {r: MessageTransport(wire, small, segment) for r, wire in wires.items()}
        super().__init__(transports, start=start)
        self._wires = wires

    def clean(self) -> bool:
        return not any(
            stream._early or stream._reader.slip or stream._missing or stream._outbox
            for wire in self._wires.values()
            for stream in wire._streams.values()
        )


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
@given(
    st.integers(1, 6), st.sampled_from((0, 64, 64 << 10)), st.sampled_from((1, 64, 1000, 1 << 20)),
    st.integers(0, 1 << 14), st.integers(0, 1 << 32),
)  # fmt: skip
@settings(max_examples=50)
def test_it_conforms(
    check: Callable[[Party, int], None], size: int, small: int, segment: int, start: int, seed: int
) -> None:
    with job(size) as wires:
        check(OverTcp(wires, small, segment, start), seed)


# Messages


def content(seed: int, nbytes: int) -> Flat:
    return np.random.default_rng(seed).integers(0, 256, nbytes).astype(np.uint8)


def settle(*tests: Callable[[], bool]) -> None:
    left = list(tests)
    for _ in range(1_000_000):
        left = [test for test in left if not test()]
        if not left:
            return
    raise AssertionError(f"{len(left)} messages do not come through")


def meet(wires: Mapping[int, TcpWire], one: int = 0, two: int = 1) -> None:
    """Let two ranks exchange a message, so that they are connected."""
    nothing = np.zeros(0, np.uint8)
    settle(*(
        test for own, peer in ((one, two), (two, one))
        for test in (wires[own].send(peer, 0, nothing), wires[own].receive(peer, 0, nothing).test)
    ))  # fmt: skip


def talk(wires: Mapping[int, TcpWire], nbytes: int = 1000) -> None:
    """Let all ranks send all others something, and check that it comes."""
    pairs = [(a, b) for a in wires for b in wires if a != b]
    found = {pair: np.zeros(nbytes, np.uint8) for pair in pairs}
    slips = [wires[b].receive(a, 5, found[a, b]) for a, b in pairs]
    parcels = [wires[a].send(b, 5, content(10 * a + b, nbytes)) for a, b in pairs]
    settle(*parcels, *(slip.test for slip in slips))
    for a, b in pairs:
        assert np.array_equal(found[a, b], content(10 * a + b, nbytes))


def test_all_ranks_may_talk_to_all_at_once_although_nobody_is_connected() -> None:
    with job(6) as wires:
        talk(wires)
        talk(wires, LARGE // 8)


def test_no_connection_is_made_before_it_is_needed() -> None:
    before = descriptors()
    with job(4) as wires:
        idle = descriptors() - before
        meet(wires, 1, 3)
        meet(wires, 1, 3)
        assert descriptors() - before == idle + 2


def test_a_second_connection_of_a_rank_is_closed_and_the_first_one_goes_on() -> None:
    wires, addresses = make_wires(2)
    try:
        meet(wires)
        caller = Caller(Badge(KEY, 1, 0), 1)
        with socket.create_connection(addresses[1]) as again:
            again.sendall(caller.hello)
            wires[1]._door.move()
            again.sendall(caller.answer(again.recv(caller.expects, socket.MSG_WAITALL)))
            again.setblocking(False)
            while not select.select([again], [], [], 0.01)[0]:
                wires[1]._door.move()
            assert again.recv(1) == b""
        talk(wires)
    finally:
        for wire in wires.values():
            wire.close(orderly=True)


def test_strangers_change_nothing() -> None:
    wires, addresses = make_wires(3)
    strangers = [socket.create_connection(addresses[r]) for r in range(3) for _ in range(9)]
    try:
        for i, stranger in enumerate(strangers):
            stranger.sendall(os.urandom(i * 10))
        talk(wires)
        strangers += [socket.create_connection(addresses[r]) for r in range(3)]
        for stranger in strangers[-3:]:
            stranger.sendall(os.urandom(1000))
        talk(wires)
    finally:
        for stranger in strangers:
            stranger.close()
        for wire in wires.values():
            wire.close(orderly=True)


# Losses


def lost(*calls: Callable[[], object]) -> tuple[int, ...]:
    """Return whom the first of these calls names that finds somebody lost."""
    for _ in range(1_000_000):
        for call in calls:
            try:
                call()
            except PeerLostError as exc:
                return exc.ranks
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize(("own", "gone"), [(0, 1), (1, 0)])
def test_a_rank_that_is_gone_is_named_by_who_waits_for_it(own: int, gone: int) -> None:
    with job(2) as wires:
        meet(wires)
        slip = wires[own].receive(gone, 5, np.zeros(LARGE, np.uint8))
        parcel = wires[own].send(gone, 5, np.zeros(LARGE, np.uint8))
        assert not slip.test() and not parcel()
        wires[gone].close(orderly=False)
        assert lost(slip.test, parcel) == (gone,)
        assert lost(parcel) == lost(slip.test) == (gone,)


def test_a_rank_that_was_gone_before_it_was_called_is_named() -> None:
    with job(3) as wires:
        wires[2].close(orderly=False)
        slip = wires[0].receive(2, 5, np.zeros(1, np.uint8))
        assert lost(slip.test) == (2,)


def test_the_loss_of_one_rank_is_none_of_another() -> None:
    with job(3) as wires:
        meet(wires, 0, 1)
        meet(wires, 0, 2)
        broken = wires[0].receive(2, 5, np.zeros(9, np.uint8))
        wires[2].close(orderly=False)
        assert lost(broken.test) == (2,)
        talk({rank: wires[rank] for rank in (0, 1)})


def test_what_was_sent_before_an_orderly_end_still_comes() -> None:
    with job(2) as wires:
        meet(wires)
        found = np.zeros(1 << 16, np.uint8)
        settle(wires[0].send(1, 5, content(0, found.size)))
        wires[0].close(orderly=True)
        settle(wires[1].receive(0, 5, found).test)
        assert np.array_equal(found, content(0, found.size))


# Sleeping


def is_woken(wire: TcpWire, seconds: float = 0) -> bool:
    return bool(select.select(wire.descriptors(), [], [], seconds)[0])


@contextmanager
def asleep(wire: TcpWire) -> Iterator[None]:
    wire.sleep(True)
    wire.arm()
    yield
    wire.sleep(False)
    assert not is_woken(wire)


def test_who_waits_for_nothing_is_woken_by_nothing() -> None:
    with job(2) as wires:
        meet(wires)
        settle(wires[0].send(1, 5, content(0, 100)))
        with asleep(wires[1]):
            assert not is_woken(wires[1])
        settle(wires[1].receive(0, 5, np.zeros(100, np.uint8)).test)
        slip = wires[1].receive(0, 6, np.zeros(100, np.uint8))
        assert not slip.test()
        settle(wires[0].send(1, 6, content(0, 100)))
        with asleep(wires[1]):
            assert is_woken(wires[1], 60)  # it had come before
        settle(slip.test)


def test_who_waits_for_a_message_is_woken_by_it() -> None:
    with job(3) as wires:
        meet(wires)
        meet(wires, 1, 2)
        slip = wires[1].receive(0, 5, np.zeros(100, np.uint8))
        assert not slip.test()
        with asleep(wires[1]):
            assert not is_woken(wires[1])
            settle(wires[2].send(1, 5, content(1, 100)))  # not asked for
            assert not is_woken(wires[1])
            settle(wires[0].send(1, 5, content(0, 100)))
            assert is_woken(wires[1], 60)
        settle(slip.test)


def test_who_waits_to_send_is_woken_when_there_is_room() -> None:
    with job(2) as wires:
        meet(wires)
        parcel = wires[0].send(1, 5, content(0, LARGE))
        assert not any(parcel() for _ in range(1000))
        with asleep(wires[0]):
            assert not is_woken(wires[0])
            slip = wires[1].receive(0, 5, np.zeros(LARGE, np.uint8))
            while not is_woken(wires[0]):
                slip.test()
        settle(parcel, slip.test)


def test_what_came_for_one_message_while_another_was_looked_at_wakes_the_sleeper() -> None:
    with job(2) as wires:
        meet(wires)
        first, second = (wires[1].receive(0, tag, np.zeros(9, np.uint8)) for tag in (5, 6))
        assert not first.test()
        with asleep(wires[1]):
            settle(wires[0].send(1, 5, content(0, 9)))
            assert is_woken(wires[1], 60)
        assert not second.test()  # it takes in what the first one waits for
        with asleep(wires[1]):
            assert is_woken(wires[1])
        assert first.test()


@pytest.mark.parametrize("first", [0, 1])
def test_a_connection_is_made_by_ranks_that_sleep_until_they_are_woken(first: int) -> None:
    with job(2) as wires:
        slips, tests = {}, {}
        for rank in (first, 1 - first):
            slips[rank] = wires[rank].receive(1 - rank, 5, np.zeros(9, np.uint8))
            parcel = wires[rank].send(1 - rank, 5, content(rank, 9))
            tests[rank] = [slips[rank].test, parcel]
            slips[rank].test()
        while any(tests.values()):
            with asleep(wires[0]), asleep(wires[1]):
                woken = [r for r in wires if is_woken(wires[r])] or [
                    r for r in wires if is_woken(wires[r], 60 if tests[r] else 0)
                ]
            assert woken
            for rank in woken:
                tests[rank] = [test for test in tests[rank] if not test()]


class Sleeper:
    """One rank's engine: looks at one work after the other, sleeps when none has got anywhere."""

    def __init__(self, wire: TcpWire, operations: Sequence[Operation], rank: int) -> None:
        self._wire = wire
        self._rank = rank
        self._left = list(operations)
        self._steps = 0
        self._before = -1
        self._turn: list[Operation] = []
        self.asleep = False

    def done(self) -> bool:
        return not self._left

    def woken(self) -> bool:
        return is_woken(self._wire)

    def go_on(self) -> None:
        """Wake up, or look at the next work; fall asleep after a round that got nowhere."""
        if self.asleep:
            self._wire.sleep(False)
            self.asleep = False
        if not self._turn:
            self._before, self._turn = self._sum(), list(self._left)
        operation = self._turn.pop(0)
        if operation.progress(self._rank):
            self._left.remove(operation)
            self._steps += operation.works[self._rank].steps() + 1
        if not self._turn and self._left and self._sum() == self._before:
            self._wire.sleep(True)
            self._wire.arm()
            self.asleep = True

    def descriptors(self) -> tuple[int, ...]:
        return self._wire.descriptors()

    def _sum(self) -> int:
        return self._steps + sum(o.works[self._rank].steps() for o in self._left)


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_sleep_whenever_they_get_nowhere_come_to_an_end(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(2, 5)
    with job(size) as wires:
        party = OverTcp(wires, rng.choice((0, 64 << 10)), rng.choice((64, 1 << 20)), 0)
        operations = [rng.choice(KINDS)(party, party.numbers, rng) for _ in range(3)]
        for operation in operations:
            for rank in operation.members:
                operation.begin(rank)
        engines = [
            Sleeper(wires[r], [o for o in operations if r in o.works], r) for r in range(size)
        ]
        while engines := [engine for engine in engines if not engine.done()]:
            able = [engine for engine in engines if not engine.asleep or engine.woken()]
            if able:
                rng.choice(able).go_on()
            else:
                wait = [fd for engine in engines for fd in engine.descriptors()]
                assert select.select(wait, [], [], 5)[0], "all sleep, and nobody is woken"
        for operation in operations:
            operation.check(party)


def test_who_waits_for_one_rank_is_not_kept_awake_by_what_another_one_has_sent() -> None:
    members, channel = tuple(range(4)), Channel(1, 0, 0)
    with job(4) as wires:
        talk(wires)
        arrays = [np.ones(10, np.float32) for _ in members]
        works = [
            MessageTransport(wires[rank]).allreduce(
                Members(members, rank), channel, arrays[rank], arrays[rank],
                Reduction(ReduceOp.SUM),
            )
            for rank in members
        ]  # fmt: skip
        for _ in range(1000):
            assert not any(works[rank].progress() for rank in (0, 2, 3))  # 1 is late
        assert works[0].waiting_for() == (1,)
        with asleep(wires[0]):
            assert not is_woken(wires[0])
        settle(*(work.progress for work in works))


# Its end


def test_closing_gives_all_back_whatever_is_under_way() -> None:
    before = descriptors()
    with job(3) as wires:
        meet(wires)
        wires[0].receive(2, 5, np.zeros(9, np.uint8)).test()  # it calls
        parcel = wires[0].send(1, 5, content(0, LARGE))
        assert not parcel()
        wires[0].arm()
        wires[0].close(orderly=False)
        wires[0].close(orderly=False)
    assert descriptors() == before


def test_a_forked_child_keeps_nothing_and_its_parent_goes_on() -> None:
    before = descriptors()
    with job(3) as wires:
        talk(wires)
        assert not wires[1].receive(0, 7, np.zeros(9, np.uint8)).test()
        wires[1].arm()
        pid = os.fork()
        if pid == 0:
            for wire in wires.values():
                wire.after_fork()
            os._exit(0 if descriptors() == before else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        settle(wires[0].send(1, 7, np.zeros(9, np.uint8)))
        assert is_woken(wires[1], 60)
        wires[1].sleep(False)
        talk(wires)

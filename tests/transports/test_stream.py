"""Messages over one connection."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.errors import EngineError, PeerLostError
from commrt.transports.base import Flat
from commrt.transports.stream import Awaited, Slip, Stream

FRAME = 16
SIZES = (0, 1, 2, 3, 15, 16, 17, 255, 1000, 65_537, 300_001)
BUFFER = 16 << 10
"""Bytes of socket buffers where they are to be too small for a message."""

Message = tuple[int, int]
"""Tag and size."""


def never() -> None:
    raise AssertionError("there is a connection")


def later() -> None:
    """The connection comes some time."""


@contextmanager
def connection(buffer: int = 0) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a TCP connection."""
    with socket.socket() as listener:
        caller = socket.socket()
        for sock in (listener, caller) if buffer else ():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        caller.connect(listener.getsockname())
        host, _ = listener.accept()
    with caller, host:
        for sock in (caller, host):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield caller, host


def wants(stream: Stream) -> tuple[bool, bool]:
    """Is anything asked for that has not come, or to be sent that has not gone?"""
    return stream._missing > 0, bool(stream._outbox)


@contextmanager
def streams(buffer: int = 0) -> Iterator[tuple[Stream, Stream]]:
    """Yield two streams, of rank 0 to rank 1 and the other way round."""
    with connection(buffer) as socks:
        ends = Stream(1, never, Awaited()), Stream(0, never, Awaited())
        for stream, sock in zip(ends, socks, strict=True):
            stream.attach(sock)
        yield ends


@contextmanager
def to_a_peer(buffer: int = 0) -> Iterator[tuple[Stream, socket.socket, socket.socket]]:
    """Yield a stream to rank 5, its socket, and the other end, which sends what it likes."""
    with connection(buffer) as (ours, theirs):
        stream = Stream(5, never, Awaited())
        stream.attach(ours)
        theirs.setblocking(True)
        yield stream, ours, theirs


def content(seed: int, nbytes: int) -> Flat:
    return np.random.default_rng(seed).integers(0, 256, nbytes).astype(np.uint8)


def framed(*messages: tuple[int, bytes]) -> bytes:
    """Return what the other side sends for these messages: tag and content."""
    with connection() as (sender, receiver):
        stream = Stream(0, never, Awaited())
        stream.attach(sender)
        for tag, data in messages:
            assert stream.send(tag, np.frombuffer(data, np.uint8))()
        return come(receiver, sum(FRAME + len(data) for _, data in messages))


def settle(*tests: Callable[[], bool], patience: int = 100_000) -> None:
    left = list(tests)
    for _ in range(patience):
        left = [test for test in left if not test()]
        if not left:
            return
    raise AssertionError(f"{len(left)} messages do not come through")


def come(sock: socket.socket, nbytes: int) -> bytes:
    """Wait until so many bytes have come; return them, and leave them in the kernel."""
    sock.setblocking(True)
    data = b""
    while len(data) < nbytes:
        data = sock.recv(nbytes, socket.MSG_PEEK | socket.MSG_WAITALL)
    sock.setblocking(False)
    return data


def is_readable(stream: Stream, seconds: float = 0) -> bool:
    return bool(select.select([stream.fileno()], [], [], seconds)[0])


class OneWay:
    """All messages from one end to the other: sent in order, asked for in any order of tags."""

    def __init__(
        self, source: Stream, sink: Stream, messages: Sequence[Message], seed: int
    ) -> None:
        self._source = source
        self._sink = sink
        self._messages = list(messages)
        self._contents = [content(seed + i, nbytes) for i, (_, nbytes) in enumerate(messages)]
        self._turn = 0
        self._asked: set[int] = set()
        self._found: dict[int, Flat] = {}
        self.parcels: list[Callable[[], bool]] = []
        self.slips: dict[int, Slip] = {}

    def send(self) -> None:
        """Send the next one."""
        if self._turn < len(self._messages):
            tag, _ = self._messages[self._turn]
            self.parcels.append(self._source.send(tag, self._contents[self._turn]))
            self._turn += 1

    def ask(self, choice: int) -> None:
        """Ask for the next message of some tag."""
        left = [i for i in range(len(self._messages)) if i not in self._asked]
        if left:
            tag = self._messages[left[choice % len(left)]][0]
            i = next(i for i in left if self._messages[i][0] == tag)
            self._asked.add(i)
            self._found[i] = np.full(self._messages[i][1], 99, np.uint8)
            self.slips[i] = self._sink.receive(tag, self._found[i])

    def look(self, choice: int) -> None:
        """Look at a message on its way."""
        tests = [*self.parcels, *(slip.test for slip in self.slips.values())]
        if tests:
            tests[choice % len(tests)]()

    def finish(self) -> None:
        """Send and ask for all that is left."""
        for _ in self._messages:
            self.send()
            self.ask(0)

    def check(self) -> None:
        for i, found in self._found.items():
            np.testing.assert_array_equal(found, self._contents[i])


MESSAGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SIZES)), max_size=8)
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(("send", "ask", "look")), st.integers(0, 99)),
    max_size=60,
)


@given(MESSAGES, MESSAGES, STEPS, st.sampled_from((0, BUFFER)))
@settings(max_examples=150)
def test_messages_arrive_whole_and_in_the_order_of_their_tag_whenever_they_are_asked_for(
    there: list[Message], back: list[Message], steps: list[tuple[int, str, int]], buffer: int
) -> None:
    with streams(buffer) as (one, two):
        ways = OneWay(one, two, there, 1), OneWay(two, one, back, 1000)
        for side, what, choice in steps:
            if what == "send":
                ways[side].send()
            elif what == "ask":
                ways[side].ask(choice)
            else:
                ways[side].look(choice)
        for way in ways:
            way.finish()
        settle(*(p for way in ways for p in way.parcels),
               *(slip.test for way in ways for slip in way.slips.values()))  # fmt: skip
        for way in ways:
            way.check()
        assert wants(one) == wants(two) == (False, False)


def test_a_message_that_nobody_asks_for_stays_in_the_kernel() -> None:
    with connection() as (ours, theirs):
        sender, receiver = Stream(1, never, Awaited()), Stream(0, never, Awaited())
        sender.attach(theirs)
        receiver.attach(ours)
        settle(sender.send(7, content(0, 1000)), sender.send(8, content(1, 10)))
        sent = come(ours, 2 * FRAME + 1010)
        for _ in range(3):
            receiver.pull()
        assert wants(receiver) == (False, False)
        assert come(ours, 2 * FRAME + 1010) == sent
        found = np.zeros(1000, np.uint8)
        assert receiver.receive(7, found).test()
        assert np.array_equal(found, content(0, 1000))
        assert come(ours, FRAME + 10) == sent[-FRAME - 10 :]


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 500_000])
def test_a_message_that_stands_in_anothers_way_is_kept_until_it_is_asked_for(nbytes: int) -> None:
    with streams(BUFFER) as (sender, receiver):
        sending = [sender.send(tag, content(tag, nbytes)) for tag in (1, 1, 2)]
        found = [np.zeros(nbytes, np.uint8) for _ in range(3)]
        settle(*sending, receiver.receive(2, found[2]).test)
        assert np.array_equal(found[2], content(2, nbytes))
        assert wants(receiver) == (False, False)
        for array in found[:2]:
            slip = receiver.receive(1, array)
            assert slip.over and slip.test()
            assert np.array_equal(array, content(1, nbytes))


def test_a_message_may_be_asked_for_while_it_is_being_kept() -> None:
    with to_a_peer() as (stream, ours, peer):
        early, wanted = bytes(content(1, 1000)), bytes(content(2, 10))
        sent = framed((1, early), (1, early[::-1]), (2, wanted))
        found = [np.zeros(n, np.uint8) for n in (10, 1000, 1000)]
        slips = [stream.receive(2, found[0])]
        peer.sendall(sent[:500])
        come(ours, 500)
        stream.pull()
        slips += [stream.receive(1, array) for array in found[1:]]
        assert not any(slip.test() for slip in slips)
        peer.sendall(sent[500:])
        settle(*(slip.test for slip in slips))
        assert [bytes(array) for array in found] == [wanted, early, early[::-1]]
        assert wants(stream) == (False, False)


@given(st.lists(st.integers(1, 400), max_size=20), st.sampled_from((0, 1, 5, 1000)))
@settings(max_examples=60)
def test_messages_may_come_in_pieces_of_any_size(cuts: list[int], nbytes: int) -> None:
    messages = [(1, bytes(content(0, nbytes))), (2, b""), (1, bytes(content(1, 33)))]
    sent = framed(*messages)
    found = [np.zeros(len(data), np.uint8) for _, data in messages]
    with to_a_peer() as (stream, _, peer):
        slips = [
            stream.receive(tag, array) for (tag, _), array in zip(messages, found, strict=True)
        ]
        for cut in [*cuts, len(sent)]:
            peer.sendall(sent[:cut])
            sent = sent[cut:]
            stream.pull()
        settle(*(slip.test for slip in slips))
    assert [bytes(array) for array in found] == [data for _, data in messages]


def test_a_request_that_is_taken_back_gets_nothing() -> None:
    with streams() as (sender, receiver):
        found = [np.zeros(3, np.uint8) for _ in range(4)]
        slips = [
            receiver.receive(tag, array) for tag, array in zip((1, 1, 1, 2), found, strict=True)
        ]
        slips[1].cancel()
        slips[3].cancel()
        settle(sender.send(1, content(0, 3)), sender.send(1, content(1, 3)))
        settle(slips[0].test, slips[2].test)
        assert np.array_equal(found[0], content(0, 3))
        assert np.array_equal(found[2], content(1, 3))
        assert not found[1].any() and not found[3].any()
        assert wants(receiver) == (False, False)
        slips[0].cancel()  # it has arrived
        assert wants(receiver) == (False, False)
        settle(sender.send(2, content(2, 3)))
        late = receiver.receive(2, found[3])
        settle(late.test)
        assert np.array_equal(found[3], content(2, 3))


def test_a_message_is_not_through_before_the_kernel_has_taken_all_of_it() -> None:
    with streams(BUFFER) as (sender, receiver):
        large, small = sender.send(1, content(0, 1 << 20)), sender.send(2, content(1, 1))
        assert not any(test() for _ in range(100) for test in (small, large))
        assert wants(sender) == (False, True)
        found = np.zeros(1 << 20, np.uint8)
        settle(receiver.receive(1, found).test, large, small)
        assert np.array_equal(found, content(0, 1 << 20))
        assert wants(sender) == (False, False)


def test_messages_wait_for_a_connection() -> None:
    tries: list[int] = []
    sender, receiver = Stream(1, lambda: tries.append(0), Awaited()), Stream(0, later, Awaited())
    found = np.zeros(9, np.uint8)
    parcel, slip = sender.send(3, content(0, 9)), receiver.receive(3, found)
    assert not parcel() and not slip.test()
    assert tries and not sender.attached
    assert (wants(sender), wants(receiver)) == ((False, True), (True, False))
    with connection() as (ours, theirs):
        sender.attach(ours)
        receiver.attach(theirs)
        settle(parcel, slip.test)
    assert np.array_equal(found, content(0, 9))


# What goes wrong


def lost(*calls: Callable[[], object]) -> str:
    """Return what is said about rank 5 by the last of these calls that says so."""
    for _ in range(100_000):
        for call in calls:
            try:
                call()
            except PeerLostError as exc:
                assert exc.ranks == (5,)
                return str(exc)
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("sent", [0, 3, FRAME, FRAME + 4])
def test_a_peer_that_closes_while_something_is_awaited_is_named(sent: int) -> None:
    with to_a_peer() as (stream, _, peer):
        slip = stream.receive(1, np.zeros(8, np.uint8))
        peer.sendall(framed((1, bytes(8)))[:sent])
        peer.close()
        assert "closed by the other side" in lost(slip.test)
        assert lost(slip.test)  # it does not come back


def test_what_a_peer_has_sent_before_it_closed_still_arrives() -> None:
    with to_a_peer() as (stream, _, peer):
        found = np.zeros(8, np.uint8)
        slips = [stream.receive(1, found), stream.receive(1, np.zeros(8, np.uint8))]
        peer.sendall(framed((1, bytes(content(3, 8)))))
        peer.close()
        assert lost(slips[1].test)
        assert slips[0].test()
        assert np.array_equal(found, content(3, 8))


def test_a_peer_that_closes_while_something_is_sent_is_named() -> None:
    with to_a_peer(BUFFER) as (stream, _, peer):
        parcels = [stream.send(1, content(0, 1 << 20)) for _ in range(2)]
        assert not parcels[0]()
        peer.close()
        assert lost(parcels[0])


def test_a_close_that_concerns_nobody_is_no_loss() -> None:
    with to_a_peer() as (stream, _, peer):
        peer.close()
        stream.pull()
        stream.push()
        assert wants(stream) == (False, False)


@given(st.binary(min_size=FRAME, max_size=200).filter(lambda data: data[:4] != b"cmrt"))
@settings(max_examples=50)
def test_garbage_instead_of_a_message_loses_the_peer(garbage: bytes) -> None:
    with to_a_peer() as (stream, _, peer):
        slip = stream.receive(1, np.zeros(8, np.uint8))
        peer.sendall(garbage)
        assert "no message" in lost(slip.test)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_message_of_another_size_than_expected_is_an_error_that_names_both(
    size: int, early: bool
) -> None:
    with to_a_peer() as (stream, _, peer):
        peer.sendall(framed((1, bytes(size)), (2, b"")))
        if early:
            settle(stream.receive(2, np.zeros(0, np.uint8)).test)
        with pytest.raises(EngineError, match=f"rank 5 sent {size} bytes where 8 are expected"):
            settle(stream.receive(1, np.zeros(8, np.uint8)).test)


# Sleeping


@pytest.mark.parametrize("buffer", [0, BUFFER])
@given(st.lists(st.integers(1, 3000), max_size=6), st.sampled_from((0, 1, 100, 9000)))
@settings(max_examples=40)
def test_a_sleeper_is_woken_by_the_rest_of_a_message_wherever_he_fell_asleep(
    buffer: int, cuts: list[int], nbytes: int
) -> None:
    messages = [(1, bytes(content(0, nbytes))), (2, bytes(content(1, 5)))]
    sent = framed(*messages)
    with to_a_peer(buffer) as (stream, _, peer):
        slips = [stream.receive(tag, np.zeros(len(data), np.uint8)) for tag, data in messages]
        at = 0
        for cut in cuts:
            peer.sendall(sent[at : at + cut])
            at += cut
            stream.pull()
            if wants(stream)[0]:
                stream.fileno()  # a level for what was missing then
        peer.sendall(sent[at:])
        while not all(slip.over for slip in slips):
            assert is_readable(stream, 60)
            stream.pull()


@pytest.mark.parametrize("buffer", [0, BUFFER])
def test_a_sleeper_is_woken_often_enough_for_a_message_of_any_size(buffer: int) -> None:
    with streams(buffer) as (sender, receiver):
        found = np.zeros(9 << 20, np.uint8)
        parcel, slip = sender.send(1, content(0, 9 << 20)), receiver.receive(1, found)
        while not slip.test():
            parcel()
            write = [sender.fileno()] if wants(sender)[1] else []
            assert any(select.select([receiver.fileno()], write, [], 60))
        assert np.array_equal(found, content(0, 9 << 20))


def test_a_sleeper_is_not_woken_before_all_that_is_missing_has_come() -> None:
    with to_a_peer() as (stream, ours, peer):
        slip = stream.receive(1, np.zeros(1000, np.uint8))
        sent = framed((1, bytes(1000)))
        peer.sendall(sent[: FRAME + 10])
        come(ours, FRAME + 10)
        stream.pull()
        assert wants(stream) == (True, False)
        assert not is_readable(stream)
        peer.sendall(sent[FRAME + 10 : -1])
        come(ours, 989)
        assert not is_readable(stream)
        peer.sendall(sent[-1:])
        assert is_readable(stream, 60)
        settle(slip.test)


def test_a_sleeper_is_woken_by_a_loss_although_much_is_missing() -> None:
    with to_a_peer() as (stream, ours, peer):
        slip = stream.receive(1, np.zeros(20_000, np.uint8))
        sent = framed((1, bytes(20_000)))[:100]
        peer.sendall(sent)
        come(ours, 100)
        stream.pull()
        assert not is_readable(stream)
        peer.close()
        assert is_readable(stream, 60)
        assert lost(slip.test)


def test_a_sleeper_who_has_something_to_send_is_woken_once_there_is_room() -> None:
    with streams(BUFFER) as (sender, receiver):
        parcel = sender.send(1, content(0, 1 << 20))
        assert not parcel()
        assert not select.select([], [sender.fileno()], [], 0)[1]
        slip = receiver.receive(1, np.zeros(1 << 20, np.uint8))
        while not parcel():
            slip.test()
            select.select([receiver.fileno()], [sender.fileno()], [], 60)
        settle(slip.test)

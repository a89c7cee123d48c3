"""How ranks get connections to one another, and how nobody else does."""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

from commrt.errors import PeerLostError
from commrt.transports import door as module
from commrt.transports.door import Door
from commrt.transports.greeting import Badge, Caller
from commrt.transports.tcp import listen

KEY = bytes(range(32))
HOSTS = ("127.0.0.1", "::1")
RANKS = 3
CROWD = 64 + RANKS
"""Strangers that may be at a door at once."""


def works(host: str) -> bool:
    try:
        listen(host).close()
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test gives all descriptors back."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


class House:
    """Three ranks and their doors, on which `guests` have come in: for each rank, from whom."""

    def __init__(self, host: str) -> None:
        listeners = [listen(host) for _ in range(RANKS)]
        names = [listener.getsockname() for listener in listeners]
        self.addresses = {rank: (name[0], name[1]) for rank, name in enumerate(names)}
        self.listeners = listeners
        self.guests: list[dict[int, socket.socket]] = [{} for _ in range(RANKS)]
        self.doors = [
            Door(listener, Badge(KEY, 7, rank), self.addresses, self._welcome(rank))
            for rank, listener in enumerate(listeners)
        ]
        self.strangers: list[socket.socket] = []

    def stranger(self, rank: int) -> socket.socket:
        """Return a connection to a rank's door that knows nothing."""
        sock = socket.create_connection(self.addresses[rank])
        self.strangers.append(sock)
        return sock

    def move_until(
        self, condition: Callable[[], object], ranks: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        """Let ranks look at their doors, whenever something may have happened there."""
        doors = [self.doors[rank] for rank in ranks]
        for _ in range(10_000):
            for door in doors:
                door.move()
            if condition():
                return
            sockets = [entry for door in doors for entry in door.sockets()]
            reads, writes = ([s for s, speaks in sockets if speaks is way] for way in (False, True))
            select.select(reads, writes, [], 0.01)
        raise AssertionError("nothing happened")

    def meet(self, one: int, two: int) -> None:
        """Let two ranks get a connection. Raises PeerLostError."""
        for caller, peer in ((one, two), (two, one)):
            self.doors[caller].call(peer)
        self.move_until(lambda: two in self.guests[one] and one in self.guests[two])

    def are_connected(self, one: int, two: int) -> bool:
        ends = self.guests[one][two], self.guests[two][one]
        return bool(ends[0].getsockname() == ends[1].getpeername())

    def close(self) -> None:
        for door in self.doors:
            door.close()
        for sock in (*self.strangers, *(s for guests in self.guests for s in guests.values())):
            sock.close()

    def _welcome(self, rank: int) -> Callable[[int, socket.socket], None]:
        def welcome(peer: int, sock: socket.socket) -> None:
            assert peer not in self.guests[rank]
            self.guests[rank][peer] = sock

        return welcome


@pytest.fixture(params=HOSTS)
def house(request: pytest.FixtureRequest, nothing_is_left: None) -> Iterator[House]:
    if not works(request.param):
        pytest.skip(f"this machine does not have {request.param}")
    found = House(request.param)
    yield found
    found.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock for doors; it stands still unless it is set."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def is_over(stranger: socket.socket) -> bool:
    """Has the other side closed this connection?"""
    stranger.setblocking(False)
    try:
        return not stranger.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


def close(stranger: socket.socket) -> None:
    """Say nothing more."""
    stranger.shutdown(socket.SHUT_WR)


def reset(stranger: socket.socket) -> None:
    """Go away without a word."""
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.close()


def test_any_two_ranks_get_one_connection(house: House) -> None:
    for one, two in ((0, 1), (2, 0), (1, 2)):
        house.meet(one, two)
        assert house.are_connected(one, two)
    assert [sorted(guests) for guests in house.guests] == [[1, 2], [0, 2], [0, 1]]


def test_only_the_lower_rank_calls(house: House) -> None:
    house.doors[1].call(0)
    assert len(house.doors[1].sockets()) == 1
    house.doors[0].call(1)
    assert len(house.doors[0].sockets()) == 2


def test_a_rank_may_speak_a_byte_at_a_time(house: House) -> None:
    caller = Caller(Badge(KEY, 7, 0), 1)
    sock = house.stranger(1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in caller.hello:
        house.doors[1].move()
        sock.sendall(bytes([byte]))
    house.move_until(lambda: select.select([sock], [], [], 0)[0], ranks=(1,))
    for byte in caller.answer(sock.recv(caller.expects, socket.MSG_WAITALL)):
        house.doors[1].move()
        assert not house.guests[1]
        sock.sendall(bytes([byte]))
    house.move_until(lambda: 0 in house.guests[1], ranks=(1,))


def test_what_a_rank_says_after_its_greeting_is_left_to_read(house: House) -> None:
    caller = Caller(Badge(KEY, 7, 0), 1)
    sock = house.stranger(1)
    sock.sendall(caller.hello)
    house.move_until(lambda: select.select([sock], [], [], 0)[0], ranks=(1,))
    sock.sendall(caller.answer(sock.recv(caller.expects, socket.MSG_WAITALL)) + b"first words")
    house.move_until(lambda: 0 in house.guests[1], ranks=(1,))
    house.guests[1][0].setblocking(True)
    assert house.guests[1][0].recv(11, socket.MSG_WAITALL) == b"first words"


# Strangers


def move_until_something_is_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    before = len(caplog.records)
    house.move_until(lambda: len(caplog.records) > before)


CALLER = Caller(Badge(KEY, 7, 0), 1)
STRANGERS = {
    "garbage": os.urandom(1000),
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: a\r\n\r\n",
    "another job's rank": Caller(Badge(KEY, 8, 0), 1).hello,
    "a rank that looks for another one": Caller(Badge(KEY, 7, 0), 2).hello,
    "one without the key": CALLER.hello + bytes(32),
    "one that ends at once": b"",
    "one that ends in a greeting": CALLER.hello[:-1],
    "one that ends before its proof": CALLER.hello,
}


@pytest.mark.parametrize("ends", [close, reset])
@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_turned_away_and_the_right_rank_gets_in(
    house: House, who: str, ends: Callable[[socket.socket], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "commrt.transports")
    for _ in range(3):
        stranger = house.stranger(1)
        stranger.sendall(STRANGERS[who])
        ends(stranger)
        move_until_something_is_logged(house, caplog)
        assert len(house.doors[1].sockets()) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]
    assert all("turned a data connection from" in r.getMessage() for r in caplog.records)
    house.meet(0, 1)
    assert house.are_connected(0, 1)
    assert not house.guests[2]


def test_a_stranger_who_stays_is_shown_out(house: House) -> None:
    stranger = house.stranger(1)
    stranger.sendall(bytes(56))
    house.move_until(lambda: is_over(stranger))


def test_a_silent_stranger_is_turned_away_after_a_while(
    house: House, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    silent, slow = house.stranger(1), house.stranger(1)
    slow.sendall(Caller(Badge(KEY, 7, 0), 1).hello)
    house.move_until(lambda: len(house.doors[1].sockets()) == 3)
    house.move_until(lambda: select.select([slow], [], [], 0)[0])
    slow.recv(1000)
    clock.now += 9.9
    house.doors[1].move()
    assert not is_over(silent) and not is_over(slow) and not caplog.records
    house.meet(0, 1)
    clock.now += 0.2
    house.doors[1].move()
    house.move_until(lambda: is_over(silent) and is_over(slow))
    assert "it has not proved itself for 10 s" in caplog.text
    assert house.are_connected(0, 1)


def test_a_silent_stranger_wakes_nobody(house: House) -> None:
    house.stranger(1)
    house.move_until(lambda: len(house.doors[1].sockets()) == 2)
    reads = [sock for sock, speaks in house.doors[1].sockets() if not speaks]
    assert len(reads) == 2
    assert select.select(reads, [], [], 0) == ([], [], [])


def test_of_a_crowd_the_right_rank_gets_in_although_it_comes_last(
    house: House, clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = [house.stranger(1) for _ in range(2 * CROWD)]
    house.doors[0].call(1)
    house.doors[1].call(0)

    def met() -> bool:
        clock.now += 1  # if there is no room, the silent ones have to leave first
        return 1 in house.guests[0] and 0 in house.guests[1]

    house.move_until(met)
    assert len(house.doors[1].sockets()) <= 1 + CROWD
    assert house.are_connected(0, 1)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert sum(map(is_over, crowd)) >= CROWD


def test_a_crowd_drives_no_rank_away_that_came_before(house: House) -> None:
    house.doors[0].call(1)
    house.move_until(lambda: not house.doors[0].sockets()[1][1], ranks=(0,))  # it has said hello
    for _ in range(2 * CROWD):
        house.stranger(1)
    house.doors[1].call(0)
    house.move_until(lambda: 1 in house.guests[0] and 0 in house.guests[1])
    assert house.are_connected(0, 1)


def test_strangers_are_no_business_of_those_who_have_met(house: House) -> None:
    house.meet(0, 1)
    stranger = house.stranger(1)
    stranger.sendall(bytes(1000))
    house.move_until(lambda: is_over(stranger))
    house.guests[0][1].sendall(b"data")
    house.guests[1][0].setblocking(True)
    assert house.guests[1][0].recv(4, socket.MSG_WAITALL) == b"data"


# Peers that cannot be reached


def lost(house: House) -> str:
    """Return what rank 0 says of rank 1, which it calls."""
    with pytest.raises(PeerLostError) as caught:
        house.doors[0].call(1)
        house.move_until(lambda: False, ranks=(0,))
    assert caught.value.ranks == (1,)
    host, port = house.addresses[1]
    assert f"no data connection to rank 1 at {host}, port {port}: " in str(caught.value)
    assert len(house.doors[0].sockets()) == 1
    house.doors[0].move()  # it goes on with others
    return str(caught.value)


def test_a_rank_that_refuses_connections_is_lost(house: House) -> None:
    house.listeners[1].close()
    assert "Connection refused" in lost(house)


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"", "closed the connection"), (bytes(10), "closed the connection"), (bytes(64), "key")],
)
def test_a_rank_in_whose_place_somebody_else_answers_is_lost(
    house: House, answer: bytes, why: str
) -> None:
    """It is called a few times, in case it has merely lost patience."""
    host, _ = house.addresses[1]
    with listen(host) as impostor, ExitStack() as stack:
        impostor.setblocking(False)
        house.addresses[1] = host, impostor.getsockname()[1]

        def reply() -> None:
            with suppress(BlockingIOError):
                sock = stack.enter_context(impostor.accept()[0])
                sock.sendall(answer)
                sock.shutdown(socket.SHUT_WR)

        house.doors[0].call(1)
        with pytest.raises(PeerLostError, match=why):
            house.move_until(reply, ranks=(0,))


def test_a_rank_that_takes_its_time_is_waited_for(house: House, clock: SimpleNamespace) -> None:
    """It may be stopped, or busy with others; whether it lives is not for a door to decide."""
    house.doors[0].call(1)
    for _ in range(5):
        clock.now += 60
        house.doors[0].move()
    house.doors[1].call(0)
    house.move_until(lambda: 1 in house.guests[0] and 0 in house.guests[1])


def test_closing_turns_everybody_away(house: House) -> None:
    stranger = house.stranger(1)
    house.doors[0].call(1)
    house.move_until(lambda: len(house.doors[1].sockets()) == 3)
    for door in house.doors:
        door.close()
    assert is_over(stranger)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(house.addresses[1])

"""Descriptors that go round a host."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from commrt.control.handover import Counter, visit


@pytest.fixture
def counter() -> Iterator[Counter]:
    made = Counter()
    yield made
    made.close()


def nothing() -> None:
    return None


def told(fd: int) -> bytes:
    return os.pread(fd, 10, 0)


def file(text: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, text)
    return fd


@pytest.mark.parametrize(("size", "at_once"), [(1, 200), (2, 200), (5, 200), (9, 3)])
def test_everybody_gets_everybodys(
    counter: Counter, size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commrt.control.handover._AT_ONCE", at_once)
    found: dict[int, list[bytes]] = {}

    def guest(place: int) -> None:
        own = file(b"%d" % place)
        fds = visit(counter.address, place, own, size, 20.0)
        found[place] = [told(fd) for fd in fds]
        for fd in (own, *fds):
            os.close(fd)

    threads = [threading.Thread(target=guest, args=(place,)) for place in range(1, size)]
    for thread in threads:
        thread.start()
    own, first = file(b"0"), file(b"first")
    fds = counter.serve(first, own, size, 20.0, nothing)
    for thread in threads:
        thread.join()
    everyone = [b"%d" % place for place in range(size)]
    assert [told(fd) for fd in fds] == everyone
    assert found == {place: [b"first", *everyone] for place in range(1, size)}
    for fd in (first, *fds):
        os.close(fd)


def test_whoever_does_not_know_the_secret_is_turned_away(counter: Counter) -> None:
    before = len(os.listdir("/proc/self/fd"))
    own, first = file(b"0"), file(b"first")
    wrong = b"x" * 32 + counter.address[32:]
    refused: list[BaseException] = []

    def strangers() -> None:
        for address, place in ((wrong, 1), (counter.address, 7), (counter.address, 0)):
            try:
                visit(address, place, own, 2, 5.0)
            except OSError as exc:
                refused.append(exc)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(counter.address[32:])
            line.send(b"garbage")
        for fd in visit(counter.address, 1, own, 2, 5.0):
            os.close(fd)

    thread = threading.Thread(target=strangers)
    thread.start()
    fds = counter.serve(first, own, 2, 20.0, nothing)
    thread.join()
    assert len(refused) == 3
    for fd in (first, *fds):
        os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(counter: Counter) -> None:
    own = file(b"0")
    with pytest.raises(TimeoutError, match="only 1 of 2 ranks"):
        counter.serve(own, own, 2, 0.0, nothing)
    os.close(own)

"""Connections between commrun and its shims, without any process."""

import json
import os
import select
import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists, sampled_from, tuples

from commrun.links import GONE, Switchboard, listen_for, listen_here
from commrun.spec import UsageError
from commrun.wire import JSON, STDERR, STDOUT, Link, connect, pack, unpack
from harness import wait_until

SECRET = b"s" * 32


@given(lists(tuples(sampled_from([JSON, STDOUT, STDERR]), binary(max_size=40))), integers(1, 7))
def test_frames_survive_any_cut(frames, step):
    stream = b"".join(pack(*frame) for frame in frames)
    inbox, out = bytearray(), []
    for i in range(0, len(stream), step):
        inbox += stream[i : i + step]
        out += unpack(inbox)
    assert out == frames
    assert not inbox


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\0\0\0\0X", b"\xff\xff\xff\xffJ"])
def test_garbage_is_no_frame(data):
    with pytest.raises(ConnectionError):
        unpack(bytearray(data))


class Board:
    """A switchboard served by a thread, and what it heard."""

    def __init__(self, listeners):
        self.board = Switchboard(listeners, SECRET, 2)
        self.heard = []
        self._stop = False
        self._todo = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while not self._stop:
            poller = select.poll()
            self.board.register(poller)
            for fd, _ in poller.poll(10):
                self.heard += self.board.serve(fd)
            while self._todo:
                self._todo.pop(0)()

    def tell(self, rank, **message):
        """Have the thread that serves do it: a link belongs to one thread."""
        self._todo.append(lambda: self.board.tell(rank, **message))

    def close(self):
        self._stop = True
        self._thread.join()
        self.board.close()


@pytest.fixture(params=["unix", "tcp"])
def served(request, tmp_path):
    listeners, address = (
        listen_here(str(tmp_path)) if request.param == "unix" else listen_for(["127.0.0.1"])
    )
    board = Board(listeners)
    yield board, address
    board.close()


def dial(address):
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address)
        return sock
    host, port = address.split(" ")
    return socket.create_connection((host, int(port)))


def hello(address, rank=0):
    link = Link(connect(address, SECRET))
    link.tell(op="hello", rank=rank)
    return link


def test_messages_go_both_ways(served):
    board, address = served
    link = hello(address, 5)
    link.send(STDOUT, b"x" * 300_000)
    wait_until(lambda: link.flush() or len(board.heard) == 2, "hello and output")
    assert [json.loads(board.heard[0][2])["rank"], board.heard[1]] == [
        5,
        (5, STDOUT, b"x" * 300_000),
    ]
    board.tell(5, op="go")
    wait_until(lambda: link.fill() or link.inbox, "answer")
    assert unpack(link.inbox) == [(JSON, b'{"op": "go"}')]
    link.sock.close()
    wait_until(lambda: board.heard[-1] == (5, GONE, b""), "the end")
    board.tell(5, op="go")


def test_strangers_and_garbage_are_dropped_and_harm_nobody(served):
    board, address = served
    good = hello(address)
    with pytest.raises(OSError):
        connect(address, b"wrong" * 6)
    strangers = [dial(address) for _ in range(300)]
    for sock, data in zip(
        strangers, [os.urandom(4096), b"GET / HTTP/1.0\r\n\r\n" * 9], strict=False
    ):
        with suppress(OSError):  # it may have been dropped already
            sock.sendall(data)
    late = hello(address, 1)
    wait_until(lambda: len(board.heard) == 2, "both shims")
    good.send(STDERR, b"still here")
    wait_until(lambda: board.heard[-1] == (0, STDERR, b"still here"), "the first shim's word")
    for sock in (good.sock, late.sock, *strangers):
        sock.close()


def test_a_second_shim_of_one_rank_is_dropped(served):
    board, address = served
    first = hello(address)
    wait_until(lambda: board.heard, "the first")
    second = hello(address)
    second.sock.settimeout(20)
    assert second.sock.recv(1) == b""
    assert board.board.ranks() == [0]
    first.sock.close()
    second.sock.close()


def test_a_shim_does_not_obey_who_does_not_know_the_secret(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def answer():
        sock, _ = listener.accept()
        with sock:
            sock.sendall(bytes(32))
            sock.recv(64, socket.MSG_WAITALL)
            sock.sendall(bytes(32))

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConnectionError):
        connect(str(tmp_path / "s"), SECRET)
    thread.join()
    listener.close()


def test_the_next_address_is_tried(served):
    _, address = served
    connect(f"/nonexistent/socket;{address}", SECRET).close()


def test_an_unknown_host_is_named():
    with pytest.raises(UsageError, match=r"no\.such\.host\.invalid"):
        listen_for(["no.such.host.invalid"])

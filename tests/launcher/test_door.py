"""The socket that a rank's runtime talks to, and ports for jobs."""

import json
import os
import socket

import pytest

from commrun.door import Door
from commrun.ports import claim_port

EARLY = {"event": "ended", "rank": 1, "host": "a", "how": "exit status 0"}
LATE = {"event": "ended", "rank": 2, "host": "b", "how": "killed by signal 9 (SIGKILL)"}


@pytest.fixture
def door(tmp_path):
    door = Door(str(tmp_path / "rank0"))
    yield door
    door.close()
    assert os.listdir(tmp_path) == []


def enter(door):
    guest = socket.socket(socket.AF_UNIX)
    guest.settimeout(20)
    guest.connect(door.path)
    door.drain()
    return guest


def lines(guest, n):
    with guest.makefile("rb") as file:
        return [json.loads(file.readline()) for _ in range(n)]


def test_guests_hear_of_every_end_the_earlier_ones_too(door):
    first = enter(door)
    door.announce(EARLY)
    second = enter(door)
    door.announce(LATE)
    assert lines(first, 2) == lines(second, 2) == [EARLY, LATE]
    first.close()
    second.close()


@pytest.mark.parametrize("before", ["nobody", "others ended", "others end once it is in"])
def test_a_consequence_is_noted_though_its_guest_is_gone(door, before):
    if before == "others ended":
        door.announce(EARLY)
    guest = socket.socket(socket.AF_UNIX)
    guest.connect(door.path)
    if before == "others end once it is in":
        door.drain()
    guest.sendall(b'garbage\n[1]\n{"event":"conse')
    guest.sendall(b'quence","error":"PeerLostError: rank 1"}\n')
    guest.close()
    if before == "others end once it is in":
        door.announce(EARLY)
    door.drain()
    assert door.consequence == "PeerLostError: rank 1"
    door.drain()
    assert len(door.fds()) == 1


def test_who_never_reads_or_never_ends_a_line_is_dropped(door):
    deaf, endless = enter(door), enter(door)
    for _ in range(6000):
        door.announce(EARLY)
    endless.setblocking(False)
    try:
        while True:
            endless.send(b"x" * 4096)
    except OSError:
        pass
    door.drain()
    assert len(door.fds()) == 1
    deaf.close()
    endless.close()


def test_jobs_get_different_ports_that_they_can_bind():
    claims = [claim_port() for _ in range(50)]
    ports = [port for port, _ in claims]
    assert len(set(ports)) == 50
    for port, claim in claims:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
        claim.close()

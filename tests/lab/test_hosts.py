"""Test hosts: what they are, what is left of them, and jobs of ranks on them."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from commrt.testing.lab.hosts import Lab, LabError
from commrt.testing.lab.spaces import DIRECTORIES, spaces_of
from harness import ROOT, environment, wait_until

pytestmark = pytest.mark.lab


def everything_of(name: str) -> list[object]:
    return [*spaces_of(name), *(d / name for d in DIRECTORIES if (d / name).exists())]


def ours() -> set[str]:
    """Return all that labs of this process have."""
    entries = [name for place in ("/var/run/netns", *DIRECTORIES) for name in os.listdir(place)]
    return {name for name in entries if re.match(rf"commrt-lab-\w+-{os.getpid()}-", name)}


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def output(lab: Lab, i: int, *argv: str) -> str:
    done = lab.run(i, argv, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def received(lab: Lab, i: int) -> int:
    return int(output(lab, i, "cat", "/sys/class/net/eth0/statistics/rx_bytes"))


# What hosts are

LISTEN = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as door:
    print("open", flush=True)
    peer, (address, _) = door.accept()
    print(address, flush=True)
    while peer.recv(1 << 20):
        pass
"""

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    for _ in range(int(sys.argv[3])):
        peer.sendall(bytes(1 << 16))
"""


@contextmanager
def flow(lab: Lab, sender: int, receiver: int, pieces: int = 10_000) -> Iterator[IO[str]]:
    """Send pieces of 64 KiB; yield what the receiver prints."""
    port, quiet = str(7000 + sender), subprocess.DEVNULL  # they may be cut off
    words = ["python", "-c", LISTEN, port]
    with lab.popen(receiver, words, stdout=subprocess.PIPE, stderr=quiet) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        words = ["python", "-c", SEND, lab.address(receiver), port, str(pieces)]
        sending = lab.popen(sender, words, stderr=quiet)
        yield process.stdout
        sending.kill()
        process.kill()


def moved_until(lab: Lab, receiver: int, nbytes: int, counts: Callable[[], list[int]]) -> list[int]:
    """Return by how much `counts` grow while host `receiver` receives so many bytes."""
    burst = received(lab, receiver) + (1 << 20)
    wait_until(lambda: received(lab, receiver) > burst, "more than a burst")
    start, goal = counts(), received(lab, receiver) + nbytes
    wait_until(lambda: received(lab, receiver) > goal, f"{nbytes} bytes")
    return [after - before for before, after in zip(start, counts(), strict=True)]


def test_each_host_has_its_own_name_address_and_directory() -> None:
    with Lab(3) as lab:
        told = [output(lab, i, "sh", "-c", "hostname; ip -br -4 a; echo $TMPDIR") for i in range(3)]
        for i, text in enumerate(told):
            name, _, link, directory = text.splitlines()
            assert name == f"h{i}"
            assert f" {lab.address(i)}/" in link
            assert Path(directory).is_dir()
        assert len({lab.address(i) for i in range(3)}) == 3
        assert len({text.splitlines()[3] for text in told}) == 3


def test_a_host_reaches_another_under_its_address_in_each_of_two_labs_at_once() -> None:
    with Lab(2) as one, Lab(2) as two:
        for lab in (one, two):
            with flow(lab, 1, 0, 1) as printed:
                assert printed.readline() == f"{lab.address(1)}\n"


def test_a_lab_changes_nothing_in_the_machines_own_network() -> None:
    before = interfaces()
    with Lab(2, "1gbit"):
        assert interfaces() == before


def test_a_link_moves_bytes_in_proportion_to_its_rate() -> None:
    with Lab(2, "20mbit") as slow, Lab(2, "80mbit") as fast, flow(slow, 1, 0), flow(fast, 1, 0):
        few, many = moved_until(
            slow, 0, 2 << 20, lambda: [received(lab, 0) for lab in (slow, fast)]
        )
    assert 3 < many / few < 5


@pytest.mark.parametrize("flows", [[(1, 0), (2, 0)], [(0, 1), (0, 2)]], ids=["in", "out"])
def test_two_flows_share_the_link_of_a_host(flows: list[tuple[int, int]]) -> None:
    with Lab(5, "20mbit") as lab, ExitStack() as stack:
        for sender, receiver in [*flows, (3, 4)]:
            stack.enter_context(flow(lab, sender, receiver))
        one, *two = moved_until(lab, 4, 2 << 20, lambda: [received(lab, i) for i in (4, 0, 1, 2)])
        both = two[0] if flows[0][1] == 0 else two[1] + two[2]
    assert 0.7 < both / one < 1.4


def test_a_command_gets_its_variables_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    with Lab(1) as lab:
        done = lab.run(0, ["env"], {"GIVEN": "two words"})
    assert "GIVEN=two words\n" in done.stdout
    assert "OURS" not in done.stdout


def test_the_agent_takes_a_command_to_the_host_that_has_the_address() -> None:
    with Lab(2) as lab:
        words = [lab.agent, "-x", lab.address(1), "X=1;", "echo", "$X", "$(hostname)"]
        assert output(lab, 0, *words) == "1 h1\n"
        assert lab.run(0, [lab.agent, "10.9.9.9", "true"]).returncode == 255


def test_a_lab_that_cannot_be_made_says_why_and_leaves_nothing() -> None:
    before = ours()
    with pytest.raises(LabError, match="nonsense"), Lab(1, "nonsense"):
        pass
    assert ours() == before
    with pytest.raises(ValueError, match="hosts=0"):
        Lab(0)


# What is left

OWNER = """
    import sys
    from commrt.testing.lab.hosts import Lab
    with Lab(2, "100mbit") as lab:
        process = lab.popen(1, ["sh", "-c", "sleep 1000 & trap '' TERM; wait"])
        while lab.run(1, ["ip", "netns", "pids", lab.name + "-h1"]).stdout.count("\\n") < 3:
            pass
        print(lab.name, process.pid, flush=True)
        if len(sys.argv) > 1:
            raise ZeroDivisionError
        process.wait()
"""


def start_owner(*args: str) -> tuple[subprocess.Popen[str], str, int]:
    """Start a process with a lab; return it, the lab's name and the pid of a command on host 1."""
    source = "\n".join(line.removeprefix("    ") for line in OWNER.splitlines())
    owner = subprocess.Popen(
        [sys.executable, "-c", source, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert select.select([owner.stdout], [], [], 60)[0]
    name, pid = owner.stdout.readline().split()
    return owner, name, int(pid)


def interrupt(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGINT)


def fail(owner: subprocess.Popen[str]) -> None:
    """It does so by itself."""


@pytest.mark.parametrize(
    ("how", "args", "said"),
    [(interrupt, (), "KeyboardInterrupt"), (fail, ("fail",), "ZeroDivisionError")],
)
def test_nothing_is_left_after_ctrl_c_or_an_exception(
    how: Callable[[subprocess.Popen[str]], None], args: tuple[str, ...], said: str
) -> None:
    owner, name, pid = start_owner(*args)
    how(owner)
    assert said in owner.communicate(timeout=60)[1]
    assert everything_of(name) == []
    assert not is_alive(pid)


def test_the_next_lab_removes_what_a_killed_process_left() -> None:
    owner, name, pid = start_owner()
    owner.kill()
    owner.wait()
    assert len(everything_of(name)) == 5  # two hosts, the switch, two directories
    assert is_alive(pid)
    with Lab(1):
        assert everything_of(name) == []
        assert not is_alive(pid)
    owner.communicate()


def test_the_next_lab_leaves_those_of_living_processes_alone() -> None:
    owner, name, pid = start_owner()
    try:
        with Lab(1):
            pass
        assert len(everything_of(name)) == 5
        assert is_alive(pid)
    finally:
        interrupt(owner)
        owner.communicate(timeout=60)


def test_nothing_runs_on_any_host_after_a_timeout() -> None:
    with Lab(2) as lab:
        wait = lab.popen(1, ["sleep", "1000"])
        with pytest.raises(subprocess.TimeoutExpired):
            lab.run(0, ["sh", "-c", "sleep 1000 & wait"], timeout=0.5)
        assert wait.wait(timeout=30) == -signal.SIGKILL
        assert output(lab, 1, "ip", "netns", "pids", f"{lab.name}-h0") == ""


# Jobs

JOB = """
import os
import sys

import numpy as np

import commrt

commrt.init()
r, n = commrt.rank(), commrt.size()
for length in (1, 7, 100_003):
    inputs = [np.random.default_rng(k).integers(0, 99, length).astype(np.float32) for k in range(n)]
    out = commrt.allreduce(inputs[r], op=commrt.Sum)
    assert np.array_equal(out, np.sum(inputs, axis=0)), (r, length)
place = commrt.local_rank(), commrt.local_size(), commrt.cross_rank(), commrt.cross_size()
print(r, n, *place, os.uname().nodename, sys.prefix, os.environ["GIVEN"], flush=True)
"""


@pytest.mark.parametrize(
    ("hosts", "ranks_per_host", "expected"),
    [
        (2, 1, ["0 2 0 1 0 2 h0", "1 2 0 1 1 2 h1"]),
        (2, 2, ["0 4 0 2 0 2 h0", "1 4 1 2 0 2 h0", "2 4 0 2 1 2 h1", "3 4 1 2 1 2 h1"]),
        (3, (1, 0, 2), ["0 3 0 1 0 2 h0", "1 3 0 2 1 2 h2", "2 3 1 2 0 1 h2"]),
    ],
)
def test_ranks_on_several_hosts_know_where_they_are_and_add_right(
    hosts: int, ranks_per_host: int | tuple[int, ...], expected: list[str]
) -> None:
    env = {"GIVEN": "word", "PYTHONPATH": environment().get("PYTHONPATH", "")}
    with Lab(hosts, "1gbit") as lab:
        done = lab.mpirun(ranks_per_host, ["python", "-c", JOB], env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = [f"{line} {sys.prefix} word" for line in expected]
    assert sorted(done.stdout.splitlines()) == wanted


def test_the_output_and_status_of_a_failed_job_come_back() -> None:
    with Lab(2) as lab:
        done = lab.mpirun(1, ["sh", "-c", "echo on $(hostname) >&2; exit 7"], timeout=60)
    assert done.returncode == 7
    assert "on h0\n" in done.stderr or "on h1\n" in done.stderr

"""Faults made on purpose: every survivor hears of them, and soon."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from harness import end_job, run_ranks, start_command, wait_until

pytestmark = pytest.mark.faults

DEATH = """
    import os, signal, sys, threading, time
    import numpy as np
    import commrt

    where, victims = sys.argv[1], [int(v) for v in sys.argv[2].split(",")]
    rank = int(os.environ["RANK"])

    def die():
        if rank in victims:
            os.kill(os.getpid(), signal.SIGKILL)

    def survive(call):
        began = time.monotonic()
        try:
            call()
        except commrt.PeerLostError as exc:
            print("lost", exc.ranks, exc.operations, time.monotonic() - began < 5, flush=True)
            assert set(exc.hosts) == {os.uname().nodename}, exc.hosts
            if commrt.is_initialized():
                try:
                    commrt.init()  # it must not look as if all were well
                except commrt.InitError as again:
                    assert "lost rank" in str(again)
                else:
                    raise AssertionError("init() after a loss said nothing")
            sys.exit(0)
        raise AssertionError("nobody noticed")

    def meet():  # here everybody hears of it, whatever it was doing
        commrt.barrier()
        time.sleep(60)

    if where == "before init":
        die()
        survive(lambda: (commrt.init(), meet()))
    if where == "in init":
        if rank in victims:
            threading.Timer(0.25, die).start()
        survive(lambda: (commrt.init(), time.sleep(1), commrt.allreduce(1.0, name="g")))
    commrt.init()
    commrt.allreduce(np.ones(10))
    if where == "negotiation":
        die()
        survive(lambda: commrt.allreduce(np.ones(10), name="g"))
    if where == "bucket":
        handle = commrt.allreduce_async_(np.ones(64 << 20, np.float32), name="g")
        trace = commrt.api.session().runtime.parts.executor
        while not (handle.done() or trace.steps() > 5):
            time.sleep(0.001)
        die()
        survive(lambda: (handle.wait(), commrt.barrier()))
    if where == "shutdown":
        if rank in victims:
            threading.Thread(target=commrt.shutdown).start()
            die()
        commrt.shutdown()
        print("clean", flush=True)
"""


@pytest.mark.parametrize(
    ("where", "victims", "np"),
    [
        ("before init", "1", 2),
        ("in init", "1", 3),
        ("in init", "0", 2),
        ("negotiation", "1", 3),
        ("negotiation", "0", 3),
        ("negotiation", "0,2", 4),
        ("bucket", "1", 3),
        ("bucket", "0", 2),
    ],
)
def test_survivors_of_a_death_name_the_dead(where: str, victims: str, np: int) -> None:
    result = run_ranks(DEATH, np, args=[where, victims])
    dead = tuple(int(v) for v in victims.split(","))
    assert result.status == 128 + signal.SIGKILL
    for rank in set(range(np)) - set(dead):
        lost = re.match(r"lost (\(.*?\)) (\(.*?\)) True$", result.stdout_of[rank])
        assert lost, result.output
        assert lost[1] == str(dead)
        if where == "negotiation":
            assert lost[2] == "('g',)"
    for rank in dead:
        assert f"rank {rank}" in result.report and "SIGKILL" in result.report


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_of_a_death_in_a_transfer_over_tcp_name_the_dead(victim: int) -> None:
    result = run_ranks(DEATH, 3, args=["bucket", str(victim)], env={"COMMRT_TRANSPORT": "tcp"})
    assert result.status == 128 + signal.SIGKILL
    for rank in {0, 1, 2} - {victim}:
        assert re.match(rf"lost \({victim},\) \(.*?\) True$", result.stdout_of[rank]), result.output


@pytest.mark.parametrize("victim", ["0", "1"])
def test_a_death_in_shutdown_keeps_nobody_waiting(victim: str) -> None:
    result = run_ranks(DEATH, 2, args=["shutdown", victim])
    assert result.status == 128 + signal.SIGKILL
    assert result.stdout_of[1 - int(victim)] == "clean\n"


CHECKPOINT = """
    import os, signal, sys
    import numpy as np
    import commrt
    commrt.init()
    commrt.barrier()
    if commrt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        commrt.allreduce(np.ones(10))
    except commrt.PeerLostError:
        with open(sys.argv[1], "wb") as file:
            file.write(b"x" * 100_000_000)
        raise
"""


def test_a_survivor_has_time_to_write_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    result = run_ranks(CHECKPOINT, 2, args=[str(path)])
    assert path.stat().st_size == 100_000_000
    assert result.status == 128 + signal.SIGKILL
    assert "rank 1 on host" in result.report and "rank 0 ended because of it" in result.report


STOPPED = """
    import os, signal, subprocess, sys
    import numpy as np
    import commrt
    commrt.init()
    where, victim = sys.argv[1], int(sys.argv[2])
    x = np.ones(64 << 20 if where == "transfer" else 10, np.float32)
    handle = commrt.allreduce_async_(x, name="g") if where == "transfer" else None
    if commrt.rank() == victim:
        executor = commrt.api.session().runtime.parts.executor
        while handle and not handle.done() and executor.steps() < 5:
            pass
        pid = os.getpid()
        stopped = f"[ -e {sys.argv[3]} ] && grep -q '^State:.T' /proc/{pid}/status"
        subprocess.Popen(["sh", "-c", f"until {stopped}; do sleep 0.05; done; kill -CONT {pid}"],
                         start_new_session=True)
        os.kill(pid, signal.SIGSTOP)
    (handle or commrt.allreduce_async_(x, name="g")).wait()
    assert x.min() == x.max() == 1.0
    print("ok", flush=True)
"""


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("where", "transport"), [("negotiation", "auto"), ("transfer", "auto"), ("transfer", "tcp")]
)
def test_a_stopped_rank_is_named_and_the_run_goes_on(
    where: str, transport: str, victim: int, tmp_path: Path
) -> None:
    script, flag = tmp_path / "script.py", tmp_path / "go-on"
    script.write_text(textwrap.dedent(STOPPED))
    command = [sys.executable, str(script), where, str(victim), str(flag)]
    process = start_command(
        command, 2, env={"COMMRT_STALL_WARN": "0.5", "COMMRT_TRANSPORT": transport}
    )
    assert process.stderr is not None
    seen = ""
    try:
        while "g" not in re.findall(r"\bg\b", seen):
            line = process.stderr.readline()
            assert line, f"ended without a warning: {seen}"
            seen += line
        flag.touch()
        out, err = process.communicate(timeout=60)
    except BaseException:
        end_job(process)
        raise
    assert process.returncode == 0, seen + err
    assert f"rank {victim}" in seen
    assert out.count("ok") == 2


ENDS = """
    import sys
    import numpy as np
    import commrt
    commrt.init()
    commrt.barrier()
    if commrt.rank() == int(sys.argv[1]):
        if sys.argv[2] == "exception":
            raise ValueError("boom")
        sys.exit(0)
    try:
        commrt.allreduce(np.ones(10), name="g")
    except commrt.ShutdownError as exc:
        print(exc, flush=True)
"""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["exception", "end"])
def test_a_rank_that_ends_while_others_wait_is_named(rank: int, how: str) -> None:
    result = run_ranks(ENDS, 3, args=[str(rank), how])
    why = "ValueError: boom" if how == "exception" else "its script ended"
    for other in {0, 1, 2} - {rank}:
        assert re.search(rf"rank {rank}\b.* has shut down \({why}\)", result.stdout_of[other])
    assert result.status == (1 if how == "exception" else 0)
    if how == "exception":
        assert f"rank {rank}" in result.report and "boom" in result.report


INTERRUPT = """
    import os, signal, threading
    import commrt
    commrt.init()
    commrt.barrier()
    if commrt.rank() == 1:
        handle = commrt.allreduce_async(1.0, name="never")
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            handle.wait()
        except KeyboardInterrupt:
            print("interrupted", handle.done(), flush=True)
            raise
    else:
        try:
            commrt.allreduce(1.0, name="other")
        except commrt.CommError as exc:
            print(type(exc).__name__, flush=True)
"""


def test_ctrl_c_raises_in_a_wait_at_once_and_the_exit_is_clean() -> None:
    result = run_ranks(INTERRUPT, 2)
    assert result.stdout_of == {0: "ShutdownError\n", 1: "interrupted False\n"}
    assert result.status == 128 + signal.SIGINT


GARBAGE = """
    import os, socket, time
    import numpy as np
    import zmq
    import commrt
    commrt.init()
    if commrt.rank() == 0:
        link = commrt.api.session().runtime.parts.link
        address = link._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\\0").decode()
        path = b"\\0" + address.removeprefix("ipc://@").encode()
        for data in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"\\xff" * 1000, os.urandom(100_000)):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(path)
                try:
                    raw.sendall(data)
                except OSError:
                    pass
        context = zmq.Context()
        public, secret = zmq.curve_keypair()
        for curve in (False, True):
            foreign = context.socket(zmq.DEALER)
            foreign.setsockopt(zmq.LINGER, 0)
            foreign.setsockopt(zmq.ROUTING_ID, b"r1")
            if curve:
                foreign.setsockopt(zmq.CURVE_SERVERKEY, public)
                foreign.setsockopt(zmq.CURVE_PUBLICKEY, public)
                foreign.setsockopt(zmq.CURVE_SECRETKEY, secret)
            foreign.connect(address)
            foreign.send(b"nonsense")
            foreign.close(linger=200)
        context.term()
        while not link._monitor._refused:  # read by the engine, whenever ZeroMQ says so
            time.sleep(0.01)
    for i in range(50):
        assert commrt.allreduce(np.ones(10), name="g")[0] == 1.0
    print("ok", flush=True)
"""


def test_strangers_on_the_control_socket_are_ignored_and_logged() -> None:
    result = run_ranks(GARBAGE, 2)
    assert (result.status, result.stdout_of) == (0, {0: "ok\n", 1: "ok\n"})
    assert "refused a connection" in result.stderr_of[0]


WORKERS = """
    import os, signal, sys
    import numpy as np
    import torch
    import commrt

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, i):
            return torch.full((4,), float(i))

    commrt.init()
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    commrt.barrier()
    if commrt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for batch in batches:
            commrt.allreduce(batch)
    except commrt.PeerLostError as exc:
        print("lost", exc.ranks, flush=True)
"""


def test_a_dead_rank_is_noticed_although_its_workers_live_on() -> None:
    pytest.importorskip("torch")
    result = run_ranks(WORKERS, 2)
    assert result.stdout_of == {0: "lost (1,)\n"}
    assert result.status == 128 + signal.SIGKILL


def test_two_jobs_of_one_user_run_side_by_side() -> None:
    source = (
        "import commrt; commrt.init(); "
        "assert [commrt.allreduce(1.0) for _ in range(200)][-1] == 1.0; print('ok')"
    )
    jobs = [start_command([sys.executable, "-c", source], 2) for _ in range(2)]
    try:
        for job in jobs:
            out, err = job.communicate(timeout=60)
            assert (out.count("ok"), job.returncode) == (2, 0), err
    finally:
        for job in jobs:
            if job.poll() is None:
                end_job(job)


SHARES = """
    import os, signal
    import numpy as np
    import commrt
    commrt.init()
    commrt.allreduce(np.ones(10))
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/dev/shm/" in line:
                print(line.split(maxsplit=5)[5].strip(), flush=True)
    commrt.barrier()
    if commrt.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    commrt.allreduce(np.ones(10))
"""


def test_nothing_is_left_behind_after_a_kill() -> None:
    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # short, as sockets need it
        result = run_ranks(SHARES, 2, env={"TMPDIR": temporary})
        assert result.status == 128 + signal.SIGKILL
        files = {Path(name) for name in result.stdout_of[0].split()}
        assert files and all(file.parent.name.startswith("commrun-") for file in files)
        wait_until(
            lambda: not any(file.parent.exists() for file in files) and not os.listdir(temporary),
            "shared memory and private directories are gone",
        )

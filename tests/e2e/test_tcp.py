"""Ranks of one host over TCP."""

from __future__ import annotations

import re
import signal
import tempfile
from pathlib import Path

import pytest

from harness import run_ranks, wait_until

pytestmark = pytest.mark.ranks

TCP = {"COMMRT_TRANSPORT": "tcp"}

_WIRE = """
    import gc, os, socket
    import numpy as np
    import commrt
    from commrt.transports.tcp import TcpWire

    def wire():
        return next(found for found in gc.get_objects() if isinstance(found, TcpWire))

    def data_port():
        return wire()._door._listener.getsockname()
"""

COLLECTIVES = """
    commrt.init(process_sets=[[0, 2]])
    rank, size = commrt.rank(), commrt.size()
    assert wire()
    for n in (0, 1, 1000, 70_001, 3_000_017):
        inputs = [np.random.default_rng(r).integers(0, 99, n).astype(np.float32)
                  for r in range(size)]
        ours, total = inputs[rank], sum(inputs)
        assert np.array_equal(commrt.allreduce(ours, op=commrt.Sum), total)
        mine = ours.copy()
        commrt.allreduce_(mine, op=commrt.Max)
        assert np.array_equal(mine, np.max(inputs, axis=0))
        assert np.array_equal(commrt.allgather(ours[: n // (rank + 1)]),
                              np.concatenate([a[: n // (r + 1)] for r, a in enumerate(inputs)]))
        assert np.array_equal(commrt.broadcast(ours, 1), inputs[1])
        rows = commrt.reducescatter(ours.reshape(-1, 1), op=commrt.Sum)[:, 0]
        assert np.array_equal(rows, np.array_split(total, size)[rank])
        third = n // 3
        found, received = commrt.alltoall(ours, [third, third, n - 2 * third])
        assert list(received) == [n - 2 * third if rank == 2 else third] * 3
        cut = slice(rank * third, None if rank == 2 else (rank + 1) * third)
        assert np.array_equal(found, np.concatenate([a[cut] for a in inputs]))
    print("ok", flush=True)
"""


def ok(script: str, np: int, *, timeout: float = 60, **env: str) -> str:
    """Run ranks over TCP, all of which have to print `ok`; return all output."""
    result = run_ranks(_WIRE + script, np, env={**TCP, **env}, timeout=timeout)
    assert result.status == 0, result.output
    assert [result.stdout_of.get(rank) for rank in range(np)] == ["ok\n"] * np, result.output
    return result.output


@pytest.mark.parametrize("np", [2, 3])
def test_collectives_of_any_size_are_right(np: int) -> None:
    script = COLLECTIVES if np == 3 else _TWO
    assert "warning" not in ok(script, np).lower()


_TWO = """
    commrt.init()
    for n in (0, 1, 8193, 16_385, 4_000_003):
        ours = np.arange(n, dtype=np.int64) * (commrt.rank() + 1)
        assert np.array_equal(commrt.allreduce(ours, op=commrt.Sum), np.arange(n) * 3)
    print("ok", flush=True)
"""


IN_FLIGHT = """
    commrt.init(process_sets=[[0, 1], [1, 2], [2, 0]])
    rank, size = commrt.rank(), commrt.size()
    sizes = [1, 300_000, 17, 2_000_003, 1000, 70_000, 5, 1_000_000]
    for turn in range(3):
        order = np.random.default_rng(rank).permutation(len(sizes))
        handles = {
            i: commrt.allreduce_async(
                np.full(sizes[i], i + rank, np.float32), name=f"{turn} {i}", op=commrt.Sum)
            for i in order
        }
        for i, handle in handles.items():
            out = handle.wait()
            assert out.size == sizes[i] and set(np.unique(out)) == {3.0 * i + 3}, (turn, i)
    print("ok", flush=True)
"""


def test_several_in_flight_keep_apart_whatever_the_order_in_which_ranks_submit_them() -> None:
    ok(IN_FLIGHT, 3, COMMRT_BUCKET="64KiB")


AGAIN = """
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    counts, ports = [], []
    for i in range(5):
        commrt.init()
        ports.append(data_port())
        assert commrt.allreduce(float(i)) == i
        assert commrt.allreduce(np.full(1_000_000, i, np.float32))[-1] == i
        commrt.shutdown()
        try:
            socket.create_connection(ports[-1]).close()
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("the old door is still open")
        counts.append(descriptors())
    assert len(set(counts[1:])) == 1, counts
    print("ok", flush=True)
"""


def test_every_start_has_connections_of_its_own_and_gives_them_back() -> None:
    ok(AGAIN, 3)


SILENCE = """
    commrt.init()
    commrt.allreduce(np.ones(1_000_000, np.float32))
    commrt.barrier()
    [epoll] = wire().descriptors()
    with open(f"/proc/self/fdinfo/{epoll}") as info:
        assert "tfd:" not in info.read()
    strangers = [socket.create_connection(data_port()) for _ in range(10)]
    with open(f"/proc/self/fdinfo/{epoll}") as info:
        assert "tfd:" not in info.read()
    commrt.barrier()
    print("ok", flush=True)
"""


def test_no_data_connection_wakes_an_engine_that_has_nothing_to_move() -> None:
    ok(SILENCE, 3)


FORK = """
    commrt.init()
    rank = commrt.rank()

    def links():
        fds = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
        return {os.readlink(fd) for fd in fds if os.path.exists(fd) or os.path.islink(fd)}

    ours = np.ones(2_000_000, np.float32)
    commrt.allreduce(ours, name="before")
    sockets = {os.readlink(f"/proc/self/fd/{s._socket.fileno()}")
               for s in wire()._streams.values()}
    assert sockets
    for turn in range(3):
        handle = commrt.allreduce_async(ours * rank, name=f"during {turn}", op=commrt.Sum)
        pid = os.fork()
        if pid == 0:
            kept = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.islink(f"/proc/self/fd/{fd}")]
            if sockets & set(kept):
                os._exit(3)
            if turn:
                os._exit(0)
            raise SystemExit(0)  # through all exit handlers
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert set(handle.wait()) == {3.0}
    assert commrt.allreduce(ours, name="after")[-1] == 1.0
    print("ok", flush=True)
"""


def test_a_forked_child_keeps_no_connection_and_its_parent_goes_on() -> None:
    ok(FORK, 3)


MANY = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    commrt.init()
    rank, size = commrt.rank(), commrt.size()
    assert commrt.allreduce(np.full(100_000, rank), op=commrt.Sum)[-1] == sum(range(size))
    assert commrt.allreduce(np.full(9, rank), op=commrt.Sum)[-1] == sum(range(size))
    found, _ = commrt.alltoall(np.full(size, rank), [1] * size)  # everybody meets everybody
    assert found.tolist() == list(range(size))
    assert len(wire()._streams) == size - 1
    print("ok", flush=True)
"""


def test_sixteen_ranks_get_along_with_256_descriptors_each() -> None:
    ok(MANY, 16, timeout=100)


GARBAGE = """
    import threading
    commrt.init()
    rank, stop = commrt.rank(), threading.Event()
    address = data_port()

    def annoy():
        random = np.random.default_rng(rank)
        while not stop.is_set():
            try:  # nobody lets strangers in while there is nothing to move
                with socket.create_connection(address, timeout=0.5) as stranger:
                    stranger.sendall(random.bytes(int(random.integers(0, 200))))
            except OSError:
                pass

    thread = threading.Thread(target=annoy)
    thread.start()
    try:
        for i in range(20):
            out = commrt.allreduce(np.full(200_000, rank, np.float32), op=commrt.Sum)
            assert set(out) == {3.0}
            found, _ = commrt.alltoall(np.full(3, rank), [1, 1, 1])
            assert found.tolist() == [0, 1, 2]
    finally:
        stop.set()
        thread.join()
    commrt.barrier()
    print("ok", flush=True)
"""


@pytest.mark.faults
def test_garbage_on_the_data_ports_changes_nothing_while_data_moves() -> None:
    ok(GARBAGE, 3)


DEATH = """
    import signal, sys, threading, time
    victim, where = int(sys.argv[1]), sys.argv[2]
    commrt.init()
    rank, executor = commrt.rank(), commrt.api.session().runtime.parts.executor
    if where == "connected":
        commrt.allreduce(np.ones(1_000_000, np.float32))
    before = executor.steps()
    handle = commrt.allreduce_async_(np.ones(64 << 20, np.float32), name="g")
    if rank == victim:
        while executor.steps() < before + 5:
            assert not handle.done()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        handle.wait()
        commrt.barrier()
    except commrt.PeerLostError as exc:
        print("lost", exc.ranks, flush=True)
"""


@pytest.mark.faults
@pytest.mark.parametrize("where", ["connected", "first"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_who_is_killed_in_the_middle_of_a_transfer_is_named_alone(victim: int, where: str) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # short, as sockets need it
        shared = set(Path("/dev/shm").iterdir())
        result = run_ranks(
            _WIRE + DEATH, 3, args=[str(victim), where], env={**TCP, "TMPDIR": temporary}
        )
        assert result.status == 128 + signal.SIGKILL
        survivors = {0, 1, 2} - {victim}
        assert result.stdout_of == dict.fromkeys(survivors, f"lost ({victim},)\n")
        assert f"rank {victim}" in result.report and "SIGKILL" in result.report

        def left() -> set[Path]:
            return {p for p in set(Path("/dev/shm").iterdir()) - shared if "commrun" in p.name}

        wait_until(lambda: not left() and not any(Path(temporary).iterdir()), "nothing is left")


REFUSED = """
    import commrt.engine.distant as distant
    if os.environ["RANK"] == "1":
        def refuse(host):
            raise OSError(99, "Cannot assign requested address")
        distant.listen = refuse
    before = len(os.listdir("/proc/self/fd"))
    try:
        commrt.init()
    except commrt.InitError as exc:
        print(exc, flush=True)
"""


def test_where_it_is_demanded_and_a_rank_can_not_listen_init_fails_on_all() -> None:
    result = run_ranks(_WIRE + REFUSED, 3, env=TCP)
    said = {re.sub(r"host \S+|on \S+", "", text) for text in result.stdout_of.values()}
    assert len(result.stdout_of) == 3 and len(said) == 1, result.output
    assert "COMMRT_TRANSPORT=tcp" in result.stdout_of[0]
    assert "rank 1" in result.stdout_of[0] and "Cannot assign" in result.stdout_of[0]


RIGHT = """
    import numpy as np
    import commrt
    commrt.init()
    rank, size = commrt.rank(), commrt.size()
    total = size * (size + 1) // 2
    handles = []
    for n in (0, 1, 1001, 20_000, 3_000_001):
        for dtype in (np.float32, np.int64, np.float16, np.bool_):
            x = np.full(n, rank + 1, dtype)
            expected = np.full(n, total, dtype)
            handles.append((commrt.allreduce_async(x, op=commrt.Sum), expected))
            assert (commrt.broadcast(x, root_rank=size - 1) == np.full(n, size, dtype)).all()
    for handle, expected in handles:
        assert (handle.wait() == expected).all()
    rows = commrt.allgather(np.full((rank, 3), rank))
    assert rows[:, 0].tolist() == [r for r in range(size) for _ in range(r)]
    found, splits = commrt.alltoall(np.arange(size) + 10 * rank, np.ones(size, np.int64))
    assert found.tolist() == [10 * r + rank for r in range(size)], found
    part = commrt.reducescatter(np.arange(2.0 * size), op=commrt.Sum)
    assert part.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    print("right", flush=True)
"""


@pytest.mark.parametrize("np", [2, 3])
def test_collectives_over_tcp_are_right(np: int) -> None:
    result = run_ranks(RIGHT, np, env=TCP)
    assert result.status == 0, result.output
    assert set(result.stdout_of.values()) == {"right\n"}


FEW = """
    import resource
    import numpy as np
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    import commrt
    commrt.init()
    size = commrt.size()
    for n in (10, 100_000):
        assert (commrt.allreduce(np.ones(n, np.float32), op=commrt.Sum) == size).all()
    assert len(commrt.allgather(np.ones(2))) == 2 * size
    print("right", flush=True)
"""


def test_few_descriptors_are_enough() -> None:
    result = run_ranks(FEW, 6, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 6


STRANGERS = """
    import os, socket
    import numpy as np
    import commrt
    commrt.init()
    transport = commrt.api.session().runtime.parts.executor._transport
    address = transport._wire._door._listener.getsockname()
    silent = [socket.create_connection(address) for _ in range(10)]
    for number in range(5):
        x = np.full(2_000_000, commrt.rank() + 1.0, np.float32)
        handle = commrt.allreduce_async(x, name=f"g{number}", op=commrt.Sum)
        silent.append(socket.create_connection(address))
        silent[-1].sendall(os.urandom(1000))
        assert (handle.wait() == 3.0).all()
    print("right", flush=True)
"""


@pytest.mark.faults
def test_strangers_at_the_data_ports_change_nothing() -> None:
    result = run_ranks(STRANGERS, 2, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 2


CHILD = """
    import os
    import numpy as np
    import commrt
    commrt.init()
    x = np.ones(1_000_000, np.float32)
    commrt.allreduce_(x, op=commrt.Average, name="x")
    pid = os.fork()
    if not pid:
        x[:] = 7
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    for _ in range(3):
        commrt.allreduce_(x, op=commrt.Average, name="x")
    assert (x == 1).all()
    print("right", flush=True)
"""


@pytest.mark.faults
def test_a_child_leaves_its_parents_connections_alone() -> None:
    result = run_ranks(CHILD, 2, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 2

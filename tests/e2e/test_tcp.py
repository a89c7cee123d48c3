"""Real ranks that move data over TCP."""

from __future__ import annotations

import pytest

from harness import run_ranks

TCP = {"COMMRT_TRANSPORT": "tcp"}

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


@pytest.mark.ranks
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


@pytest.mark.ranks
def test_few_descriptors_are_enough() -> None:
    result = run_ranks(FEW, 6, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 6


GARBAGE = """
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
    result = run_ranks(GARBAGE, 2, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 2


FORK = """
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
    result = run_ranks(FORK, 2, env=TCP)
    assert result.status == 0, result.output
    assert list(result.stdout_of.values()) == ["right\n"] * 2

"""Several ranks on each of several hosts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from commrt.testing.lab.hosts import Lab
from stress import SCRIPT as SCRIPT_OF_ANY_SIZE

pytestmark = pytest.mark.lab

SCRIPT = """
    import numpy as np
    import commrt
    commrt.init()
    rank, size = commrt.rank(), commrt.size()
    total = size * (size + 1) // 2
    for n in (1, 1001, 3_000_001):
        for dtype in (np.float32, np.int64, np.float16):
            x = np.full(n, rank + 1, dtype)
            assert (commrt.allreduce(x, op=commrt.Sum) == total).all()
            assert (commrt.broadcast(x, root_rank=size - 1) == size).all()
            assert commrt.allgather(x[:3]).tolist() == [r + 1 for r in range(size) for _ in x[:3]]
    name = type(commrt.api.session().runtime.parts.executor._transport).__name__
    print(name, commrt.local_size(), commrt.cross_size(), flush=True)
"""


def test_ranks_of_two_hosts_reduce_in_their_hosts_and_across(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with Lab(2) as lab:
        done = lab.run(0, lab.job(2, [sys.executable, str(script)], {}), timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["HierarchicalTransport 2 2"] * 4


@pytest.mark.parametrize(("hosts", "ranks"), [(2, (2, 2)), (3, (1, 2, 1))])
def test_any_size_dtype_and_operation_is_right(
    hosts: int, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT_OF_ANY_SIZE)
    with Lab(hosts) as lab:
        command = [sys.executable, str(script), str(8 << 20)]
        done = lab.run(0, lab.job(ranks, command, {}), timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ok"] * sum(ranks)

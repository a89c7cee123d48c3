"""Ranks of one host: what moves their data, and what happens where memory can't be shared."""

from __future__ import annotations

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

_CHECK = """
import sys
import numpy as np
import commrt
from commrt.api import session

{sabotage}

commrt.init()
rank, size = commrt.rank(), commrt.size()
for n in (0, 1, 1000, 70_001, 1_000_003):
    ours = np.arange(n, dtype=np.float32) + rank
    mean = commrt.allreduce(ours, name=f"mean {{n}}")
    assert np.array_equal(mean, np.arange(n, dtype=np.float32) + (size - 1) / 2)
    rows = commrt.allgather(ours.reshape(-1, 1), name=f"rows {{n}}")
    assert np.array_equal(rows[n * rank : n * (rank + 1), 0], ours) and len(rows) == n * size
assert np.array_equal(commrt.broadcast(np.full(9, rank), 1), np.full(9, 1))
print(type(session().runtime.parts.executor._transport).__name__)
"""

_NO_MEMFD = """
import mmap
import os
def refuse(*args, **options):
    raise PermissionError(1, "Operation not permitted")
{condition}
"""


def told(sabotage: str, np: int = 2, **env: str) -> tuple[set[str], str]:
    result = run_ranks(_CHECK.format(sabotage=sabotage), np, env=env)
    assert result.status == 0, result.output
    return {result.stdout_of[rank].strip() for rank in range(np)}, result.output


@pytest.mark.parametrize("np", [2, 3])
def test_it_moves_the_data_of_one_host(np: int) -> None:
    transports, log = told("", np)
    assert transports == {"SharedTransport"}
    assert "share memory" not in log


def test_a_setting_leaves_it_out() -> None:
    assert told("", COMMRT_SHM="0")[0] == {"MessageTransport"}
    assert told("", COMMRT_TRANSPORT="mpi")[0] == {"MessageTransport"}


@pytest.mark.parametrize(
    ("sabotage", "who"),
    [
        ("os.memfd_create = refuse", "rank 0"),
        ("os.posix_fallocate = refuse", "rank 0"),
        ("if os.environ['OMPI_COMM_WORLD_RANK'] == '1': mmap.mmap = refuse", "rank 1"),
        ("sys.modules['numba'] = None", "rank 0"),
        ("os.environ['NUMBA_DISABLE_JIT'] = '1'", "rank 0"),
    ],
)
def test_where_it_is_refused_the_ranks_agree_on_another_one(sabotage: str, who: str) -> None:
    transports, log = told(_NO_MEMFD.format(condition=sabotage))
    assert transports == {"MessageTransport"}
    assert log.count("can't share memory, so MPI moves data") == 1
    assert who in log


def test_where_address_space_is_short_the_ranks_agree_on_another_one() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))"
    transports, log = told(limit)
    assert transports == {"MessageTransport"}
    assert "Cannot allocate memory" in log


def test_where_it_is_demanded_and_refused_init_fails() -> None:
    sabotage = _NO_MEMFD.format(condition="os.memfd_create = refuse")
    result = run_ranks(_CHECK.format(sabotage=sabotage), 2, env={"COMMRT_TRANSPORT": "shm"})
    assert result.status == 1
    assert "COMMRT_TRANSPORT=shm, but memory can't be shared: rank 0" in result.output


_FORK = """
import os
import torch
import commrt.torch as hvd

hvd.init()
weight = torch.nn.Parameter(torch.ones(300_000))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0))
for step in range(2):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
pid = os.fork()
if pid == 0:
    weight.grad.fill_(7.0)
    bare = torch.optim.SGD([weight], lr=1.0)
    bare.step()
    os._exit(0 if float(weight[0]) == -6.0 else 3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert torch.equal(weight.grad, torch.ones(300_000)), weight.grad
optimizer.zero_grad()
(weight.sum() * (1 + hvd.rank())).backward()
assert torch.equal(weight.grad, torch.full((300_000,), 1.5))
print("ok")
"""


def test_a_forked_child_that_trains_changes_nothing_in_its_parent() -> None:
    result = run_ranks(_FORK, 2)
    assert result.status == 0, result.output
    assert [result.stdout_of[rank].strip() for rank in range(2)] == ["ok", "ok"]

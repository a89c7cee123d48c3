from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping

import pytest

import commrt.torch as hvd
from harness import Result, run_ranks

Holds = Callable[..., None]

_START = """
import copy
import sys
import traceback

import torch
from torch import nn

import commrt.torch as hvd

torch.set_num_threads(1)
torch.manual_seed(0)
PAIR = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[PAIR])
rank, size = hvd.rank(), hvd.size()
facts = []
fact = facts.append


def same_everywhere(*tensors):
    flat = torch.cat([t.detach().double().flatten() for t in tensors])
    return all(torch.equal(row, flat) for row in hvd.allgather(flat[None]))


def ones(*shape):
    return nn.Parameter(torch.ones(*shape))

"""

_END = """
for f in facts:
    try:
        f()
        print(f.__name__, "holds", flush=True)
    except Exception:
        print(f.__name__, "does not hold", file=sys.stderr)
        traceback.print_exc()
    hvd.barrier()
"""


@pytest.fixture
def world() -> Iterator[None]:
    """One rank of one, in this process."""
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(scope="session")
def holds() -> Holds:
    """Assert that a function of a script, marked `@fact`, ran well on every rank.

    Ranks start slowly, so a script runs once, all its facts one after the other.
    """
    done: dict[tuple[str, int], Result] = {}

    def check(source: str, name: str, np: int = 2, env: Mapping[str, str] | None = None) -> None:
        if (source, np) not in done:
            done[source, np] = run_ranks(_START + textwrap.dedent(source) + _END, np, env=env)
        result = done[source, np]
        for rank in range(np):
            lines = result.stdout_of.get(rank, "").splitlines()
            assert f"{name} holds" in lines, f"not on rank {rank}:\n{result.output}"

    return check

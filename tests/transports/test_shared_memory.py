"""Shared memory between ranks of one process, each with a mapping of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commrt.kernels.reduction import Reduction
from commrt.types import ReduceOp
from harness import run_ranks
from transports.conformance import CHECKS, OneProcess, Operation, Party, drive
from transports.hosts import host

NAMES = [check.__name__.removeprefix("check_") for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
@given(
    st.integers(1, 9), st.sampled_from((0, 64, 64 << 10)), st.sampled_from((192, 1000, 64 << 10)),
    st.integers(0, 1 << 14), st.integers(0, 1 << 32),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_it_conforms(
    check: Callable[[Party, int], None], size: int, small: int, piece: int, start: int, seed: int
) -> None:
    with host(range(size), small, piece) as transports:
        check(OneProcess(transports, start=start), seed)


@given(st.integers(2, 5), st.integers(1, 20_000), st.booleans(), st.integers(0, 1 << 32))
@settings(max_examples=200, deadline=None)
def test_pieces_take_turns_in_a_stage(size: int, n: int, in_place: bool, seed: int) -> None:
    rng = random.Random(seed)
    inputs = [np.arange(n, dtype=np.int64) * (rank + 1) for rank in range(size)]
    sources = {rank: values.copy() for rank, values in enumerate(inputs)}
    outs = sources if in_place else {rank: np.zeros(n, np.int64) for rank in range(size)}
    with host(range(size), 0, 4096) as transports:
        party = OneProcess(transports)
        channel = party.numbers.channel()
        operation = Operation(
            range(size), sources, outs, dict.fromkeys(range(size), sum(inputs)),
            lambda rank, place: transports[rank].allreduce(
                place, channel, sources[rank], outs[rank], Reduction(ReduceOp.SUM)
            ),
        )  # fmt: skip
        drive(party, [operation], rng)
        operation.check(party)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 4])
def test_it_conforms_between_processes(ranks: int) -> None:
    conforms(ranks)


@pytest.mark.ranks
def test_no_kernel_touches_what_has_been_freed() -> None:
    """Each block of memory is mapped by itself here, and gone as soon as it is freed."""
    conforms(2, MALLOC_MMAP_THRESHOLD_="0")


def conforms(ranks: int, **env: str) -> None:
    script = Path(__file__).with_name("shared_conformance.py")
    result = run_ranks(script, ranks, args=["10"], env=env)
    assert result.status == 0, result.output
    said = {rank: text.strip() for rank, text in result.stdout_of.items()}
    assert said == {rank: f"conforms {len(CHECKS)}" for rank in range(ranks)}

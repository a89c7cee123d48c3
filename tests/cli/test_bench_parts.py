"""Decisions of single benchmarks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from commrt.cli.bench import procfs
from commrt.cli.bench.bandwidth import iterations_for, pattern, wrong_values
from commrt.cli.bench.machine import this_machine, versions
from commrt.cli.bench.options import TYPES
from commrt.cli.bench.soak import Mark, failures_of, marks_at
from commrt.kernels.numpy_ import bfloat16

BFLOAT16 = bfloat16()


def dtype_of(name: str) -> np.dtype[np.generic]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_the_sum_of_all_patterns_is_right_and_any_other_value_is_counted(
    name: str, size: int
) -> None:
    dtype = dtype_of(name)
    result = np.sum([pattern(20, rank, dtype).astype(np.int64) for rank in range(size)], axis=0)
    right = result.astype(dtype)
    assert wrong_values(right, size) == 0
    right[[3, 19]] += right.dtype.type(1)
    assert wrong_values(right, size) == 2


def test_a_value_that_is_no_number_is_wrong() -> None:
    assert wrong_values(np.full(5, np.nan, np.float32), 2) == 5


def test_ranks_have_different_patterns() -> None:
    first, second = (pattern(7, rank, np.dtype(np.float32)) for rank in (0, 1))
    assert (first != second).all()


def test_large_arrays_are_reduced_less_often_unless_a_number_is_asked_for() -> None:
    assert iterations_for(4096, 0) > iterations_for(16 << 20, 0) > iterations_for(1 << 30, 0) > 0
    assert iterations_for(1 << 30, 17) == 17


@given(operations=integers(1, 200_000), marks=integers(1, 9))
def test_a_soak_looks_first_after_1000_operations_and_last_at_the_end(
    operations: int, marks: int
) -> None:
    stops = marks_at(operations, marks)
    assert stops[-1] == operations
    assert stops == sorted(set(stops))
    assert 1 <= stops[0] <= 1000
    assert len(stops) <= marks + 1


def test_growth_within_5_mb_is_forgiven_and_a_lost_descriptor_is_not() -> None:
    first = Mark(1000, 50_000_000, 30, 1e-4)
    assert failures_of("rank 0", [first, Mark(9000, 55_000_000, 30, 1e-4)]) == []
    assert failures_of("rank 0", [first, Mark(9000, 57_000_000, 31, 1e-4)]) == [
        "rank 0: memory grew by 7.0 MB",
        "rank 0: 1 more file descriptors",
    ]


def test_a_process_uses_memory_descriptors_and_time() -> None:
    before, descriptors = procfs.usage(), procfs.descriptors()
    with open("/dev/null"):
        assert procfs.descriptors() == descriptors + 1
    after = procfs.usage()
    assert procfs.memory() > 1 << 20
    assert after.clock > before.clock
    assert after.processor >= before.processor


def test_the_machine_and_its_versions_are_named() -> None:
    machine, known = this_machine(), versions(None)
    assert machine.cores > 0
    assert machine.memory > 1 << 28
    assert known["numpy"] == np.__version__
    assert known["mpi"] == ""

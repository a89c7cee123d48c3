from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.kernels import numpy_ as kernels
from commrt.kernels.numpy_ import bfloat16
from commrt.types import ReduceOp

BFLOAT16 = bfloat16()

FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
def test_a_name_and_its_dtype_go_both_ways(name: str) -> None:
    assert kernels.dtype_of(name).name == name


def test_bfloat16_is_a_float_and_integers_are_not() -> None:
    assert all(map(kernels.is_float, FLOATS))
    assert not any(map(kernels.is_float, [*INTEGERS, np.dtype(np.bool_)]))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_scaled_integers_go_toward_zero(dtype: np.dtype[Any]) -> None:
    array = np.array([0, 1, 3, 5, 100], dtype)
    kernels.scale(array, 0.5)
    assert array.tolist() == [0, 0, 1, 2, 50]
    if dtype.kind == "i":
        array = np.array([-1, -3, -5], dtype)
        kernels.scale(array, 0.5)
        assert array.tolist() == [0, -1, -2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_scaled_floats_are_products(dtype: np.dtype[Any]) -> None:
    array = np.array([0, 1, -3, np.inf], dtype)
    kernels.scale(array, 0.5)
    assert array.tolist() == [0, 0.5, -1.5, np.inf]


def test_scaling_leaves_booleans_alone() -> None:
    array = np.array([True, False])
    kernels.scale(array, 0.0)
    assert array.tolist() == [True, False]


@given(st.integers(1, 64), st.integers(0, 1 << 32))
@pytest.mark.parametrize("dtype", FLOATS[2:])
def test_a_quotient_is_a_true_division(dtype: np.dtype[Any], n: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=20).astype(dtype)
    found = values.copy()
    kernels.divide(found, n)
    np.testing.assert_array_equal(found, values / dtype.type(n))


def test_a_quotient_by_a_power_of_two_is_exact_at_the_ends_of_the_range() -> None:
    info = np.finfo(np.float32)
    values = np.array([info.max, info.tiny, info.smallest_subnormal * 7, -0.0], np.float32)
    for n in (1, 2, 64, 1024):
        found = values.copy()
        kernels.divide(found, n)
        np.testing.assert_array_equal(found, values / np.float32(n))


def test_a_cast_rounds_to_nearest_even_and_overflows_quietly() -> None:
    out = np.empty(5, np.float16)
    values = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e6, -1e6, np.nan]
    kernels.cast(np.array(values, np.float32), out)
    assert out.tolist()[:4] == [1.0, 1 + 2.0**-9, np.inf, -np.inf]
    assert np.isnan(out[4])


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sum_is_taken_in_the_total_s_dtype(dtype: np.dtype[Any]) -> None:
    total = np.array([2.0**20, np.inf, 1.0], np.float32)
    kernels.fold_cast(ReduceOp.SUM, total, np.array([1, -np.inf, np.nan], dtype))
    assert total[0] == 2.0**20 + 1
    assert np.isnan(total[1:]).all()


@pytest.mark.parametrize("dtype", INTEGERS)
@given(st.data())
def test_integer_means_equal_pythons(dtype: np.dtype[Any], data: st.DataObject) -> None:
    info = np.iinfo(dtype)
    numbers = st.integers(int(info.min), int(info.max))
    columns = data.draw(st.lists(numbers, min_size=1, max_size=70))
    out = np.empty(1, dtype)
    kernels.integer_mean([np.array([value], dtype) for value in columns], out)
    total = sum(columns)
    expected = abs(total) // len(columns) * (1 if total >= 0 else -1)
    assert int(out[0]) == expected

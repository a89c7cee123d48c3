"""Codecs over simulated ranks: what they promise about numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commrt.codecs.direct import DirectFloat, DirectIntegerMean
from commrt.codecs.none import Plain
from commrt.codecs.registry import NAMES, choose
from commrt.kernels.numpy_ import bfloat16
from commrt.testing.conversation import Array, exchange
from commrt.types import ReduceOp

BFLOAT16 = bfloat16()
SUM, AVERAGE = ReduceOp.SUM, ReduceOp.AVERAGE

FP16, FP32, FP64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
HALVES = (FP16, BFLOAT16)
ROUNDING = {FP16: 2.0**-11, BFLOAT16: 2.0**-8, FP32: 2.0**-24}
"""Relative error of one rounding to nearest."""
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
SEEDS = st.integers(0, 1 << 32)


def alike(outs: list[Array]) -> bool:
    return len({out.tobytes() for out in outs}) == 1


def toward_zero(total: int, n: int) -> int:
    return total // n if total >= 0 else -(-total // n)


def half(wire: np.dtype[Any]) -> DirectFloat:
    return DirectFloat(wire, FP32)


@given(st.sampled_from(INTEGERS), st.integers(1, 64), SEEDS)
@settings(max_examples=150)
def test_integer_means_are_exact_and_go_toward_zero(
    dtype: np.dtype[Any], size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    special = [0, 1, info.min, info.max, info.max - 1, info.min + 1]
    sources = []
    for _ in range(size):
        values = rng.integers(info.min, info.max, 12, dtype, endpoint=True)
        values[:6] = rng.choice(np.array(special, dtype), 6)
        sources.append(values)
    outs = exchange(DirectIntegerMean(), sources, op=AVERAGE)
    assert alike(outs)
    expected = [toward_zero(sum(int(s[i]) for s in sources), size) for i in range(12)]
    assert outs[0].tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [1, 2, 3, 49, 64])
def test_the_mean_of_equal_integers_is_that_integer(dtype: np.dtype[Any], size: int) -> None:
    info = np.iinfo(dtype)
    values = np.array([1, 0, info.max, info.min, 2, 3, 7], dtype)
    for out in exchange(DirectIntegerMean(), [values] * size, op=AVERAGE):
        assert out.tolist() == values.tolist()


def test_negative_integer_means_go_toward_zero() -> None:
    sources = [np.array(v, np.int32) for v in ([-1, -3, -4, 1], [0, 0, 0, 0], [0, -1, -1, 1])]
    [out, *_] = exchange(DirectIntegerMean(), sources, op=AVERAGE)
    assert out.tolist() == [0, -1, -1, 0]


@pytest.mark.parametrize("wire", HALVES)
@pytest.mark.parametrize("dtype", [None, FP32, FP64])
def test_an_average_within_range_never_overflows(
    wire: np.dtype[Any], dtype: np.dtype[Any] | None
) -> None:
    for size, value in ((2, 40000.0), (8, 10000.0), (64, 60000.0)):
        value = float(np.array(value, wire))
        source = np.full(5, value, dtype or wire)
        outs = exchange(half(wire), [source] * size, op=AVERAGE)
        assert [out.tolist() for out in outs] == [[value] * 5] * size


def test_forty_thousand_averaged_over_two_ranks_in_fp16_is_forty_thousand() -> None:
    out, _ = exchange(half(FP16), [np.full(3, 40000, FP16)] * 2, op=AVERAGE)
    assert out.tolist() == [40000.0] * 3


def test_a_sum_out_of_range_is_infinite_and_other_elements_are_right() -> None:
    out, _ = exchange(half(FP16), [np.array([40000, 1], FP16)] * 2, op=SUM)
    assert out.tolist() == [float("inf"), 2.0]


@given(
    st.sampled_from(HALVES),
    st.sampled_from((None, FP32, FP64)),
    st.integers(1, 64),
    st.integers(0, 200),
    SEEDS,
    st.booleans(),
)
@settings(max_examples=200)
@example(FP16, None, 64, 100, 0, True)
def test_halves_are_rounded_twice_whatever_the_number_of_ranks(
    wire: np.dtype[Any], dtype: np.dtype[Any] | None, size: int, n: int, seed: int, mean: bool
) -> None:
    rng = np.random.default_rng(seed)
    sources = [rng.uniform(0.5, 2.0, n).astype(dtype or wire) for _ in range(size)]
    outs = exchange(half(wire), sources, AVERAGE if mean else SUM)
    assert alike(outs)
    exact = np.sum([s.astype(np.float64) for s in sources], axis=0) / (size if mean else 1)
    once = 0.0 if dtype is None else ROUNDING[wire]  # of each input; then of the result
    bound = exact * (once + ROUNDING[wire] + (size + 1) * ROUNDING[FP32]) * 1.01
    assert np.all(abs(outs[0].astype(np.float64) - exact) <= bound)


@given(st.sampled_from(HALVES), st.integers(1, 9), SEEDS, st.booleans())
def test_not_a_number_and_infinity_survive_and_touch_no_other_element(
    wire: np.dtype[Any], size: int, seed: int, mean: bool
) -> None:
    rng = np.random.default_rng(seed)
    sources = [np.ones(20, FP32) for _ in range(size)]
    sources[rng.integers(size)][3] = np.nan
    sources[rng.integers(size)][5] = np.inf
    sources[rng.integers(size)][7] = -np.inf
    for codec in (half(wire), Plain()):
        outs = exchange(codec, sources, AVERAGE if mean else SUM)
        assert alike(outs)
        assert np.isnan(outs[0][3])
        assert outs[0][5] == np.inf
        assert outs[0][7] == -np.inf
        rest = np.delete(outs[0], [3, 5, 7])
        assert (rest == (1 if mean else size)).all()


@given(
    st.integers(1, 9),
    st.integers(0, 60),
    SEEDS,
    st.booleans(),
    st.sampled_from((1.0, 0.5, 3.0)),
    st.booleans(),
)
def test_plain_sums_are_numpys(
    size: int, n: int, seed: int, mean: bool, postscale: float, in_place: bool
) -> None:
    rng = np.random.default_rng(seed)
    sources = [rng.normal(size=n) for _ in range(size)]
    outs = exchange(Plain(), sources, AVERAGE if mean else SUM, postscale, in_place)
    assert alike(outs)
    expected = np.sum(sources, axis=0) / (size if mean else 1) * postscale
    np.testing.assert_allclose(outs[0], expected, rtol=1e-12, atol=1e-12)


@given(st.sampled_from(INTEGERS), st.integers(1, 9), SEEDS)
def test_integer_sums_wrap_as_numpy_does(dtype: np.dtype[Any], size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    sources = [rng.integers(info.min, info.max, 8, dtype, endpoint=True) for _ in range(size)]
    codec = choose("none", dtype, ReduceOp.SUM)
    outs = exchange(codec, sources, op=SUM)
    expected = np.zeros(8, dtype)
    for source in sources:
        expected += source
    assert outs[0].tolist() == expected.tolist()


def test_a_sum_of_booleans_is_a_logical_or() -> None:
    sources = [np.array(v, np.bool_) for v in ([0, 0, 1], [0, 1, 1])]
    out, _ = exchange(choose("none", np.dtype(np.bool_), ReduceOp.SUM), sources, op=SUM)
    assert out.tolist() == [False, True, True]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [FP16, BFLOAT16, FP32, FP64, *INTEGERS, np.dtype(np.bool_)])
@given(
    size=st.integers(1, 9),
    n=st.integers(0, 40),
    seed=SEEDS,
    mean=st.booleans(),
    in_place=st.booleans(),
)
@settings(max_examples=15)
def test_every_codec_gives_all_ranks_the_same_bits(
    name: str, dtype: np.dtype[Any], size: int, n: int, seed: int, mean: bool, in_place: bool
) -> None:
    mean = mean and dtype != np.bool_
    codec = choose(name, dtype, ReduceOp.AVERAGE if mean else ReduceOp.SUM)
    rng = np.random.default_rng(seed)
    sources = [rng.integers(0, 9, n).astype(dtype) for _ in range(size)]
    outs = exchange(codec, sources, AVERAGE if mean else SUM, in_place=in_place)
    assert alike(outs)
    total = np.sum([s.astype(np.float64) for s in sources], axis=0)
    if dtype.kind in "iu":
        expected = np.trunc(total / size) if mean else total
        assert outs[0].tolist() == expected.tolist()
    elif dtype != np.bool_:
        wire = {"fp16": FP16, "bf16": BFLOAT16}.get(name, dtype)
        wire = dtype if dtype.itemsize == 2 else wire
        bound = abs(total / (size if mean else 1)) * (ROUNDING.get(wire, 2.0**-53) * 2.01 + 1e-5)
        assert np.all(abs(outs[0].astype(np.float64) - total / (size if mean else 1)) <= bound)


@pytest.mark.parametrize("postscale", [0.5, 3.0])
def test_a_postscale_comes_after_the_sum_in_the_wide_dtype(postscale: float) -> None:
    sources = [np.full(4, 40000, FP16)] * 2
    out, _ = exchange(half(FP16), sources, op=SUM, postscale=postscale)
    assert out.tolist() == ([40000.0] * 4 if postscale == 0.5 else [float("inf")] * 4)
    ints = [np.full(4, 100, np.int8)] * 2
    out, _ = exchange(DirectIntegerMean(), ints, op=AVERAGE, postscale=0.5)
    assert out.tolist() == [50] * 4


@pytest.mark.parametrize("n", [1 << 19, (1 << 19) + 1])
def test_ranks_ask_for_the_same_even_where_their_chunks_take_more_slices(n: int) -> None:
    sources = [np.ones(n, FP16)] * 2
    outs = exchange(half(FP16), sources, op=AVERAGE)
    assert alike(outs)
    assert (outs[0] == 1).all()
    outs = exchange(DirectIntegerMean(), [np.ones(n, np.int8)] * 2, op=AVERAGE)
    assert (outs[0] == 1).all()


def test_a_compression_acts_on_wider_floats_only() -> None:
    average = ReduceOp.AVERAGE
    assert isinstance(choose("none", FP32, average), Plain)
    assert isinstance(choose("fp16", FP32, average), DirectFloat)
    assert isinstance(choose("fp16", np.dtype(np.int32), average), DirectIntegerMean)
    assert isinstance(choose("fp16", np.dtype(np.int32), ReduceOp.SUM), Plain)
    out, _ = exchange(choose("fp16", BFLOAT16, average), [np.full(2, 1e30, BFLOAT16)] * 2, AVERAGE)
    assert np.isfinite(out.astype(FP32)).all()


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_wire_bytes_are_within_one_element_per_chunk_of_what_is_sent(n: int, size: int) -> None:
    sent = 2 * n * (size - 1) / size
    for codec, dtype, width in (
        (Plain(), FP32, 4),
        (half(FP16), FP32, 2),
        (DirectIntegerMean(), np.dtype(np.int16), 2),
    ):
        assert abs(codec.wire_nbytes(n, dtype, size) - sent * width) <= width

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.core.growth import COUNTED, START, WINDOW, Growth

MIB = 1 << 20


def settle(
    growth: Growth, latency: float, bandwidth: float, noise: float = 0.0, seed: int = 0
) -> tuple[int, int]:
    """Run steps over a link until the size holds; return it and the steps that this took."""
    rng = random.Random(seed)
    nbytes, steps = START, 0
    while True:
        for _ in range(COUNTED):
            seconds = latency + nbytes / bandwidth
            growth.observe(nbytes / seconds * (1 - noise * rng.random()))
        decision = growth.decide()
        steps += WINDOW
        nbytes = decision.nbytes
        if decision.steps > WINDOW:
            return nbytes, steps


@pytest.mark.parametrize(
    ("latency", "bandwidth", "size"),
    [
        (1e-3, 12.5e6, 1),  # 100 Mbit: a millisecond is 1 % of the time of 1 MiB
        (2e-3, 125e6, 2),  # 11 % more at 2 MiB, 6 % more at 4 MiB
        (5e-4, 5e9, 16),  # memory
        (1e-9, 1e9, 1),
    ],
)
def test_it_stops_at_the_knee(latency: float, bandwidth: float, size: int) -> None:
    found, _ = settle(Growth(1 << 30), latency, bandwidth)
    assert found == size * MIB


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e10), st.integers(0, 9), st.integers(1, 1 << 32))
def test_it_settles_within_fifty_steps_and_in_bounds(
    latency: float, bandwidth: float, seed: int, most: int
) -> None:
    found, steps = settle(Growth(most), latency, bandwidth, 0.3, seed)
    assert steps <= 50
    assert START <= found <= max(START, min(32 * MIB, most))


def test_a_gain_that_noise_could_be_is_none() -> None:
    found, _ = settle(Growth(1 << 30), 0.0, 1e9, noise=0.07, seed=3)
    assert found == START


def test_it_looks_ever_more_rarely_while_nothing_changes_and_begins_anew_if_the_link_does() -> None:
    growth = Growth(1 << 30)
    size, _ = settle(growth, 5e-4, 5e9)
    rate = size / (5e-4 + size / 5e9)
    waits = []
    for _ in range(6):
        growth.observe(rate * 0.9)
        decision = growth.decide()
        assert decision.nbytes == size
        waits.append(decision.steps)
    assert waits == [128, 256, 512, 512, 512, 512]
    growth.observe(rate / 10)
    assert growth.decide().nbytes == START
    assert settle(growth, 1e-3, 12.5e6)[0] == START


def test_a_window_in_which_nothing_was_seen_decides_nothing() -> None:
    growth = Growth(1 << 30)
    assert growth.decide().nbytes == START
    assert growth.decide().steps == WINDOW
    assert settle(growth, 2e-3, 125e6)[0] == 2 * MIB


def test_it_says_what_it_has_seen() -> None:
    growth = Growth(1 << 30)
    settle(growth, 2e-3, 125e6)
    seen = "1 MiB 101 MB/s, 2 MiB 112 MB/s, 4 MiB 118 MB/s"
    assert growth.text() == f"settled at 2 MiB (seen so far: {seen})"

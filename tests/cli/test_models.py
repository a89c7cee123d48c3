"""Shapes of known models, and how they are cut into buckets."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from commrt.cli.bench.model import buckets_in
from commrt.cli.models import gradient_shapes
from commrt.core.bucketing import FixedBuckets


@pytest.mark.parametrize(
    ("name", "tensors", "values"),
    [
        ("resnet18", 62, 11_689_512),
        ("resnet152", 467, 60_192_808),
        ("bert-large", 391, 335_141_888),
    ],
)
def test_the_totals_are_those_that_are_published(name: str, tensors: int, values: int) -> None:
    shapes = gradient_shapes(name)
    assert (len(shapes), sum(map(prod, shapes))) == (tensors, values)


@pytest.mark.parametrize("name", ["resnet18", "resnet152"])
def test_the_shapes_are_those_of_the_module_that_is_trained(name: str) -> None:
    torch = pytest.importorskip("torch")
    from commrt.cli.resnet import resnet

    with torch.device("meta"):
        module = resnet(name)
    assert [tuple(p.shape) for p in module.parameters()] == gradient_shapes(name)


def test_the_small_network_computes_one_score_for_each_class() -> None:
    torch = pytest.importorskip("torch")
    from commrt.cli.resnet import resnet

    with torch.no_grad():
        assert resnet("resnet18").eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_buckets_cover_the_arena_from_the_last_gradient_to_the_first() -> None:
    shapes = [(2, 3), (4,), (1,), (5,)]  # in reverse: 5, 1, 4, 6
    arena = np.arange(16, dtype=np.float32)
    buckets = buckets_in(arena, shapes, FixedBuckets(nbytes=5 * 4, first=1))
    assert [bucket.tolist() for bucket in buckets] == [
        [0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15],
    ]  # fmt: skip
    assert all(np.shares_memory(bucket, arena) for bucket in buckets)

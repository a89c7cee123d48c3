"""The names of `horovod.torch` against the table in `horovod_names.py`."""

from __future__ import annotations

import inspect
from ast import literal_eval
from typing import Any

import pytest

import commrt
import commrt.torch as hvd
from torch_adapter.horovod_names import (
    COMPRESSIONS,
    FUNCTIONS,
    OF_A_PROCESS_SET,
    OF_AN_OPTIMIZER,
    VALUES,
)


def parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(hvd, name)).parameters)


def is_default(value: Any, word: str) -> bool:
    """Does our default mean what Horovod's does?"""
    if word == "world":
        return value is None or value is hvd.global_process_set
    if word == "none":
        return value is hvd.Compression.none
    if word == "Average":
        return value is hvd.Average
    return bool(value == literal_eval(word)) and value is not inspect.Parameter.empty


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_defaults_are_horovods(name: str) -> None:
    """More parameters may follow, if they need not be given."""
    assert name in hvd.__all__
    ours = list(parameters(name).values())
    theirs = [words.partition("=") for words in FUNCTIONS[name].split(", ") if words]
    assert [p.name for p in ours[: len(theirs)]] == [name for name, _, _ in theirs]
    for parameter, (_, equals, word) in zip(ours, theirs, strict=False):
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if equals:
            assert is_default(parameter.default, word), parameter
        else:
            assert parameter.default is inspect.Parameter.empty
    for more in ours[len(theirs) :]:
        assert more.default is not inspect.Parameter.empty


@pytest.mark.parametrize("name", VALUES)
def test_values_are_there(name: str) -> None:
    assert name in hvd.__all__ and getattr(hvd, name) is not None


def test_attributes_are_there() -> None:
    for name in COMPRESSIONS:
        assert hasattr(hvd.Compression, name)
    for name in OF_A_PROCESS_SET:
        assert hasattr(hvd.ProcessSet([0]), name)
    for name in OF_AN_OPTIMIZER:
        assert callable(getattr(hvd.DistributedOptimizer, name))


def test_the_adapter_has_every_name_of_the_package() -> None:
    own = {"__version__", "zeros"}  # the latter makes numpy arrays
    assert set(commrt.__all__) - own <= set(hvd.__all__)
    for name in hvd.__all__:
        assert hasattr(hvd, name)


def test_errors_have_horovods_name() -> None:
    assert hvd.HorovodInternalError is hvd.CommError
    assert issubclass(hvd.HorovodInternalError, RuntimeError)


def test_elastic_says_that_it_is_absent() -> None:
    with pytest.raises(AttributeError, match="does not exist yet"):
        _ = hvd.elastic
    with pytest.raises(AttributeError, match="no attribute 'elastics'"):
        _ = hvd.elastics


def test_before_init_ranks_and_threads_are_unknown() -> None:
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.is_homogeneous, hvd.mpi_threads_supported):
        with pytest.raises(hvd.InitError, match="init"):
            ask()
    assert hvd.mpi_enabled() is False


@pytest.mark.usefixtures("world")
def test_one_rank_on_its_own_uses_no_mpi() -> None:
    assert hvd.mpi_built() is True
    assert hvd.mpi_enabled() is False
    assert hvd.mpi_threads_supported() is False
    assert hvd.is_homogeneous() is True


def test_what_is_not_built_in_is_not_claimed() -> None:
    assert hvd.nccl_built() == 0
    for built in (
        hvd.gloo_built, hvd.gloo_enabled, hvd.cuda_built, hvd.rocm_built, hvd.ddl_built,
        hvd.ccl_built,
    ):  # fmt: skip
        assert built() is False


_RANKS = """
@fact
def with_ranks():
    assert hvd.mpi_enabled() is True and hvd.mpi_threads_supported() is True
    assert hvd.is_homogeneous() is True
"""


@pytest.mark.ranks
def test_ranks_use_mpi(holds: Any) -> None:
    holds(_RANKS, "with_ranks")

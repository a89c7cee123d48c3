from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.config import Config, LauncherEnv, parse_bytes, read_settings, show
from commrt.errors import InitError

ROOT = Path(__file__).resolve().parents[1]


def test_no_variable_means_the_defaults() -> None:
    assert Config.from_environment({"PATH": "/bin", "OMPI_COMM_WORLD_RANK": "0"}) == Config()


def test_every_setting_is_read_from_its_variable() -> None:
    config = Config.from_environment(
        {
            "COMMRT_BUCKET": "64MiB",
            "COMMRT_FIRST_BUCKET": "1k",
            "COMMRT_CACHE_CAPACITY": "9",
            "COMMRT_STALL_WARN": "1.5",
            "COMMRT_STALL_FAIL": "0",
            "COMMRT_INIT_TIMEOUT": "7",
            "COMMRT_SHUTDOWN_TIMEOUT": "8",
            "COMMRT_CHECK_EVERY": "100",
            "COMMRT_TRANSPORT": "none",
            "COMMRT_SHM": "0",
            "COMMRT_TUNE": "0",
            "COMMRT_LOCK": "0",
            "COMMRT_AFFINITY": "3,0",
            "COMMRT_SWITCH_INTERVAL": "0.001",
            "COMMRT_TIMELINE": "t.{rank}.json",
            "COMMRT_LOG": "Info",
        }
    )
    assert config == Config(
        64 << 20,
        1 << 10,
        9,
        1.5,
        0.0,
        7.0,
        8.0,
        100,
        "none",
        0,
        0,
        0,
        (3, 0),
        0.001,
        "t.{rank}.json",
        "info",
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("COMMRT_BUCKETS", "COMMRT_BUCKET"),
        ("COMMRT_STALLWARN", "COMMRT_STALL_WARN"),
        ("COMMRT_LOG_LEVEL", "COMMRT_LOG"),
        ("COMMRT_", "COMMRT_SHM"),
    ],
)
def test_an_unknown_name_is_refused_and_the_nearest_one_named(name: str, nearest: str) -> None:
    with pytest.raises(InitError) as caught:
        Config.from_environment({name: "1"})
    assert str(caught.value) == f"unknown setting {name}='1'; the nearest known one is {nearest}"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("COMMRT_BUCKET", "4 apples", "COMMRT_BUCKET: '4 apples' is not a size such as 4MiB"),
        ("COMMRT_BUCKET", "", "is not a size"),
        ("COMMRT_BUCKET", "-1", "is not a size"),
        ("COMMRT_STALL_FAIL", "soon", "COMMRT_STALL_FAIL: "),
        ("COMMRT_STALL_FAIL", "-1", "'-1' is not a number of seconds"),
        ("COMMRT_STALL_FAIL", "nan", "'nan' is not a number of seconds"),
        ("COMMRT_STALL_FAIL", "inf", "0: never"),
        ("COMMRT_STALL_WARN", "1000001", "is not a number of seconds from 0 to 1000000"),
        ("COMMRT_CHECK_EVERY", "-1", "'-1' is not a whole number"),
        ("COMMRT_CHECK_EVERY", "often", "COMMRT_CHECK_EVERY: 'often' is not a whole number"),
        ("COMMRT_CACHE_CAPACITY", "0", "COMMRT_CACHE_CAPACITY: it must be at least 1"),
        ("COMMRT_LOG", "loud", "'loud' is not debug, info, warning or error"),
    ],
)
def test_an_unreadable_value_is_refused_with_its_name(name: str, value: str, said: str) -> None:
    with pytest.raises(InitError) as caught:
        Config.from_environment({name: value})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64k", 64 << 10),
        ("64KiB", 64 << 10),
        (" 4 MiB ", 4 << 20),
        ("4m", 4 << 20),
        ("1g", 1 << 30),
        ("2GiB", 2 << 30),
        ("7b", 7),
    ],
)
def test_sizes_have_units_of_powers_of_two(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@given(st.text(max_size=8))
def test_a_size_is_read_or_refused(text: str) -> None:
    try:
        assert parse_bytes(text) >= 0
    except ValueError:
        pass


def test_shared_settings_have_one_text_where_they_are_equal() -> None:
    shared = Config(bucket=1 << 20).shared()
    assert shared == Config.from_environment({"COMMRT_BUCKET": "1MiB"}).shared()
    assert shared["COMMRT_BUCKET"] == "1048576"
    assert "COMMRT_LOG" not in shared
    assert "COMMRT_SWITCH_INTERVAL" not in shared


def test_every_setting_says_what_it_is_and_its_page_says_the_same() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `COMMRT_")]
    assert rows == [
        f"| `COMMRT_{f.name.upper()}` | {_default(f)} | {f.metadata['unit']} "
        f"| {f.metadata['help']} | {'yes' if f.metadata['shared'] else 'no'} |"
        for f in dataclasses.fields(Config)
    ]


def _default(f: dataclasses.Field[Any]) -> str:
    if f.metadata["unit"] == "bytes":
        return show(f.default, "bytes")
    return show(f.default, "") if f.metadata["unit"] else f"`{f.default}`" if f.default else " "


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4 << 20, "bytes", "4 MiB"),
        (3 << 30, "bytes", "3 GiB"),
        (1536, "bytes", "1536 bytes"),
        (1 << 10, "bytes", "1 KiB"),
        (0, "bytes", "0 bytes"),
        (60.0, "seconds", "60 seconds"),
        (0.005, "seconds", "0.005 seconds"),
        (0, "steps", "0 steps"),
        ("info", "", "info"),
        ("formula", "bytes", "formula"),
    ],
)
def test_values_are_shown_in_their_unit(value: Any, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_a_first_bucket_that_is_not_asked_for_is_no_larger_than_the_others() -> None:
    settings = read_settings({"COMMRT_BUCKET": "64k"})
    assert settings.config.first_bucket == settings.config.bucket == 64 << 10
    assert settings.sources["first_bucket"] == "COMMRT_BUCKET"
    asked = {"COMMRT_BUCKET": "64k", "COMMRT_FIRST_BUCKET": "1m"}
    assert read_settings(asked).config.first_bucket == 1 << 20
    assert read_settings({"COMMRT_BUCKET": "64m"}).config.first_bucket == 1 << 20


def test_buckets_may_follow_a_formula() -> None:
    config = read_settings({"COMMRT_BUCKET": "Formula"}).config
    assert (config.bucket, config.first_bucket) == ("formula", 1 << 20)
    assert config.fusion_limit() == Config().fusion_limit() == 4 << 20
    assert read_settings({"COMMRT_BUCKET": "64k"}).config.fusion_limit() == 64 << 10
    with pytest.raises(InitError, match=r"COMMRT_BUCKET: 'formulae' is not a size"):
        read_settings({"COMMRT_BUCKET": "formulae"})


def test_the_source_of_every_value_that_is_no_default_is_known() -> None:
    settings = read_settings({"COMMRT_LOG": "info", "HOROVOD_TIMELINE": "t", "HOME": "/"})
    assert settings.sources == {"log": "COMMRT_LOG", "timeline": "HOROVOD_TIMELINE"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, LauncherEnv("", 0, 1, "")),
        ({"COMMRUN_SHIM": "/s"}, LauncherEnv("", 0, 1, "/s")),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            LauncherEnv("Open MPI", 2, 4, ""),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, LauncherEnv("MPICH or Intel MPI", 1, 2, "")),
        ({"PMI_RANK": "1"}, LauncherEnv("", 0, 1, "")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, LauncherEnv("torchrun", 3, 8, "")),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, LauncherEnv("horovodrun", 1, 2, "")),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "1",
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
            },
            LauncherEnv("Open MPI", 2, 4, ""),
        ),
    ],
)
def test_a_launcher_is_known_by_its_variables(
    environ: dict[str, str], expected: LauncherEnv
) -> None:
    assert LauncherEnv.from_environment(environ) == expected


def test_a_rank_that_is_no_number_is_an_error() -> None:
    with pytest.raises(InitError, match="PMI_RANK='one' or PMI_SIZE='2' is no number"):
        LauncherEnv.from_environment({"PMI_RANK": "one", "PMI_SIZE": "2"})

"""Settings named HOROVOD_*."""

from __future__ import annotations

from typing import Any

import pytest

from commrt.config import Config, read_settings
from commrt.errors import InitError


@pytest.mark.parametrize(
    ("variable", "text", "asked"),
    [
        ("FUSION_THRESHOLD", "67108864", {"bucket": 64 << 20}),
        ("FUSION_THRESHOLD", "65536", {"bucket": 64 << 10, "first_bucket": 64 << 10}),
        ("FUSION_THRESHOLD", "0", {"bucket": 0, "first_bucket": 0}),
        ("CACHE_CAPACITY", "2048", {"cache_capacity": 2048}),
        ("CACHE_CAPACITY", "0", {"cache_capacity": 1}),
        ("STALL_CHECK_TIME_SECONDS", "30", {"stall_warn": 30.0}),
        ("STALL_SHUTDOWN_TIME_SECONDS", "90", {"stall_fail": 90.0}),
        ("STALL_SHUTDOWN_TIME_SECONDS", "0", {"stall_fail": 0.0}),
        ("STALL_CHECK_DISABLE", "1", {"stall_warn": 1e6, "stall_fail": 0.0}),
        ("STALL_CHECK_DISABLE", "0", {}),
        ("GLOO_TIMEOUT_SECONDS", "300", {"init_timeout": 300.0}),
        ("TIMELINE", "/tmp/t.json", {"timeline": "/tmp/t.json"}),
        ("TIMELINE", "DYNAMIC", {}),
        ("LOG_LEVEL", "TRACE", {"log": "debug"}),
        ("LOG_LEVEL", "debug", {"log": "debug"}),
        ("LOG_LEVEL", "Info", {"log": "info"}),
        ("LOG_LEVEL", "fatal", {"log": "error"}),
        ("LOG_HIDE_TIME", "1", {}),
        ("DYNAMIC_PROCESS_SETS", "1", {}),
    ],
)
def test_a_variable_with_a_counterpart_is_honoured(
    variable: str, text: str, asked: dict[str, Any]
) -> None:
    settings = read_settings({f"HOROVOD_{variable}": text})
    assert settings.config == Config(**asked)
    assert settings.sources == dict.fromkeys(asked, f"HOROVOD_{variable}")
    assert settings.ignored == ()


def test_a_disabled_stall_check_overrules_its_times() -> None:
    config = Config.from_environment(
        {
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        }
    )
    assert config == Config(stall_warn=1e6, stall_fail=0.0)


def test_our_own_variable_wins_and_its_counterpart_is_not_even_read() -> None:
    settings = read_settings({"COMMRT_BUCKET": "1MiB", "HOROVOD_FUSION_THRESHOLD": "lots"})
    assert settings.config == Config(bucket=1 << 20)
    assert settings.notes() == ("", "")


def test_what_is_used_and_what_is_not_takes_one_line_each() -> None:
    settings = read_settings(
        {
            "HOROVOD_FUSION_THRESHOLD": "16777216",
            "HOROVOD_LOG_LEVEL": "info",
            "HOROVOD_CYCLE_TIME": "5",
            "HOROVOD_AUTOTUNE": "1",
            "COMMRT_STALL_WARN": "3",
        }
    )
    assert settings.notes() == (
        "of Horovod's settings these are used: HOROVOD_FUSION_THRESHOLD (as "
        "COMMRT_BUCKET=16777216), HOROVOD_LOG_LEVEL (as COMMRT_LOG=info)",
        "of Horovod's settings these have no effect on commrt: HOROVOD_AUTOTUNE, "
        "HOROVOD_CYCLE_TIME",
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    settings = read_settings({"HOROVOD_FUSION_THRESHOLD": "", "HOROVOD_AUTOTUNE": " "})
    assert settings.config == Config()
    assert settings.notes() == ("", "")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "lots", "'lots' is not a size"),
        ("HOROVOD_CACHE_CAPACITY", "-1", "'-1' is not a whole number"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "soon", "'soon'"),
        ("HOROVOD_STALL_CHECK_DISABLE", "maybe", "'maybe' is not 0 or 1"),
        ("HOROVOD_LOG_LEVEL", "loud", "'loud' is not debug, info, warning or error"),
    ],
)
def test_an_unreadable_value_is_refused_with_its_name(name: str, value: str, said: str) -> None:
    with pytest.raises(InitError) as caught:
        read_settings({name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert said in str(caught.value)

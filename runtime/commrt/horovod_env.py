"""What variables named HOROVOD_* ask for, in the words of our own. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_NEVER = "1000000"
"""Seconds; the longest time that a setting takes."""

_LEVELS = {"trace": "debug", "fatal": "error"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a variable asks for: `text` is what the variable of our field `setting` would hold."""

    variable: str
    setting: str
    text: str


def translate(environ: Mapping[str, str]) -> tuple[list[Wish], list[str]]:
    """Return what can be honoured, and the names of the variables that mean nothing here.

    Of two wishes for one setting the later one counts. Empty variables count as not set. Raises
    ValueError, with the variable's name, only for what is no setting's text.
    """
    asked = {n: v for n, v in environ.items() if n.startswith("HOROVOD_") and v.strip()}
    wishes = []
    for name, read in _COUNTERPARTS.items():
        if name in asked:
            try:
                found = read(asked[name].strip())
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from None
            wishes += [Wish(name, setting, text) for setting, text in found.items()]
    return wishes, sorted(set(asked) - set(_COUNTERPARTS))


Read = Callable[[str], dict[str, str]]


def _as(setting: str) -> Read:
    return lambda text: {setting: text}


def _nothing(_: str) -> dict[str, str]:
    """What commrt does anyway."""
    return {}


def _capacity(text: str) -> dict[str, str]:
    """Horovod's 0 keeps no names. We keep one, which is announced in full just as often."""
    return {"cache_capacity": "1" if text == "0" else text}


def _unwatched(text: str) -> dict[str, str]:
    if text.lower() in ("0", "false", "no", "off"):
        return {}
    if text.lower() in ("1", "true", "yes", "on"):
        return {"stall_warn": _NEVER, "stall_fail": "0"}
    raise ValueError(f"{text!r} is not 0 or 1")


def _timeline(text: str) -> dict[str, str]:
    """Horovod must be told beforehand that start_timeline() will be called; we need not."""
    return {} if text == "DYNAMIC" else {"timeline": text}


def _level(text: str) -> dict[str, str]:
    return {"log": _LEVELS.get(text.lower(), text)}


_COUNTERPARTS: dict[str, Read] = {
    "HOROVOD_FUSION_THRESHOLD": _as("bucket"),
    "HOROVOD_CACHE_CAPACITY": _capacity,
    "HOROVOD_THREAD_AFFINITY": _as("affinity"),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _as("stall_warn"),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _as("stall_fail"),
    "HOROVOD_STALL_CHECK_DISABLE": _unwatched,  # after the two that it overrules
    "HOROVOD_GLOO_TIMEOUT_SECONDS": _as("init_timeout"),
    "HOROVOD_TIMELINE": _timeline,
    "HOROVOD_LOG_LEVEL": _level,
    "HOROVOD_LOG_HIDE_TIME": _nothing,
    "HOROVOD_DYNAMIC_PROCESS_SETS": _nothing,
}

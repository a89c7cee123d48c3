"""Settings, and the only place in the runtime that reads the environment."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commrt.errors import InitError
from commrt.horovod_env import translate

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
}


def parse_bytes(text: str) -> int:
    """Read `4MiB`, `64k` or `1048576` as bytes (powers of two). Raises ValueError."""
    word = text.strip().lower()
    digits = word.rstrip("bkmgi")
    unit = word[len(digits) :]
    if unit not in _UNITS or not digits.strip().isdigit():
        raise ValueError(f"{text!r} is not a size such as 4MiB")
    return int(digits) * _UNITS[unit]


def parse_bucket(text: str) -> int | str:
    """Read `auto`, `formula`, or a size as `parse_bytes` does. Raises ValueError."""
    word = text.strip().lower()
    return word if word in ("auto", "formula") else parse_bytes(text)


def show(value: Any, unit: str) -> str:
    """Write a setting's value for people, in its unit."""
    if isinstance(value, str):
        return value
    if unit == "bytes":
        for power, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value and value % power == 0:
                return f"{value // power} {name}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


_LONGEST = 1_000_000.0
"""Seconds. The kernel counts the milliseconds of a sleep in 31 bits."""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"{text!r} is not a number of seconds from 0 to {_LONGEST:.0f}")
    return value


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    value = _count(text)
    if value == 0:
        raise ValueError("it must be at least 1")
    return value


def _level(text: str) -> str:
    word = text.strip().lower()
    if word not in ("debug", "info", "warning", "error"):
        raise ValueError(f"{text!r} is not debug, info, warning or error")
    return word


def _setting(
    default: Any, parse: Callable[[str], Any], unit: str, help: str, shared: bool = True
) -> Any:
    metadata = {"parse": parse, "unit": unit, "help": help, "shared": shared}
    return field(default=default, metadata=metadata)


def _transport(text: str) -> str:
    word = text.strip().lower()
    if word not in ("auto", "shm", "tcp", "mpi", "none"):
        raise ValueError(f"{text!r} is not auto, shm, tcp, mpi or none")
    return word


def _cores(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(",")) if text.strip() else ()


def _flag(text: str) -> int:
    word = text.strip().lower()
    if word not in ("0", "1"):
        raise ValueError(f"{text!r} is not 0 or 1")
    return int(word)


_BUCKET = 4 << 20


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Field `log` is `COMMRT_LOG`. Shared ones must agree on all ranks."""

    bucket: int | str = _setting(
        "auto",
        parse_bucket,
        "bytes",
        "an optimizer closes a bucket that has reached this size; `auto`: a size from 1 MiB on, "
        "found in the first steps; `formula`: the larger of 4 MiB and its gradients' bytes / "
        "(16 · ranks); other operations are fused up to this size, else up to 4 MiB; 0: each alone",
    )
    first_bucket: int = _setting(
        1 << 20,
        parse_bytes,
        "bytes",
        "the same for an optimizer's first bucket, so that moving starts early; not set: at most "
        "`COMMRT_BUCKET`",
    )
    cache_capacity: int = _setting(
        4096,
        _positive,
        "names",
        "names that are kept as short numbers; operations beyond are announced in full each time",
    )
    stall_warn: float = _setting(
        60.0, _seconds, "seconds", "time until a late rank is named in the log"
    )
    stall_fail: float = _setting(
        600.0, _seconds, "seconds", "time until a late rank fails the operation; 0: never"
    )
    init_timeout: float = _setting(
        120.0, _seconds, "seconds", "how long `init()` waits for other ranks"
    )
    shutdown_timeout: float = _setting(
        10.0, _seconds, "seconds", "how long `shutdown()` waits for other ranks"
    )
    check_every: int = _setting(
        0,
        _count,
        "steps",
        "an optimizer compares the parameters of all ranks each time after so many steps; 0: never",
    )
    transport: str = _setting(
        "auto",
        _transport,
        "",
        "what moves data between ranks: `shm`, shared memory, if all are on one host; `tcp`; "
        "`mpi`; `auto` chooses. With `none` nothing is moved and results are wrong: to measure "
        "what all the rest costs",
    )
    shm: int = _setting(1, _flag, "", "0: `auto` does not choose shared memory")
    tune: int = _setting(
        1,
        _flag,
        "",
        "1: `init()` measures the links between hosts, for a quarter of a second, unless a job of "
        "the last week did; 0: it does not",
    )
    lock: int = _setting(
        1,
        _flag,
        "",
        "1: once steps are alike, ranks follow the order seen without asking one another, until "
        "one of them does something else; 0: they agree on each operation",
    )
    affinity: tuple[int, ...] = _setting(
        (),
        _cores,
        "",
        "cores that the background threads stay on, such as `0,8`: one for each rank of a host, in "
        "order; not set: the system moves them out of the way of other threads",
    )
    switch_interval: float = _setting(
        0.0,
        _seconds,
        "seconds",
        "what `init()` gives to `sys.setswitchinterval()`; 0: nothing",
        shared=False,
    )
    timeline: str = _setting(
        "",
        str,
        "",
        "file for a timeline, from `init()` to `shutdown()`; with `{rank}` in it one of each rank, "
        "else of rank 0",
        shared=False,
    )
    log: str = _setting(
        "warning",
        _level,
        "",
        "level of the logger `commrt`: `debug`, `info`, `warning` or `error`",
        shared=False,
    )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Return the settings of `read_settings`. Raises InitError."""
        return read_settings(environ).config

    def fusion_limit(self) -> int:
        """Return up to how many bytes operations outside optimizers share a bucket."""
        return self.bucket if isinstance(self.bucket, int) else _BUCKET

    def shared(self) -> dict[str, str]:
        """Return the settings that all ranks must agree on, by name, as text."""
        return {
            variable_of(f.name): repr(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.metadata["shared"]
        }


def variable_of(field_name: str) -> str:
    """Return the name of a setting's variable."""
    return f"COMMRT_{field_name.upper()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    `sources`: the variable behind each field that has not its default. `ignored`: variables named
    HOROVOD_* that mean nothing here.
    """

    config: Config
    sources: Mapping[str, str]
    ignored: tuple[str, ...]

    def notes(self) -> tuple[str, str]:
        """Return one line on what is used of Horovod's settings, one on what is not; or ''."""
        used = [
            f"{source} (as {variable_of(name)}={getattr(self.config, name)})"
            for name, source in self.sources.items()
            if source.startswith("HOROVOD_")
        ]
        return (
            f"of Horovod's settings these are used: {', '.join(used)}" if used else "",
            f"of Horovod's settings these have no effect on commrt: {', '.join(self.ignored)}"
            if self.ignored
            else "",
        )


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read `COMMRT_*`, and what has no such value from its counterpart among `HOROVOD_*`.

    Raises InitError on an unknown name that begins with `COMMRT_`, and on an unreadable value.
    """
    env = os.environ if environ is None else environ
    fields = {variable_of(f.name): f for f in dataclasses.fields(Config)}
    try:
        wishes, ignored = translate(env)
    except ValueError as exc:
        raise InitError(str(exc)) from None
    texts = {wish.setting: (wish.variable, wish.text) for wish in wishes}
    for name, text in env.items():
        if name.startswith("COMMRT_"):
            if name not in fields:
                near = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)
                raise InitError(
                    f"unknown setting {name}={text!r}; the nearest known one is {near[0]}"
                )
            texts[fields[name].name] = (name, text)
    values = {f.name: _read(f, *texts[f.name]) for f in fields.values() if f.name in texts}
    sources = {name: texts[name][0] for name in values}
    size = values.get("bucket")
    if "first_bucket" not in values and isinstance(size, int) and size < Config().first_bucket:
        values["first_bucket"], sources["first_bucket"] = values["bucket"], sources["bucket"]
    return Settings(Config(**values), sources, tuple(ignored))


def own_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables named `COMMRT_*` as they are."""
    env = os.environ if environ is None else environ
    return {name: text for name, text in env.items() if name.startswith("COMMRT_")}


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return where this user's programs keep what they can make again: ours are in `commrt`."""
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/"), ".cache")) / "commrt"


def _read(setting: dataclasses.Field[Any], variable: str, text: str) -> Any:
    try:
        return setting.metadata["parse"](text)
    except ValueError as exc:
        raise InitError(f"{variable}: {exc} ({setting.metadata['help']})") from None


@dataclass(frozen=True, slots=True)
class LauncherEnv:
    """What the launcher's variables say of this process. `family` is '' without a launcher."""

    family: str
    rank: int
    size: int
    shim: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> LauncherEnv:
        """Read the variables of the innermost launcher known."""
        env = os.environ if environ is None else environ
        shim = env.get("COMMRUN_SHIM", "")
        for family, rank, size in _LAUNCHERS:
            if rank in env and size in env:
                try:
                    return cls(family, int(env[rank]), int(env[size]), shim)
                except ValueError:
                    raise InitError(
                        f"{rank}={env[rank]!r} or {size}={env[size]!r} is no number"
                    ) from None
        return cls("", 0, 1, shim)


_LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
)

"""Settings, and the only place in the runtime that reads the environment."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from commrt.errors import InitError

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


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is not a number of seconds")
    return value


def _level(text: str) -> str:
    word = text.strip().lower()
    if word not in ("debug", "info", "warning", "error"):
        raise ValueError(f"{text!r} is not debug, info, warning or error")
    return word


def _setting(default: Any, parse: Callable[[str], Any], help: str, shared: bool = True) -> Any:
    return field(default=default, metadata={"parse": parse, "help": help, "shared": shared})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. Field `log` is `COMMRT_LOG`. Shared ones must agree on all ranks."""

    bucket: int = _setting(4 << 20, parse_bytes, "bytes of a bucket")
    first_bucket: int = _setting(1 << 20, parse_bytes, "bytes of a step's first bucket")
    stall_warn: float = _setting(60.0, _seconds, "seconds until a late rank is named")
    stall_fail: float = _setting(
        600.0, _seconds, "seconds until a late rank fails the operation; 0: never"
    )
    init_timeout: float = _setting(120.0, _seconds, "seconds that init() waits for other ranks")
    shutdown_timeout: float = _setting(
        10.0, _seconds, "seconds that shutdown() waits for other ranks"
    )
    switch_interval: float = _setting(
        0.0, _seconds, "sys.setswitchinterval() in init(); 0: leave it", shared=False
    )
    log: str = _setting("warning", _level, "debug, info, warning or error", shared=False)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read `COMMRT_*`. Raises InitError on an unknown name or an unreadable value."""
        env = os.environ if environ is None else environ
        known = {f"COMMRT_{f.name.upper()}": f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, text in env.items():
            if not name.startswith("COMMRT_"):
                continue
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
                raise InitError(
                    f"unknown setting {name}={text!r}; the nearest known one is {near[0]}"
                )
            try:
                values[known[name].name] = known[name].metadata["parse"](text)
            except ValueError as exc:
                raise InitError(f"{name}: {exc} ({known[name].metadata['help']})") from None
        return cls(**values)

    def shared(self) -> dict[str, str]:
        """Return the settings that all ranks must agree on, by name, as text."""
        return {
            f"COMMRT_{f.name.upper()}": repr(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.metadata["shared"]
        }


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
)

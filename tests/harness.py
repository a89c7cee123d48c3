"""Runs ranks as real processes, for tests of everything that needs more than one."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINE = re.compile(r"\[(\d+)(?:@[^\]]*)?\] (.*\n?)")


@dataclass(frozen=True)
class Result:
    """What a job left. `output` is all of it, `report` what commrun itself said."""

    status: int
    stdout_of: dict[int, str]
    stderr_of: dict[int, str]
    output: str
    report: str


def run_ranks(
    script: str | Path,
    np: int,
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    commrun_args: Sequence[str] = (),
) -> Result:
    """Run a Python file, or Python source, on `np` ranks; `env` is added to the environment.

    Raises AssertionError with all output if it takes longer than `timeout`; nothing is left then.
    """
    with ExitStack() as stack:
        if "\n" in str(script) or not Path(script).is_file():
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            source, script = str(script), Path(directory, "script.py")
            script.write_text(textwrap.dedent(source))
        command = [sys.executable, str(script), *args]
        return run_command(command, np, env=env, timeout=timeout, commrun_args=commrun_args)


def run_command(
    command: Sequence[str],
    np: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    commrun_args: Sequence[str] = (),
) -> Result:
    """Like `run_ranks`, for any command."""
    with start_command(command, np, env=env, commrun_args=commrun_args) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as exc:
            out, err = end_job(process)
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise
            raise AssertionError(f"no end after {timeout} s\n{_shown(out, err)}") from None
    result = Result(process.returncode, _by_rank(out), _by_rank(err), out + err, _own_lines(err))
    if result.status != 0:
        print(f"exit status {result.status}\n{_shown(out, err)}", file=sys.stderr)
    return result


def start_command(
    command: Sequence[str],
    np: int,
    *,
    env: Mapping[str, str] | None = None,
    commrun_args: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a job and return commrun's process, with pipes for its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "commrun", "-np", str(np), *commrun_args, *command],
        env={**environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="surrogateescape",
    )


def environment() -> dict[str, str]:
    """Return the environment in which the project can be imported, installed or not."""
    missing = [
        str(ROOT / directory)
        for directory, name in (("runtime", "commrt"), ("launcher", "commrun"))
        if importlib.util.find_spec(name) is None
    ]
    paths = [*missing, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(os.environ)


def end_job(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End commrun and all its ranks; return what was printed."""
    for signum, patience in ((signal.SIGTERM, 1), (signal.SIGTERM, 20), (signal.SIGKILL, None)):
        process.send_signal(signum)
        try:
            return process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("unreachable")


def wait_until(condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    """Poll until the condition holds. Raises AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout} s: {what}"
        time.sleep(0.01)


def _by_rank(text: str) -> dict[int, str]:
    parts: dict[int, list[str]] = {}
    for line in text.splitlines(keepends=True):
        if match := _LINE.fullmatch(line):
            parts.setdefault(int(match[1]), []).append(match[2])
    return {rank: "".join(lines) for rank, lines in sorted(parts.items())}


def _own_lines(text: str) -> str:
    return "".join(s for s in text.splitlines(keepends=True) if s.startswith("commrun: "))


def _shown(out: str, err: str) -> str:
    return f"--- stdout of all ranks\n{out}\n--- stderr of all ranks\n{err}"

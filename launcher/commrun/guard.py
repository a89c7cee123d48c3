"""A process that tidies up after one that is killed. Standard library only: the shim imports it."""

from __future__ import annotations

import json
import os
import signal

from commrun.directories import private_path, remove_tree


class Guard:
    """A fork of this process that waits until all that hold `fd` have ended, in whatever way.

    Then it kills what it was told to kill and removes what it was told to remove.
    """

    def __init__(self) -> None:
        reader, self.fd = os.pipe()
        if os.fork() == 0:
            _stand_guard(reader)
        os.close(reader)

    def kill(self, group: int) -> None:
        """Have a process group killed: only a direct child can ask the kernel to die with us."""
        self._note("kill", group)

    def spare(self) -> None:
        """Take that back, before others may get the group's number."""
        self._note("kill", 0)

    def make_directory(self, temporary: str) -> str:
        """Make a directory that only this user may enter, as `private_path`; have it removed."""
        path = private_path(temporary)
        self._note("remove", path)  # first, so that no moment is left to leave it behind
        os.mkdir(path, 0o700)
        return path

    def _note(self, what: str, which: int | str) -> None:
        try:
            os.write(self.fd, json.dumps([what, which]).encode() + b"\n")
        except BrokenPipeError:
            pass  # somebody killed it; at an orderly end it is not needed


def _stand_guard(reader: int) -> None:
    """Be the guard. Never returns."""
    try:
        os.setsid()  # mpirun signals the group of its children, a terminal that of commrun
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(signum, signal.SIG_IGN)
        os.dup2(reader, 0)
        for fd in os.listdir("/proc/self/fd"):
            if fd != "0":
                _close(int(fd))
        with open(0, "rb") as notes:
            _act([json.loads(line) for line in notes.readlines()])
    finally:
        os._exit(0)


def _act(notes: list[tuple[str, int | str]]) -> None:
    groups = [int(which) for what, which in notes if what == "kill"]
    if groups and groups[-1]:
        try:
            os.killpg(groups[-1], signal.SIGKILL)
        except OSError:
            pass  # all of it has ended
    for what, which in notes:
        if what == "remove":
            remove_tree(str(which))


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass

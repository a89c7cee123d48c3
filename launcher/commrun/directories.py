"""Directories of one job. Standard library only: the shim imports it."""

from __future__ import annotations

import os
import time

SHARED_MEMORY = "/dev/shm"
_PREFIX = "commrun-"
_LONGEST_PARENT = 60
_PATIENCE = 3.0


def private_path(temporary: str) -> str:
    """Choose a name that no other job has, in `temporary`.

    In /tmp if that would leave too little of the 107 bytes that a unix socket's path may have.
    """
    parent = temporary if 0 < len(os.fsencode(temporary)) < _LONGEST_PARENT else "/tmp"
    return os.path.join(parent, f"{_PREFIX}{os.urandom(8).hex()}")


def is_private(path: str) -> bool:
    """Tell whether `private_path` could have made this one, for any job."""
    return os.path.basename(path).startswith(_PREFIX)


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, if it is ours. Follows no link; never raises.

    A process that has just been killed may add one more file, so it tries more than once.
    """
    deadline = time.monotonic() + _PATIENCE
    while _is_ours(path) and not _try_to_remove(path) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_ours(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _try_to_remove(path: str) -> bool:
    try:
        for _, directories, files, fd in os.fwalk(path, topdown=False):
            for name in (*files, *directories):
                _remove(name, fd)
        os.rmdir(path)
    except OSError:
        return False
    return True


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        pass  # somebody else tidies up too

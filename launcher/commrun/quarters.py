"""What a shim has on its host: an environment for its rank, and directories to remove again.

Standard library only, like all that the shim imports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from commrun.directories import SHARED_MEMORY, remove_tree
from commrun.guard import Guard


class Quarters:
    """One rank's. `env` is what mpirun gave it, without what is for the shim alone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.env = {n: v for n, v in environ.items() if not n.startswith("COMMRUN_")}
        if "COMMRUN_TMPDIR" in environ:
            self._restore_temporary(environ["COMMRUN_TMPDIR"])
        self.guard = Guard()
        self._parent = os.getppid()
        self._directories: list[str] = []

    @property
    def orphaned(self) -> bool:
        """Whether mpirun's process on this host has ended before us."""
        return os.getppid() != self._parent

    def door_path(self, addresses: str, rank: int) -> str:
        """Choose a path in a private directory: commrun's, if that is on this host."""
        if addresses.startswith("/"):
            directory = os.path.dirname(addresses)
        else:
            directory = self._make_directory(self.env.get("TMPDIR", ""))
        return os.path.join(directory, f"rank{rank}")

    def share_memory(self, env: dict[str, str], names: Sequence[str]) -> None:
        """Have the rank put its shared memory where we can find it, unless its user says where."""
        if any(name in env for name in names):
            return
        try:
            env.update(dict.fromkeys(names, self._make_directory(SHARED_MEMORY)))
        except OSError:
            pass  # there is no such place, or none for us: MPI finds another

    def tidy_up(self) -> None:
        """Remove our directories, and mpirun's if it can't do so itself any more. Idempotent."""
        for directory in self._directories:
            remove_tree(directory)
        if self.orphaned and (session := self.env.get("PMIX_SERVER_TMPDIR")):
            remove_tree(session)

    def _make_directory(self, temporary: str) -> str:
        self._directories.append(self.guard.make_directory(temporary))
        return self._directories[-1]

    def _restore_temporary(self, before: str) -> None:
        self.env["TMPDIR"] = before
        if not before:
            del self.env["TMPDIR"]

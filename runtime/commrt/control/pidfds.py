"""Notices the death of processes on this host, even if a child of theirs keeps their sockets."""

from __future__ import annotations

import os
from collections.abc import Mapping


class ProcessWatch:
    """A pidfd for each of some ranks here; `gone` had ended before. Background thread only."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._ranks: dict[int, int] = {}
        self.gone: list[int] = []
        for rank, pid in pids.items():
            try:
                self._ranks[os.pidfd_open(pid)] = rank
            except ProcessLookupError:
                self.gone.append(rank)
            except OSError:  # no such call here: the socket will tell
                return

    def filenos(self) -> list[int]:
        """Return the descriptors to wait on."""
        return list(self._ranks)

    def ended(self, fd: int) -> int | None:
        """Return the rank whose descriptor became readable, once."""
        rank = self._ranks.pop(fd, None)
        if rank is not None:
            os.close(fd)
        return rank

    def close(self) -> None:
        """Close all descriptors."""
        while self._ranks:
            os.close(self._ranks.popitem()[0])

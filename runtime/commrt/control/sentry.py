"""What the engine sleeps on."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping

from commrt.control.base import PeerGone
from commrt.control.launcher import LauncherLine
from commrt.control.pidfds import ProcessWatch

_PROBES = 10
_PROBE_PAUSE = 0.02


class Waker:
    """An eventfd that wakes one sleeper. Thread safety: `set` any thread."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._set = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._fd

    def set(self) -> None:
        """Make the descriptor readable."""
        if self._set:
            return
        with self._lock:
            if self._fd >= 0:
                self._set = True
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable. Look for work after this, not before."""
        if self._set:
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:
                return  # `set` is between its two lines
            self._set = False

    def close(self) -> None:
        """Close the descriptor; `set` does nothing any more."""
        with self._lock:
            fd, self._fd = self._fd, -1
        os.close(fd)


class Sentry:
    """What the engine sleeps on: descriptors, the launcher's line, local processes."""

    def __init__(self, launcher: LauncherLine) -> None:
        self._epoll = select.epoll()
        self._launcher = launcher
        self._processes = ProcessWatch({})
        self._gone: list[PeerGone] = []
        fd = launcher.fileno()
        if fd is not None:
            self.watch(fd)

    def watch(self, *fds: int) -> None:
        """Wake when one of these is readable."""
        for fd in fds:
            self._epoll.register(fd, select.EPOLLIN)

    def guard(self, pids: Mapping[int, int]) -> None:
        """Wake when one of these processes ends."""
        self._processes = ProcessWatch(pids)
        self.watch(*self._processes.filenos())

    def wait(self, timeout: float | None) -> set[int]:
        """Sleep until something is readable; return the descriptors that are."""
        ready = {fd for fd, _ in self._epoll.poll(0 if self._processes.gone else timeout)}
        if ready:
            self._look_at(ready)
        return ready

    def gone(self) -> list[PeerGone]:
        """Return the ranks whose end the last `wait` noticed."""
        if self._processes.gone:
            why = "its process had ended"
            self._gone += [PeerGone(rank, why) for rank in self._processes.gone]
            self._processes.gone.clear()
        gone, self._gone = self._gone, []
        return gone

    def _look_at(self, ready: set[int]) -> None:
        if self._launcher.fileno() in ready:
            self._gone += self._launcher.poll()
        for fd in ready:
            rank = self._processes.ended(fd)
            if rank is not None:
                self._gone.append(PeerGone(rank, "its process ended"))

    def inherited(self) -> list[int]:
        """Return the launcher's descriptor, which a child must not keep."""
        fd = self._launcher.fileno()
        return [] if fd is None else [fd]

    def close(self) -> None:
        """Close all descriptors that are ours."""
        self._epoll.close()
        self._processes.close()
        self._launcher.close()


class Probes:
    """When to ask again whose connection was closed. Pure."""

    def __init__(self) -> None:
        self._left = 0
        self._next = 0.0

    def start(self, now: float) -> None:
        """Ask now, and a few times more: the socket may learn of it after the monitor does."""
        self._left, self._next = _PROBES, now

    def due(self, now: float) -> bool:
        """Is it time to ask?"""
        if not self._left or now < self._next:
            return False
        self._left -= 1
        self._next = now + _PROBE_PAUSE
        return True

    def limit(self, timeout: float | None) -> float | None:
        """Shorten a sleep while there is something to ask."""
        if not self._left:
            return timeout
        return _PROBE_PAUSE if timeout is None else min(timeout, _PROBE_PAUSE)

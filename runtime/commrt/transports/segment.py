"""Memory that the ranks of a host share."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.transports.base import Flat
from commrt.transports.ranges import FreeRanges

log = logging.getLogger("commrt.transports")

_MAP_NORESERVE = 0x4000
_MAP_FIXED = 0x10
_PAGE = mmap.PAGESIZE


def make_segment(nbytes: int, used: int) -> int:
    """Make memory without a name, of which the first `used` bytes exist; return its descriptor.

    Nothing of it is left when its last process has ended. Raises OSError.
    """
    fd = os.memfd_create("commrt", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        os.posix_fallocate(fd, 0, used)  # else a full machine would end us with SIGBUS
    except OSError:
        os.close(fd)
        raise
    return fd


class Segment:
    """A mapping of shared memory into this process. Offsets and sizes are in bytes.

    Takes `fd` over. Memory beyond what `make_segment` was told is there once it is `provide`d.
    Raises OSError.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.nbytes = os.fstat(fd).st_size
        self.memory = mmap.mmap(fd, self.nbytes, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        self.base = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.memory))

    def words(self, offset: int, n: int) -> npt.NDArray[np.int64]:
        """View n words of 8 bytes."""
        return np.frombuffer(self.memory, np.int64, n, offset)

    def offset(self, array: Flat) -> int:
        """Return where an array lies in this memory, or -1."""
        start = int(array.ctypes.data) - self.base
        return start if 0 <= start <= self.nbytes - array.nbytes else -1

    def provide(self, offset: int, nbytes: int) -> None:
        """Let there be memory, zeros at first. Raises OSError if there is none left."""
        os.posix_fallocate(self._fd, offset, nbytes)

    def discard(self, offset: int, nbytes: int) -> None:
        """Give whole pages back to the system."""
        self.memory.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def make_private(self) -> None:
        """In a child: what it writes here shall not reach its parent."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int, ctypes.c_long]  # fmt: skip
        flags = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        libc.mmap(self.base, self.nbytes, protection, flags, self._fd, 0)

    def close(self) -> None:
        """Close the descriptor; the mapping lives as long as arrays in it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Pool:
    """One rank's part of a segment, [start, stop). Thread safety: any thread."""

    def __init__(self, segment: Segment, start: int, stop: int) -> None:
        self._segment = segment
        self._ranges = FreeRanges(start, stop, _PAGE)
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros, shape (nbytes,); elsewhere if there is no shared memory left.

        The memory is used again when the last array in it is gone.
        """
        try:
            return self.take(nbytes)
        except OSError as exc:
            log.warning("no shared memory for %d bytes, which will be copied: %s", nbytes, exc)
            return np.zeros(nbytes, np.uint8)

    def take(self, nbytes: int) -> Flat:
        """Return zeros, shape (nbytes,), that others can see. Raises OSError."""
        with self._lock:
            self._take_back()
            start = self._ranges.take(nbytes)
        if start is None:
            raise OSError(errno.ENOMEM, "this rank's part is full")
        self._segment.provide(start, max(1, nbytes))
        block: Any = (ctypes.c_ubyte * nbytes).from_buffer(self._segment.memory, start)
        # A finalizer may run in any thread at any time, under our own lock too: it only notes.
        weakref.finalize(block, self._returned.append, (start, nbytes)).atexit = False
        return np.frombuffer(block, np.uint8)

    def _take_back(self) -> None:
        while self._returned:
            start, nbytes = self._returned.popleft()
            self._segment.discard(start, -(-max(1, nbytes) // _PAGE) * _PAGE)
            self._ranges.give(start, nbytes)

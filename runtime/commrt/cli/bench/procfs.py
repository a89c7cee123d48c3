"""What the kernel says about this process and its host."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Since the process began: seconds on a clock and of processor time, all threads together.

    `wakeups`: how often a thread slept and was woken. `packets`: received by the whole host, so
    other processes' too; unix sockets have none.
    """

    clock: float
    processor: float
    wakeups: int
    packets: int


def usage() -> Usage:
    """Read it."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    return Usage(time.perf_counter(), time.process_time(), switches, _packets())


def memory() -> int:
    """Return the bytes of physical memory in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def descriptors() -> int:
    """Return the number of open file descriptors."""
    return len(os.listdir("/proc/self/fd")) - 1


def _packets() -> int:
    with open("/proc/self/net/dev") as lines:
        return sum(int(line.partition(":")[2].split()[1]) for line in lines if ":" in line)

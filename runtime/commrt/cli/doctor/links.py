"""Starts the engine on every rank, and shows what moves data between them and how fast."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

import numpy as np

import commrt
from commrt import api
from commrt.config import show
from commrt.core.perf import busbw
from commrt.types import Kind

_SIZES = ((8, 200), (64 << 10, 50), (1 << 20, 20), (16 << 20, 5))
"""Bytes of an array, and how often it is reduced."""


def run() -> int:
    """Measure, and print on rank 0. Returns the exit status."""
    try:
        commrt.init()
    except commrt.CommError as exc:
        print(f"commrt doctor: {exc}", file=sys.stderr)
        return 1
    first = commrt.rank() == 0
    for name, value in _rows():
        if first:
            print(f"  {name:<16}{value}", flush=True)
    commrt.shutdown()
    return 0


def _rows() -> Iterator[tuple[str, str]]:
    hosts = Counter(api.session().runtime.topology.hosts)
    size = commrt.size()
    yield "ranks", f"{size} on " + ", ".join(f"{host} ({n})" for host, n in hosts.items())
    yield "data", f"moved by {api.session().runtime.parts.moved_by}"
    if size == 1:
        return
    for nbytes, times in _SIZES:
        seconds = _allreduce(nbytes, times)
        rate = busbw(Kind.ALLREDUCE, nbytes, seconds, size) * 1e3
        what = f"reduced in {seconds * 1e3:.3f} ms: bus bandwidth {rate:.1f} MB/s"
        yield show(nbytes, "bytes"), what


def _allreduce(nbytes: int, times: int) -> float:
    """Return the median time of an allreduce, of float32, in place, in seconds."""
    array = np.ones(nbytes // 4, np.float32)
    found = []
    for _ in range(times + 1):
        start = time.perf_counter()
        commrt.allreduce_(array, name=f"links.{nbytes}")
        found.append(time.perf_counter() - start)
    return median(found[1:])

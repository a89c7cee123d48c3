"""The trace record: the last buckets, each with its times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """One bucket. Times are seconds on the monotonic clock; `ready` means ready on every rank."""

    number: int
    names: tuple[str, ...]
    nbytes: int
    wire_nbytes: int
    submitted: float
    ready: float
    started: float
    done: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all buckets since the start, those no longer kept included."""

    buckets: int = 0
    nbytes: int = 0
    wire_nbytes: int = 0


class Trace:
    """A ring buffer of bucket records. Thread safety: `add` background only, the rest any."""

    def __init__(self, capacity: int = 2000) -> None:
        self._records: deque[BucketRecord] = deque(maxlen=capacity)
        self._totals = Totals()
        self._tell: Callable[[BucketRecord], None] | None = None

    def add(self, record: BucketRecord) -> None:
        """Keep a record; the oldest one goes."""
        self._records.append(record)
        tell = self._tell
        if tell is not None:
            tell(record)
        t = self._totals
        self._totals = Totals(
            t.buckets + 1, t.nbytes + record.nbytes, t.wire_nbytes + record.wire_nbytes
        )

    def follow(self, tell: Callable[[BucketRecord], None] | None) -> None:
        """Have `tell` called with each new record, in the background thread; None: nobody."""
        self._tell = tell

    def records(self) -> list[BucketRecord]:
        """Return what is kept, oldest first."""
        return list(self._records)

    def totals(self) -> Totals:
        """Return the sums."""
        return self._totals

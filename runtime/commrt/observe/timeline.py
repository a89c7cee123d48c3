"""The timeline: bucket records as a file that chrome://tracing and Perfetto show."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from queue import SimpleQueue

from commrt.errors import ArgumentError
from commrt.observe.trace import BucketRecord, Trace
from commrt.types import Topology

log = logging.getLogger("commrt")

_SHOWN = 3
_PATIENCE = 5.0


def file_of_rank(path: str, rank: int) -> str | None:
    """Return the file that a rank writes: its own if `{rank}` is in `path`, else only rank 0's."""
    if "{rank}" in path:
        return path.replace("{rank}", str(rank))
    return path if rank == 0 else None


class EventWriter:
    """Turns records into lines of a JSON array. Records come in the order of their ends. Pure.

    Until the last line the array is open; viewers take it as it is.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lanes: list[float] = []

    def head(self, process: str) -> str:
        """Return the first lines; `process` is how viewers call this rank."""
        event = {"name": "process_name", "ph": "M", "pid": self._rank, "args": {"name": process}}
        return f"[\n{json.dumps(event)}"

    def line(self, record: BucketRecord) -> str:
        """Return one bucket's event: its time on the wire. Times are microseconds."""
        more = len(record.names) - _SHOWN
        names = ", ".join(record.names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        event = {
            "name": names,
            "cat": "bucket",
            "ph": "X",
            "pid": self._rank,
            "tid": self._lane(record),
            "ts": _us(record.started),
            "dur": _us(record.done - record.started),
            "args": {
                "number": record.number,
                "names": record.names,
                "bytes": record.nbytes,
                "wire_bytes": record.wire_nbytes,
                "submitted": _us(record.submitted),
                "ready_on_all_ranks": _us(record.ready),
            },
        }
        return f",\n{json.dumps(event)}"

    def tail(self) -> str:
        """Return the last line."""
        return "\n]\n"

    def _lane(self, record: BucketRecord) -> int:
        """Return the first lane that was free: on one lane viewers show no overlapping events."""
        for lane, end in enumerate(self._lanes):
            if end <= record.started:
                self._lanes[lane] = record.done
                return lane
        self._lanes.append(record.done)
        return len(self._lanes) - 1


class Recorder:
    """Writes at most one timeline of a trace at a time. Thread safety: any thread."""

    def __init__(self, trace: Trace, here: Topology) -> None:
        self._trace = trace
        self._here = here
        self._lock = threading.Lock()
        self._timeline: Timeline | None = None

    def start(self, path: str) -> None:
        """Write what is done from now on to `path`, or nothing if that is another rank's file.

        Raises ArgumentError if the file can't be opened, or while another one is written.
        """
        own = file_of_rank(path, self._here.rank)
        with self._lock:
            if self._timeline is not None:
                raise ArgumentError(
                    f"rank {self._here.rank}: a timeline is being written to "
                    f"{self._timeline.path}; call stop_timeline() first"
                )
            if own is not None:
                self._timeline = Timeline(own, self._here)
                self._trace.follow(self._timeline.add)

    def stop(self) -> None:
        """Finish the file. Does nothing if none is being written."""
        with self._lock:
            timeline, self._timeline = self._timeline, None
            self._trace.follow(None)
        if timeline is not None:
            timeline.close()


class Timeline:
    """A file being written, by a thread of its own: the engine waits for no disk.

    Thread safety: `add` one thread, `close` any, once. Raises ArgumentError if the file can't be
    opened; what can't be written later is logged once and lost.
    """

    def __init__(self, path: str, here: Topology) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise ArgumentError(
                f"rank {here.rank}: can't write a timeline to {path}: {exc.strerror}"
            ) from exc
        self.path = path
        self._writer = EventWriter(here.rank)
        self._records: SimpleQueue[BucketRecord | None] = SimpleQueue()
        title = f"rank {here.rank} of {here.size} on {here.hosts[here.rank]}"
        self._thread = threading.Thread(
            target=self._main, args=(title,), name="commrt timeline", daemon=True
        )
        self._thread.start()

    def add(self, record: BucketRecord) -> None:
        """Hand in a bucket that is done. Does not block."""
        self._records.put(record)

    def close(self) -> None:
        """Write what has been handed in, and the end. Waits at most 5 s for a slow disk."""
        self._records.put(None)
        self._thread.join(_PATIENCE)

    def _main(self, title: str) -> None:
        """Every event is written at once and whole: a process that is killed leaves those."""
        writable = True
        for text in self._lines(title):
            try:
                if writable:
                    self._write(text)
            except OSError as exc:
                writable = False
                log.warning("the timeline %s ends early: %s", self.path, exc.strerror)
        os.close(self._fd)

    def _lines(self, title: str) -> Iterator[str]:
        yield self._writer.head(title)
        while (record := self._records.get()) is not None:
            yield self._writer.line(record)
        yield self._writer.tail()

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._fd, data) :]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)

"""The one door into the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from commrt.core.ids import Key, unnamed
from commrt.engine.memory import MemoryMap
from commrt.engine.submission import Submission
from commrt.errors import CommError, DuplicateNameError, ShutdownError
from commrt.types import Kind, Signature


class TensorQueue:
    """Submissions not yet completed. Thread safety: `submit` any; the rest background only.

    What `submit` accepts will be completed or failed.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._wake = wake
        self._clock = clock
        self._new: list[Submission] = []
        self._open: dict[Key, Submission] = {}
        self._memory = MemoryMap()
        self._ordinals = Ordinals()
        self._error: CommError | None = None

    def submit(self, submission: Submission) -> None:
        """Accept an operation, or raise ShutdownError or DuplicateNameError and forget it."""
        with self._lock:  # check, insert, wake: nothing slips past close()
            if self._error is not None:
                raise closed(self._error, submission)
            request = submission.request
            kind = request.signature.kind
            if not request.named:
                name = self._ordinals.name(request.set_id, kind)
                request = submission.request = replace(request, name=name)
                submission.handle.name = name
            if submission.key in self._open:
                raise DuplicateNameError(
                    f"{request.name!r} is in flight already; wait for it or use another name"
                )
            other = self._memory.conflict(submission.sources, submission.written)
            if other is not None:
                raise DuplicateNameError(
                    f"{request.name!r} uses memory that {other!r}, still in flight, uses too"
                )
            if not request.named:
                self._ordinals.advance(request.set_id, kind)
            self._memory.add(request.name, submission.sources, submission.written)
            self._open[submission.key] = submission
            submission.submitted = self._clock()
            self._new.append(submission)
        self._wake()  # never blocks

    def waiting(self) -> bool:
        """Has anything been accepted since the last `drain`?"""
        return bool(self._new)

    def drain(self) -> list[Submission]:
        """Return what was accepted since the last call."""
        if not self._new:
            return []
        with self._lock:
            new, self._new = self._new, []
        return new

    def find(self, key: Key) -> Submission:
        """Return an open submission."""
        return self._open[key]

    def finish(self, submission: Submission) -> None:
        """Forget a submission: its memory and name are free. Complete its handle after this.

        What stands in for a rank that has joined was never accepted here.
        """
        with self._lock:
            if self._open.get(submission.key) is submission:
                self._forget(submission)
            self._ordinals.follow(submission.request.signature)

    def fail(self, key: Key, error: CommError) -> None:
        """End one open submission with an error."""
        with self._lock:
            submission = self._open.get(key)
            if submission is None:
                return
            self._forget(submission)
        submission.handle.fail(error)

    def count_anew(self) -> None:
        """Count unnamed operations from 0 again."""
        with self._lock:
            self._ordinals.restart()

    def names(self) -> list[str]:
        """Names of all open submissions, oldest first."""
        with self._lock:
            return [name for _, name in self._open]

    def empty(self) -> bool:
        """Is nothing open?"""
        return not self._open

    def reason(self) -> CommError | None:
        """Return what it was closed with."""
        return self._error

    def close(self, error: CommError) -> None:
        """Refuse everything from now on and fail what is open."""
        with self._lock:
            self._error = self._error or error
            orphans = list(self._open.values())
            self._open.clear()
            self._new.clear()
        for submission in orphans:  # outside the lock: a callback may submit again
            submission.handle.fail(error)

    def _forget(self, submission: Submission) -> None:
        del self._open[submission.key]
        self._memory.remove(submission.request.name, submission.sources, submission.written)


class Ordinals:
    """Names what its caller did not: by kind, set and a count that is the same on all ranks.

    A rank that joins is left behind: once all have joined everyone counts anew. Caller locks.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Kind], int] = {}
        self._joins = 0

    def name(self, set_id: int, kind: Kind) -> str:
        """Return the next name."""
        era = f"{self._joins}." if self._joins else ""
        return f"{unnamed(kind)}{era}{self._counts.get((set_id, kind), 0)}"

    def advance(self, set_id: int, kind: Kind) -> None:
        """Note that the name was used."""
        self._counts[set_id, kind] = self._counts.get((set_id, kind), 0) + 1

    def restart(self) -> None:
        """Count from 0, under names that were not there before."""
        self._counts.clear()
        self._joins += 1

    def follow(self, signature: Signature) -> None:
        """Note that an operation has ended well."""
        if signature.kind is Kind.JOIN:
            self.restart()
        elif signature.kind is Kind.REMOVE_SET:
            for key in [key for key in self._counts if key[0] == signature.subject[0]]:
                del self._counts[key]


def closed(error: CommError, submission: Submission) -> CommError:
    """Return what a submission after `close(error)` raises: the cause, if it was a failure."""
    if not isinstance(error, ShutdownError):
        return error
    name = submission.request.name or submission.request.signature.kind.value
    return ShutdownError(f"{name!r} was submitted after the runtime had ended: {error}")

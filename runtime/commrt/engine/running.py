"""A bucket on its way through the engine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from commrt.engine.handle import Outcome
from commrt.engine.submission import Submission
from commrt.transports.base import Channel, Work
from commrt.types import Bucket

Task = Generator[Work | None, None, None]
"""Yields what has to be moved next, or None between two slices of local work."""


@dataclass(slots=True)
class Running:
    """A bucket on its way."""

    bucket: Bucket
    submissions: Sequence[Submission]
    task: Task
    ready: float
    started: float = 0.0
    work: Work | None = None
    wire_nbytes: int = 0
    generation: int = 0
    stages: int = 0
    revoked: bool = False

    def channel(self) -> Channel:
        """Return the channel of the next stage."""
        self.stages += 1
        return Channel(self.generation, self.bucket.number, self.stages - 1)


def outcome(running: Running, place: int) -> Outcome:
    """Return what operation number `place` of a bucket left."""
    agreed = running.bucket.operations[place]
    return Outcome(running.submissions[place].outs, agreed.absent, agreed.rows)

"""Times ways to move data between hosts, before there is an engine; keeps what it found."""

from __future__ import annotations

import hashlib
import logging
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from commrt.clock import monotonic
from commrt.core.tuning import TIMES, Choice, Timed, Trial, choose
from commrt.engine.leftovers import keep_for_ever
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Members, Transport, Wire, Work
from commrt.transports.message import MessageTransport
from commrt.types import ReduceOp

log = logging.getLogger("commrt.engine")

ALLOWED = 0.25
"""Seconds for all trials."""

PATIENCE = 10.0
"""Seconds without any data after which a wire is given up."""

_LOOK = 100.0  # milliseconds after which a waiting rank looks whether the job is over
_KEEP = 7 * 86400.0  # seconds that a choice is kept for


class Trials:
    """Trials of `wires` that all `members` make at once; the first of them chooses.

    `check` is called while waiting; it may raise. `patience`: seconds without any data.
    """

    def __init__(
        self,
        wires: Mapping[str, Wire],
        members: Members,
        check: Callable[[], None],
        patience: float = PATIENCE,
    ) -> None:
        self.wire = next(iter(wires))
        """What the latest allreduce went over."""
        self._wires = wires
        self._members = members
        self._check = check
        self._patience = patience
        self._words = MessageTransport(wires[self.wire])
        self._number = 0

    def lead(self, allowed: float = ALLOWED) -> Choice:
        """Choose, on the first member. Blocks. Raises PeerLostError, TimeoutError."""
        until = monotonic() + allowed
        course = choose(list(self._wires), len(self._members.ranks), allowed)
        trial = next(course)
        while True:
            try:
                trial = course.send(self._try(trial, until))
            except StopIteration as end:
                self._say(None)
                choice: Choice = end.value
                return choice

    def follow(self) -> None:
        """Make the trials that the first member asks for. Blocks. Raises as `lead` does."""
        while (trial := self._hear()) is not None:
            self._once(trial)

    def _try(self, trial: Trial, until: float) -> Timed:
        begun, best = monotonic(), float("inf")
        for _ in range(TIMES):  # connections are made in the first
            self._say(trial)
            best = min(best, self._once(trial))
            if monotonic() > until:
                break
        return Timed(best, monotonic() - begun)

    def _once(self, trial: Trial) -> float:
        # Large enough or small enough a limit leaves the transport no choice.
        small = 0 if trial.ring else trial.nbytes
        self.wire = trial.wire
        transport = MessageTransport(self._wires[trial.wire], small, trial.segment)
        array, total = np.zeros(trial.nbytes // 4, np.float32), Reduction(ReduceOp.SUM)
        start = monotonic()
        work = transport.allreduce(self._members, self._channel(), array, array, total)
        self._drive(transport, work)
        return monotonic() - start

    def _say(self, trial: Trial | None) -> None:
        word = np.zeros(4, np.int64)
        if trial is not None:
            place = list(self._wires).index(trial.wire)
            word[:] = (trial.nbytes, trial.ring, trial.segment, place)
        self._tell(word)

    def _hear(self) -> Trial | None:
        word = np.zeros(4, np.int64)
        self._tell(word)
        nbytes, ring, segment, place = word.tolist()
        return Trial(list(self._wires)[place], bool(ring), nbytes, segment) if nbytes else None

    def _tell(self, word: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self.wire = next(iter(self._wires))
        work = self._words.broadcast(self._members, self._channel(), word, word, 0)
        self._drive(self._words, work)

    def _channel(self) -> Channel:
        self._number += 1
        return Channel(0, self._number, 0)

    def _drive(self, transport: Transport, work: Work) -> None:
        """Move a work on to its end."""
        try:
            steps, until = -1, 0.0
            while not work.progress():
                if work.steps() != steps:
                    steps, until = work.steps(), monotonic() + self._patience
                elif monotonic() > until:
                    ranks = ", ".join(map(str, work.waiting_for()))
                    raise TimeoutError(f"no data from rank {ranks} in {self._patience:g} s")
                else:
                    self._wait(transport)
        except BaseException:
            keep_for_ever(work)
            raise

    def _wait(self, transport: Transport) -> None:
        self._check()
        descriptors = transport.descriptors()
        if not descriptors:
            time.sleep(0)
            return
        if not transport.sleep(True):
            transport.arm()
            poller = select.poll()
            for descriptor in descriptors:
                poller.register(descriptor, select.POLLIN)
            poller.poll(_LOOK)
        transport.sleep(False)


class Kept:
    """Choices of earlier jobs, in a directory of the user's. Trouble with it is no trouble."""

    def __init__(self, directory: Path, facts: Sequence[str]) -> None:
        """`facts`: what the job has in common with those whose choice serves it too."""
        digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
        self._path = directory / f"links-{digest[:32]}.json"

    def load(self, wires: Iterable[str]) -> Choice | None:
        """Return what was chosen lately, if it is one of these wires."""
        try:
            if time.time() - self._path.stat().st_mtime > _KEEP:
                return None
            choice = msgspec.json.decode(self._path.read_bytes(), type=Choice)
        except (OSError, ValueError) as exc:
            log.debug("no choice of an earlier job: %s", exc)
            return None
        usable = choice.wire in wires and choice.small >= 0 and choice.segment > 0
        return choice if usable else None

    def save(self, choice: Choice) -> None:
        """Keep a choice, for this user's eyes."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(choice))
                os.replace(name, self._path)
            except OSError:
                os.unlink(name)
                raise
        except OSError as exc:
            log.info("what was measured of the links can't be kept: %s", exc)

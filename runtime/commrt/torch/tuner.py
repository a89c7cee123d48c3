"""Lets the lowest rank of a set say in which order gradients lie, and how large buckets are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commrt.core.growth import COUNTED, START, WINDOW, Decision, Growth
from commrt.observe.trace import BucketRecord
from commrt.operations import Sum
from commrt.torch.buckets import Launchable, Member, Way
from commrt.torch.plan import Plan


class Ballot(Launchable):
    """What the lowest rank has decided, on its way in a cycle like a bucket. See `Bucket`.

    A sum: the others add zeros. So it goes on while ranks have joined; if the lowest one has, the
    sum is zero and nothing is decided.
    """

    def __init__(self, number: int, said: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self.number = number
        self.members: tuple[Member, ...] = ()
        self.missing = 0
        self._said = said

    def launch(self, way: Way) -> None:
        """Submit it. Does not block."""
        name = way.name(self.number)
        self._handle = way.session.allreduce_async(
            self._said, name, Sum, process_set=way.process_set
        )

    def adopt(self) -> None:
        """Do nothing: it is no gradient."""

    def holds(self, param: object) -> bool:
        """It holds no gradient."""
        return False

    def result(self) -> list[int]:
        """Return what was decided. Blocks."""
        assert self._handle is not None
        found: list[int] = self._handle.wait().tolist()
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """What the next plan is like: bytes of a bucket, 0: as before; which places come first."""

    nbytes: int
    order: tuple[int, ...]


class Tuner:
    """Counts the cycles of a plan up to the next ballot. All ranks of a set count alike.

    The first ballot, in the first cycle, has the order in which gradients became ready. `growth`:
    None if buckets keep their size. `leads`: are we the lowest rank? `enabled`: are there ballots?
    """

    def __init__(self, growth: Growth | None, leads: bool, enabled: bool = True) -> None:
        self.ballot: Ballot | None = None
        self._growth = growth
        self._leads = leads
        self._left: int | None = 1 if enabled else None
        self._ordered = False
        self._nbytes = START
        self._change: Change | None = None

    def due(self) -> bool:
        """Has this cycle a ballot?"""
        return self._left == 1

    def open(self, plan: Plan, order: Sequence[int]) -> None:
        """Make this cycle's ballot, if it has one. `order`: which gradients became ready first."""
        if self.due() and self.ballot is None:
            self.ballot = Ballot(len(plan.buckets), self._say(plan, order))

    def observes(self) -> bool:
        """Does this cycle's rate count, here?"""
        wants = self._leads and self._growth is not None
        # Not the cycle of the ballot: it is decided already.
        return wants and self._left is not None and 1 < self._left <= COUNTED + 1

    def observe(self, records: Sequence[BucketRecord]) -> None:
        """Note what was on the wire in a cycle."""
        if records and self._growth is not None:
            self._growth.observe(sum(r.wire_nbytes for r in records) / occupied(records))

    def end_cycle(self) -> bool:
        """Note that a cycle went well; is there to be another plan after it?"""
        if self._left is not None:
            self._left -= 1
        ballot, self.ballot = self.ballot, None
        if ballot is None:
            return False
        nbytes, steps, *order = ballot.result()
        self._left = steps or (None if self._growth is None else WINDOW)
        self._ordered = True
        grown = nbytes not in (0, self._nbytes)
        self._nbytes = nbytes or self._nbytes
        if order or grown:
            self._change = Change(nbytes, tuple(place - 1 for place in order if place))
        return self._change is not None

    def take_change(self) -> Change | None:
        """Return once what is to be changed."""
        change, self._change = self._change, None
        return change

    def text(self) -> str:
        """Say how large buckets are, and why."""
        if self._growth is None:
            return "buckets keep their size, gradients lie in the order in which they become ready"
        return f"buckets: {self._growth.text()}" if self._leads else "as the lowest rank says"

    def _say(self, plan: Plan, order: Sequence[int]) -> npt.NDArray[np.int64]:
        places = [place for row in plan.rows for place in row.places]
        said = np.zeros(2 + (0 if self._ordered else len(places)), np.int64)
        if not self._leads:
            return said
        if not self._ordered:
            # Ranks may number parameters in other ways, but they lay them out alike.
            known = {place.member.index: i for i, place in enumerate(places, start=1)}
            found = [known[index] for index in order if index in known]
            said[2 : 2 + len(found)] = found
        if self._growth is not None:
            decision = self._growth.decide() if self._ordered else Decision(START, WINDOW)
            said[:2] = decision.nbytes, decision.steps
        return said


def occupied(records: Sequence[BucketRecord]) -> float:
    """Return the seconds in which any of the buckets was on the wire."""
    total, until = 0.0, 0.0
    for start, done in sorted((record.started, record.done) for record in records):
        total += max(0.0, done - max(start, until))
        until = max(until, done)
    return max(total, 1e-9)

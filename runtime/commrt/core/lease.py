"""Whether the job follows a plan or negotiates: the coordinator's side of the schedule lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from commrt.core.actions import SendControl
from commrt.core.rhythm import Rhythm, Turn
from commrt.core.schedule_lock import Course
from commrt.core.wire import Freeze, Lock, Message, Place, Planned, Stalled, Stop, Unlock

_PAYS = 4
"""Rounds after which a plan has paid."""

_SHOWN = 6

Members = Callable[[int], Sequence[int]]
"""Returns the ranks of a process set."""


@dataclass(slots=True)
class Plan:
    """A plan that is followed; once frozen, who has answered."""

    turns: tuple[Turn, ...]
    first: int
    frozen_at: float | None = None
    why: str = ""
    answers: dict[int, dict[int, int]] = field(default_factory=dict)
    warned: bool = False


class Lease:
    """Numbers the buckets of the job; begins and ends plans, each in an epoch of its own. Pure.

    `hosts[r]` is where rank r runs. `warn`, `fail`: seconds that ranks have to say how far they
    are; `fail` 0 means for ever. `enabled`: may there be plans?
    """

    def __init__(self, hosts: Sequence[str], warn: float, fail: float, enabled: bool) -> None:
        self._rhythm = Rhythm()
        self._enabled = enabled
        self._hosts = tuple(hosts)
        self._patience = (warn, fail or inf)
        self._epoch = 0
        self._number = 0
        self._plan: Plan | None = None
        self._heard: Counter[int] = Counter()

    def hear(self, rank: int) -> None:
        """Note that a report or goodbye of a rank was heard, and not dropped."""
        self._heard[rank] += 1

    def free(self) -> bool:
        """Does the job negotiate?"""
        return self._plan is None

    def number(self) -> int:
        """Return the number of the next bucket."""
        self._number += 1
        return self._number - 1

    def step(self, turn: Turn) -> tuple[Turn, ...]:
        """Return a plan if the next bucket begins a step and a plan can be trusted."""
        if not self._enabled or not self._rhythm.begins(turn):
            return ()
        self._rhythm.end_step()
        return self._rhythm.plan()

    def add(self, turn: Turn) -> None:
        """Note the next bucket."""
        if self._enabled:
            self._rhythm.add(turn)

    def lock(self, turns: tuple[Turn, ...], members: Members) -> list[SendControl]:
        """Tell every rank to follow a plan from here on, ourselves last."""
        self._epoch += 1
        self._plan = Plan(turns, self._number)
        shares = [members(turn.set_id) for turn in turns]
        told = []
        for rank in self._ranks():
            places = tuple(_place(t, m, rank) for t, m in zip(turns, shares, strict=True))
            told.append(
                SendControl(rank, Lock(self._epoch, self._number, self._heard[rank], places))
            )
        return told

    def freeze(self, now: float, why: str) -> list[SendControl]:
        """Ask every rank how far it is, unless that has been done."""
        plan = self._plan
        if plan is None or plan.frozen_at is not None:
            return []
        plan.frozen_at, plan.why = now, why
        return self._tell(Freeze(self._epoch))

    def is_about(self, epoch: int) -> bool:
        """Is that the epoch of the plan that is followed?"""
        return self._plan is not None and epoch == self._epoch

    def answer(self, rank: int, begun: dict[int, int]) -> bool:
        """Note how far a rank is; have all answered?"""
        assert self._plan is not None
        self._plan.answers[rank] = begun
        return len(self._plan.answers) == len(self._hosts)

    def unlock(self, members: Members) -> list[SendControl]:
        """End the plan."""
        plan = self._plan
        assert plan is not None
        kept, begun = {}, {}
        for set_id in {turn.set_id for turn in plan.turns}:
            counts = [plan.answers[rank].get(set_id, 0) for rank in members(set_id)]
            kept[set_id], begun[set_id] = min(counts), max(counts)
        course = Course([Place(turn.set_id) for turn in plan.turns])
        turns = [course.turn(set_id, count - 1) + 1 for set_id, count in begun.items() if count]
        last = max(turns, default=0)
        self._number = plan.first + last
        self._epoch += 1
        self._plan = None
        self._rhythm = self._rhythm.after(last >= _PAYS * len(plan.turns))
        return self._tell(Unlock(self._epoch, plan.why, kept, begun))

    def tick(self, now: float) -> list[SendControl]:
        """Name the ranks that do not say how far they are; end the job if they never do."""
        plan = self._plan
        if plan is None or plan.frozen_at is None:
            return []
        waited = now - plan.frozen_at
        silent = [rank for rank in self._ranks() if rank not in plan.answers]
        who = ", ".join(f"rank {r} (on {self._hosts[r]})" for r in sorted(silent)[:_SHOWN])
        text = (
            f"{who} did not answer for {waited:.0f} s, while the others wait to negotiate again. "
            "Is that process stopped, or busy outside Python?"
        )
        warn, fail = self._patience
        if waited >= fail:
            return self._tell(Stop("StallError", text))
        if waited >= warn and not plan.warned:
            plan.warned = True
            return self._tell(Stalled(text))
        return []

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        plan = self._plan
        if plan is None or plan.frozen_at is None:
            return None
        return plan.frozen_at + self._patience[plan.warned]

    def _tell(self, message: Message) -> list[SendControl]:
        return [SendControl(rank, message) for rank in self._ranks()]

    def _ranks(self) -> range:
        """All ranks, ourselves last: the others get theirs while we are busy with ours."""
        return range(len(self._hosts) - 1, -1, -1)


def _place(turn: Turn, members: Sequence[int], rank: int) -> Place:
    if rank not in members:
        return Place(turn.set_id)
    index = members.index(rank)
    return Place(
        turn.set_id,
        tuple(
            Planned(
                beat.agreed.name if beat.named else "",
                beat.agreed.signature,
                beat.agreed.rows,
                beat.agreed.absent,
                *beat.shares[index],
                -1 if beat.named else int(beat.agreed.name.rpartition(".")[2]),
            )
            for beat in turn.beats
        ),
    )

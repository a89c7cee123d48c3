"""Finds the period of what a job does: the operations that come again, step after step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from commrt.types import Agreed, Kind, ReduceOp, Signature

LONGEST = 8
"""Steps that a period has at most: adversarial networks take turns."""

OPERATIONS = 4096
"""Operations that a step has at most; a longer one has no rhythm."""

_SEEN = 3
"""Times that a period is seen before it is trusted."""

_MOST = 96
"""The same, after many plans that did not hold."""

Share = tuple[tuple[int, ...], tuple[int, ...]]
"""The `rows` and `absent` of one member's request."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One operation as all members have submitted it; `shares` are theirs, in the set's order.

    `ident` is the same for the same operation of another step.
    """

    agreed: Agreed
    named: bool
    ident: Hashable
    shares: tuple[Share, ...]

    @property
    def key(self) -> Hashable:
        """What comes once in a step: a name, or what an unnamed operation is."""
        return self.agreed.name if self.named else self.ident


@dataclass(frozen=True, slots=True)
class Turn:
    """One bucket of the response stream. `provable`: none ends before all members have begun."""

    set_id: int
    beats: tuple[Beat, ...]
    provable: bool


_ROUND = 8
"""Times that the same unnamed operation comes after the last name of a step, if it goes on so."""

Step = tuple[tuple[Turn, ...], dict[Hashable, int] | None]
"""Buckets in their order, and what is in them; None if that can't be trusted to come again."""


class Rhythm:
    """Cuts the response stream into steps and tells when they repeat. Pure.

    A step ends where a name comes again; where nothing has a name (any more), where an operation
    does. `needed`: how often a period has to be seen.
    """

    def __init__(self, needed: int = _SEEN) -> None:
        self._needed = needed
        self._turns: list[Turn] = []
        self._keys: set[Hashable] = set()
        self._named = False
        self._nameless: Counter[Hashable] = Counter()
        self._steps: deque[Step] = deque(maxlen=LONGEST)
        self._runs = [0] * (LONGEST + 1)

    def begins(self, turn: Turn) -> bool:
        """Does a new step begin with this bucket?"""
        for beat in turn.beats:
            key = (turn.set_id, beat.key)
            if key in self._keys and (beat.named or not self._named):
                return True
            if self._nameless[key] >= _ROUND:
                return True
        return len(self._keys) > OPERATIONS or len(self._turns) > OPERATIONS

    def end_step(self) -> None:
        """Note that the next bucket belongs to the next step."""
        turns = tuple(self._turns)
        counted = _count(turns)
        for period in range(1, LONGEST + 1):
            known = counted is not None and len(self._steps) >= period
            again = known and self._steps[-period][1] == counted
            self._runs[period] = self._runs[period] + 1 if again else 0
        self._steps.append((turns, counted))
        self._turns, self._named = [], False
        self._keys.clear()
        self._nameless.clear()

    def add(self, turn: Turn) -> None:
        """Note a bucket of the step."""
        self._turns.append(turn)
        for beat in turn.beats:
            self._keys.add((turn.set_id, beat.key))
            if beat.named:
                self._named = True
                self._nameless.clear()
            else:
                self._nameless[turn.set_id, beat.key] += 1

    def plan(self) -> tuple[Turn, ...]:
        """Return a period in the order in which it came last; () if there is none to trust."""
        for period in range(1, LONGEST + 1):
            if self._runs[period] >= (self._needed - 1) * period:
                return tuple(turn for turns, _ in list(self._steps)[-period:] for turn in turns)
        return ()

    def after(self, held: bool) -> Rhythm:
        """Return a new one, after a plan that `held` for long enough to pay, or did not."""
        return Rhythm() if held else Rhythm(min(_MOST, 2 * self._needed))


def _count(turns: tuple[Turn, ...]) -> dict[Hashable, int] | None:
    beats = [(turn.set_id, beat.ident, beat.shares) for turn in turns for beat in turn.beats]
    if len(beats) > OPERATIONS or not all(turn.provable for turn in turns):
        return None
    return dict(Counter(beats))  # whose comparison is faster


def slot_of(beat: Beat) -> str | Kind:
    """Return what a submission of it is matched by under a plan: its name, or else its kind."""
    return beat.agreed.name if beat.named else beat.agreed.signature.kind


def provable(agreed: Agreed, size: int) -> bool:
    """Does its end on any of `size` members prove that all have begun it, from its first stage on?

    Not if what a member gets can be had without some other: a broadcast, or counts of 0.
    """
    tensors = agreed.signature.tensors
    match agreed.signature.kind:
        case Kind.ALLREDUCE:
            counts: dict[str, int] = {}
            for tensor in tensors:
                counts[tensor.dtype] = counts.get(tensor.dtype, 0) + prod(tensor.shape)
            return all(
                n >= (size if _through_owners(agreed.signature, dtype) else 1)
                for dtype, n in counts.items()
            )
        case Kind.REDUCESCATTER:
            return all(t.shape[:1] >= (size,) and prod(t.shape) for t in tensors)
        case Kind.ALLGATHER | Kind.ALLTOALL:
            return all(map(all, agreed.rows)) and all(prod(t.shape[1:]) for t in tensors)
    return False


def _through_owners(signature: Signature, dtype: str) -> bool:
    """May its first exchange be with the owners of parts, of which each must have some?"""
    if signature.codec != "none" or signature.op is ReduceOp.ADASUM or "16" in dtype:
        return True
    return signature.op is ReduceOp.AVERAGE and "int" in dtype

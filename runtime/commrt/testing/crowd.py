"""Ranks that submit a scenario's operations in any order that a program may have."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commrt.core.ids import Key
from commrt.testing.network import Network
from commrt.types import Bucket, Kind, ProcessSetSpec, Request


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as each member submits it, by world rank.

    `agrees`: all members mean the same. `reporter`: the member that reports an error instead.
    """

    requests: Mapping[int, Request]
    agrees: bool = True
    reporter: int | None = None

    @property
    def key(self) -> Key:
        """Process set and name."""
        request = next(iter(self.requests.values()))
        return request.set_id, request.name


@dataclass(frozen=True, slots=True)
class Scenario:
    """Operations of a job, in an order in which every rank could submit them."""

    size: int
    sets: Mapping[int, ProcessSetSpec]
    operations: tuple[Operation, ...]


Ending = Bucket | str | None
"""How an operation ended on one rank: its bucket, its error, or not yet."""


class Crowd:
    """Submits, delivers and leaves in an order drawn from `rng`.

    A rank submits the operations of one name in their order, each after the one before has ended,
    and unnamed ones of one kind and set in their order. `endings[i, r]` is how operation i ended
    on rank r. `impatience`: how likely a caller waits for what is blocked before it submits more;
    he does when nothing else can happen.
    """

    def __init__(
        self, network: Network, scenario: Scenario, rng: random.Random, impatience: float = 0.0
    ) -> None:
        self._impatience = impatience
        self._network = network
        self._scenario = scenario
        self._rng = rng
        self._queues = [_queues(scenario.operations, r) for r in range(scenario.size)]
        self._current: dict[tuple[int, Key], int] = {}
        self._seen = [(0, 0)] * scenario.size
        self.endings: dict[tuple[int, int], Ending] = {}

    def run(self) -> None:
        """Go on until nothing can happen any more."""
        while self.step():
            continue

    def step(self) -> bool:
        """Let one thing happen; return False if nothing can."""
        links = self._network.under_way()
        able = [r for r in range(self._scenario.size) if self._ready(r)]
        stuck = [(r, key) for r in range(self._scenario.size) for key in self._network.blocked(r)]
        if stuck and ((not links and not able) or self._rng.random() < self._impatience):
            self._network.wait(*self._rng.choice(stuck))
            return True
        if not links and not able:
            return False
        if links and (not able or self._rng.random() < 0.6):
            self._network.deliver(self._rng.choice(links))
            self._note_endings()
        else:
            self._submit_some(self._rng.choice(able))
        return True

    def drop(self, rank: int) -> None:
        """Let a rank submit nothing more."""
        self._queues[rank] = []

    def unsubmitted(self) -> list[int]:
        """Return the ranks that have operations left to submit."""
        return [r for r, queues in enumerate(self._queues) if any(queues)]

    def _ready(self, rank: int) -> list[deque[int]]:
        state = self._network.ranks[rank]
        if state.end is not None:
            return []
        operations = self._scenario.operations
        return [q for q in self._queues[rank] if q and operations[q[0]].key not in state.open]

    def _submit_some(self, rank: int) -> None:
        batch: list[Request] = []
        for _ in range(self._rng.randint(1, 4)):
            taken = {(request.set_id, request.name) for request in batch}
            ready = [
                q for q in self._ready(rank) if self._scenario.operations[q[0]].key not in taken
            ]
            if not ready:
                break
            index = self._rng.choice(ready).popleft()
            operation = self._scenario.operations[index]
            self.endings[index, rank] = None
            if operation.reporter == rank:
                self._network.report(rank, *operation.key, f"bad {index}")
                self.endings[index, rank] = f"reported {index}"
                continue
            self._current[rank, operation.key] = index
            batch.append(operation.requests[rank])
        if batch:
            self._network.submit(rank, batch)

    def _note_endings(self) -> None:
        for rank, state in enumerate(self._network.ranks):
            buckets, failed = self._seen[rank]
            for bucket in state.buckets[buckets:]:
                for operation in bucket.operations:
                    self._note(rank, (bucket.set_id, operation.name), bucket)
            for fail in state.failed[failed:]:
                text = f"{type(fail.error).__name__}: {fail.error}"
                self._note(rank, (fail.set_id, fail.name), text)
            self._seen[rank] = (len(state.buckets), len(state.failed))

    def _note(self, rank: int, key: Key, ending: Ending) -> None:
        index = self._current.pop((rank, key))
        assert self.endings[index, rank] is None, f"operation {index} ended twice on rank {rank}"
        self.endings[index, rank] = ending


def _queues(operations: Sequence[Operation], rank: int) -> list[deque[int]]:
    """Return the indices of a rank's operations; those of one queue keep their order."""
    queues: dict[tuple[int, str | Kind], deque[int]] = {}
    for index, operation in enumerate(operations):
        request = operation.requests.get(rank)
        if request is not None:
            order: str | Kind = request.name if request.named else request.signature.kind
            queues.setdefault((request.set_id, order), deque()).append(index)
    return list(queues.values())

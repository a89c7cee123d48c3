"""Counts gradients, in hooks that do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from commrt.torch.plan import Plan
from commrt.torch.table import Table

Fired = Callable[[torch.Tensor], None]


class Counted(Protocol):
    """What waits for gradients; it is full when none is missing."""

    missing: int


@dataclass(slots=True)
class Gathering:
    """All gradients of a cycle without a plan; or, below zero, those that nobody waits for."""

    missing: int = 0


@dataclass(frozen=True, slots=True)
class Grouping:
    """Who waits for which gradients, by index; and what is planned but frozen here."""

    plan: Plan | None
    owned: list[tuple[Counted, list[int]]]
    frozen: list[torch.Tensor]


class Counts:
    """How many gradients each parameter, and each bucket, waits for.

    `order`: the indices of those that have got all their gradients, as they came. `full` is called
    with what is full, `extra` with a parameter that has got a gradient too many
    and the function that counts it.
    """

    def __init__(
        self, table: Table, passes: int, full: Callable[[Counted], None],
        extra: Callable[[int, torch.Tensor, Fired], None],
    ) -> None:  # fmt: skip
        self.passes = passes
        self._table = table
        self._calls = full, extra
        self._left: list[int] = []
        self.order: list[int] = []
        self._owners: list[Counted] = []
        self._hooks: dict[int, RemovableHandle] = {}
        self._grouping = Grouping(None, [], [])

    def arm(self) -> frozenset[int]:
        """Hook what requires gradients and has no hook yet; return what that was."""
        fresh = set()
        for index, (_, param) in enumerate(self._table.named):
            if index == len(self._left):
                self._left.append(self.passes)
                self._owners.append(Gathering(-1))
            if param.requires_grad and index not in self._hooks:
                register = param.register_post_accumulate_grad_hook
                self._hooks[index] = register(self._counter(index))  # type: ignore[no-untyped-call]
                fresh.add(index)
        return frozenset(fresh)

    def disarm(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def group(self, plan: Plan | None, without: Container[int] = ()) -> None:
        """Count for the plan's buckets; without a plan, for all gradients at once.

        What is frozen now is not waited for, nor is `without`.
        """
        every = (
            [(Gathering(), list(self._hooks))] if plan is None
            else [(bucket, [m.index for m in bucket.members]) for bucket in plan.buckets]
        )  # fmt: skip
        params = [(i, self._table.param(i)) for _, indices in every for i in indices]
        thawed = {i for i, param in params if param.requires_grad and i in self._hooks}
        owned: list[tuple[Counted, list[int]]] = [
            (owner, [i for i in indices if i in thawed and i not in without])
            for owner, indices in every
        ]
        frozen = [param for i, param in params if i not in thawed]
        self._grouping = Grouping(plan, owned, frozen)
        self._owners[:] = [Gathering(-1)] * len(self._left)
        for owner, indices in owned:
            for index in indices:
                self._owners[index] = owner

    def grouped_by(self, plan: Plan | None) -> bool:
        """Is it this plan's buckets that are counted for?"""
        return self._grouping.plan is plan

    def full(self) -> list[Counted]:
        """Return what has got all its gradients."""
        return [owner for owner, indices in self._grouping.owned if indices and not owner.missing]

    def first(self) -> Counted:
        """Return the first bucket, or what all gradients gather in."""
        return self._grouping.owned[0][0]

    def thawed(self) -> bool:
        """Does anything that was frozen when it was planned require gradients now?"""
        return any(param.requires_grad for param in self._grouping.frozen)

    def begin(self, keep: bool = False) -> int:
        """Wait for all gradients of a cycle; return how many buckets wait for something.

        `keep`: those that have come count.
        """
        if not keep:
            self._left[:] = [self.passes] * len(self._left)
            self.order.clear()
        owned = self._grouping.owned
        for owner, indices in owned:
            owner.missing = sum(self._left[i] > 0 for i in indices) if keep else len(indices)
        return sum(bool(indices) for _, indices in owned)

    def spend(self) -> None:
        """Take whatever fires now for a gradient too many."""
        self._left[:] = [0] * len(self._left)

    def begun(self) -> bool:
        """Has any gradient come?"""
        return self._left != [self.passes] * len(self._left)

    def any_complete(self) -> bool:
        """Has any parameter got all its gradients?"""
        return 0 in self._left

    def _counter(self, index: int) -> Fired:
        """Make the hook of one parameter. It runs for every gradient of every step."""
        left, owners, came = self._left, self._owners, self.order.append
        full, extra = self._calls

        def fired(param: torch.Tensor) -> None:
            left[index] = more = left[index] - 1
            if more == 0:
                came(index)
                owner = owners[index]
                owner.missing -= 1
                if not owner.missing:
                    full(owner)
            elif more < 0:
                extra(index, param, fired)

        return fired

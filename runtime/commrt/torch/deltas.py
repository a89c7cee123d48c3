"""Lets every rank step by itself and combines what the steps changed, by Adasum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from commrt.errors import ArgumentError, CommError
from commrt.torch.delta_buckets import DeltaBucket
from commrt.torch.fleet import Fleet


class DeltaReducer:
    """Reduces one optimizer's steps. Gradients stay what they are on each rank.

    Maleki et al. 2020, arXiv:2006.02924. Thread safety: one thread at a time.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> str:
        """Say in how many buckets changes are reduced, and why."""
        return self._fleet.describe()

    def active(self) -> bool:
        """Is there anybody to reduce with? Raises InitError if there is no runtime."""
        self._fleet.attach()
        return not self._fleet.alone()

    def step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None, skip: bool
    ) -> Any:
        """Step, combine the changes. If that fails the weights are what they were."""
        if skip:
            raise ArgumentError("op=Adasum reduces what step() changes: it can't be skipped")
        self._plan()
        buckets = self._buckets()
        for bucket in buckets:
            bucket.mark()
        result = optimizer.step() if closure is None else optimizer.step(closure)
        try:
            self._fleet.settle()
        except CommError:
            for bucket in buckets:
                bucket.take_back()
            raise
        self._fleet.adopt()
        self._fleet.reset()
        return result

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced."""

    def finish_what_is_in_flight(self) -> None:
        """Do nothing: nothing is between steps."""

    def drop(self) -> None:
        """Do nothing: nothing is between steps."""

    def take_in(self) -> None:
        """Do nothing: what parameters there are is seen at the step."""

    def set_passes(self, passes: int) -> None:
        """Do nothing: gradients add up until the step."""

    def pause(self) -> None:
        """Do nothing: gradients are not reduced."""

    def resume(self) -> None:
        """Do nothing: gradients are not reduced."""

    def close(self) -> None:
        """Watch the parameters no longer."""
        self._fleet.table.close()

    def _plan(self) -> None:
        fleet = self._fleet
        text = fleet.table.replaced()
        if text is not None:
            fleet.fail(text, over=False)
            raise ArgumentError(text)
        news = fleet.news()
        if news is not None:
            try:
                fleet.draft(news)
            except CommError as exc:
                fleet.fail(str(exc), over=False)
                raise
            fleet.confirm()

    def _buckets(self) -> list[DeltaBucket]:
        plan = self._fleet.plan
        return [b for b in (plan.buckets if plan else ()) if isinstance(b, DeltaBucket)]

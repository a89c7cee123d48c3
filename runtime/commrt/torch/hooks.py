"""Launches buckets while backward runs, waits for them at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd import Variable

from commrt.api import is_initialized
from commrt.errors import ArgumentError, CommError
from commrt.torch.buckets import Bucket
from commrt.torch.counts import Counted, Counts, Fired
from commrt.torch.fleet import Fleet
from commrt.torch.patience import Patience
from commrt.torch.registry import registry


@dataclass(slots=True)
class Cycle:
    """How far the gradients of one step have come.

    `unfilled`: how many buckets still wait for gradients. `opened`: one was full. `held`: nothing
    is launched before the end. `synced`: all are reduced.
    """

    unfilled: int = 0
    opened: bool = False
    held: bool = False
    synced: bool = False


class Reducer:
    """Reduces one optimizer's gradients. Thread safety: one thread at a time.

    A cycle starts with the first gradient after `reset`, and ends with the next `reset`.
    """

    def __init__(self, fleet: Fleet, passes: int) -> None:
        self._fleet = fleet
        self._cycle = Cycle()
        self._patience = Patience()
        self._paused = 0
        self._counts = Counts(fleet.table, passes, self._full, self._extra)
        self._counts.arm()
        self._settle_in()

    def describe(self) -> str:
        """Say in how many buckets gradients are reduced, and why."""
        return self._fleet.describe()

    def active(self) -> bool:
        """Is there anybody to reduce with? Raises InitError if there is no runtime."""
        if self._fleet.attach():
            self._settle_in(keep=True)
        return not self._fleet.alone()

    def step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None, skip: bool
    ) -> Any:
        """Reduce what is not reduced yet, unless it is to be skipped; let the optimizer step."""
        result: Any
        if closure is not None:
            result = optimizer.step(self._reducing(closure))
        else:
            self.drop() if skip else self.synchronize()
            result = optimizer.step()
        self.reset()
        return result

    def synchronize(self) -> None:
        """Reduce what is not reduced yet and set every `.grad`. Blocks.

        If any bucket fails no `.grad` is set, nothing is in flight, and a new cycle begins.
        """
        if self._cycle.synced:
            return
        changed = self._patience.changed()
        if changed is not None:
            self._fail(
                f"the gradient of parameter {changed!r} was changed between backward() and its "
                "reduction; call synchronize() first"
            )
        self._complete()
        self._fleet.adopt()
        self._cycle.synced = True
        self._counts.spend()

    def finish_what_is_in_flight(self) -> None:
        """Synchronize if a backward has ended that left parameters out."""
        cycle, in_backward = self._cycle, torch._C._current_graph_task_id() != -1
        if cycle.synced or in_backward or not is_initialized():
            return
        if (cycle.opened or self._counts.any_complete()) and self.active():
            self.synchronize()

    def drop(self) -> None:
        """Forget this cycle's gradients. Blocks until what was begun has ended on every rank."""
        if self._under_way():
            self._complete()
        self.reset()

    def reset(self) -> None:
        """Begin a new cycle. Nothing may be in flight."""
        fleet = self._fleet
        fleet.reset()
        self._patience.changed()
        counts, plan = self._counts, fleet.plan
        if self._paused:
            pass  # `resume` arms and groups
        elif fleet.grown():
            counts.arm()
            counts.group(None)
        elif self._stale():
            counts.arm()
            counts.group(plan)  # some may be frozen or unfrozen now
        self._cycle = Cycle(self._counts.begin())

    def _stale(self) -> bool:
        """Is it possible that not what is counted for gets gradients?"""
        cycle, counts = self._cycle, self._counts
        left_out = cycle.opened and cycle.unfilled > 0
        planned = counts.grouped_by(self._fleet.plan)
        return cycle.held or left_out or counts.thawed() or not planned

    def take_in(self) -> None:
        """Count the gradients of parameters that have come to the optimizer."""
        if not self._under_way() and not self._cycle.synced:
            self.reset()

    def set_passes(self, passes: int) -> None:
        """Launch after this many gradients of a parameter. Raises ArgumentError within a cycle."""
        if self._under_way():
            raise ArgumentError(
                "set_backward_passes_per_step was called after a backward pass; call it after "
                "step() or zero_grad()"
            )
        self._counts.passes = passes
        if not self._cycle.synced:
            self.reset()

    def pause(self) -> None:
        """Count no gradients until `resume`. Raises ArgumentError within a cycle."""
        if not self._paused and (self._under_way() or self._cycle.synced):
            raise ArgumentError(
                "no_sync() was entered after a backward pass outside it; enter it after step() or "
                "zero_grad()"
            )
        self._paused += 1
        self._counts.disarm()

    def resume(self) -> None:
        """Begin a new cycle; what was added up meanwhile belongs to it."""
        self._paused -= 1
        if not self._paused:
            self._settle_in()
            self.reset()

    def close(self) -> None:
        """Take the hooks away."""
        self._counts.disarm()
        self._fleet.table.close()

    def _settle_in(self, keep: bool = False) -> None:
        """Wait for the gradients of a cycle that has not been planned yet.

        `keep`: those that have come count, unless they are of an earlier runtime.
        """
        if is_initialized() and self._fleet.alone():
            self._counts.disarm()
        else:
            self._counts.arm()
        self._counts.group(None)
        self._cycle = Cycle(self._counts.begin(keep and not self._cycle.opened))

    def _full(self, counted: Counted) -> None:
        full = [counted]
        if not self._cycle.opened:
            if not is_initialized():
                return
            if self._fleet.attach():
                self._settle_in(keep=True)
                if self._fleet.alone() or self._counts.first().missing:
                    return
            if self._open():
                full = self._counts.full()
            Variable._execution_engine.queue_callback(self._backward_ends)
        for bucket in full:
            self._launch(cast(Bucket, bucket))

    def _launch(self, bucket: Bucket) -> None:
        cycle = self._cycle
        if not cycle.held:
            try:
                self._fleet.launch(bucket)
            except CommError as exc:  # peers wait for this bucket
                self._fail(str(exc), exc)
        cycle.unfilled -= 1
        if not cycle.unfilled:
            Variable._execution_engine.queue_callback(self._backward_ends)

    def _open(self) -> bool:
        """Look, before the first launch of a cycle, at what has happened since the last one.

        Are there other buckets now?
        """
        cycle, counts, fleet = self._cycle, self._counts, self._fleet
        text = fleet.table.replaced()
        if text is not None:
            self._fail(text)
        cycle.opened = True
        news = fleet.news()
        if news is None:
            cycle.held = counts.thawed()
            if cycle.held:
                counts.arm()
            return False
        try:
            fleet.draft(news)
        except CommError as exc:
            self._fail(str(exc), exc)
        fresh = counts.arm()
        cycle.held = bool(fresh)  # they may come later, or have come before they were counted
        counts.group(fleet.current(), without=fresh)
        cycle.unfilled = counts.begin(keep=True)
        return True

    def _extra(self, index: int, param: torch.Tensor, fired: Fired) -> None:
        if not is_initialized():
            return
        if self._fleet.attach():
            self._settle_in()
            fired(param)
            return
        if self._cycle.synced and not self._fleet.unspent():
            # The reduced gradients are gone: somebody has zeroed the model, not the optimizer.
            self.reset()
            fired(param)
            return
        self._fail(
            f"parameter {self._fleet.table.named[index][0]!r} got one more gradient before step() "
            f"or zero_grad() than backward_passes_per_step={self._counts.passes} allows; give "
            "DistributedOptimizer the number of backward passes whose gradients you add up"
        )

    def _fail(self, text: str, cause: CommError | None = None) -> None:
        self._fleet.fail(text, self._cycle.synced)
        self.reset()
        raise cause or ArgumentError(text)

    def _backward_ends(self) -> None:
        cycle, fleet = self._cycle, self._fleet
        if not cycle.opened or cycle.synced:
            return
        at_once = cycle.held or not registry.several()
        if not cycle.unfilled and (at_once or fleet.wait(self._patience, self._counts.order)):
            self.synchronize()
        else:  # what is on its way must stay as it is until step() waits for it
            self._patience.leave(fleet.launched())

    def _under_way(self) -> bool:
        return not self._cycle.synced and (self._cycle.opened or self._counts.begun())

    def _complete(self) -> None:
        """Plan if need be, reduce everything. Raises once nothing is in flight any more."""
        if not self._cycle.opened:
            self._open()
        try:
            self._fleet.settle(self._counts.order)
        except CommError:
            self.reset()
            raise

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return reduced

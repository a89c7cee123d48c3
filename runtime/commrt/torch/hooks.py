"""Counts gradients while backward runs, submits full buckets, waits for them at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from commrt.api import session
from commrt.errors import ArgumentError, CommError
from commrt.process_sets import ProcessSet
from commrt.torch.buckets import Bucket


class Reducer:
    """Reduces one optimizer's gradients. Thread safety: one thread at a time.

    A cycle starts with the first gradient after `reset`. Every rank uses every bucket once in a
    cycle, so names match up, whatever parameters its graph had and whatever errors it met.
    """

    def __init__(self, buckets: Sequence[Bucket], passes: int, process_set: ProcessSet) -> None:
        self._passes = passes
        self._process_set = process_set
        self._buckets: list[Bucket] = []
        self._left: list[int] = []
        self._unlaunched = 0
        self._synced = False
        self._hooks: list[RemovableHandle] = []
        self._known: set[int] = set()
        self.extend(buckets)

    def extend(self, buckets: Sequence[Bucket]) -> None:
        """Reduce the gradients of these buckets too."""
        for bucket in buckets:
            for position, place in enumerate(bucket.places):
                hook = self._counter(bucket, len(self._left), position)
                register = place.param.register_post_accumulate_grad_hook
                self._hooks.append(register(hook))  # type: ignore[no-untyped-call]
                self._known.add(id(place.param))
                self._left.append(0 if self._synced else self._passes)
        self._buckets += buckets
        self._unlaunched += len(buckets)

    def buckets(self) -> int:
        """Return their number."""
        return len(self._buckets)

    def synchronize(self) -> None:
        """Reduce what is not reduced yet and set every `.grad`. Blocks.

        If any bucket fails no `.grad` is set, nothing is in flight, and a new cycle begins.
        """
        if self._synced:
            return
        absents = self._settle()
        for bucket, absent in zip(self._buckets, absents, strict=True):
            bucket.adopt(absent)
        self._synced = True
        self._left[:] = [0] * len(self._left)  # whatever fires now fires again

    def finish_what_is_in_flight(self) -> None:
        """Synchronize if a backward has ended with some buckets submitted and others not."""
        in_backward = torch._C._current_graph_task_id() != -1
        if (
            not in_backward
            and not self._synced
            and any(b.handle is not None for b in self._buckets)
        ):
            self.synchronize()

    def refuse_strangers(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ArgumentError for a gradient that no hook of ours has seen: ranks would drift."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None and id(param) not in self._known:
                    raise ArgumentError(
                        "a parameter that did not require gradients when the optimizer was wrapped "
                        f"(shape {tuple(param.shape)}) has one now, which is not reduced; unfreeze "
                        "before wrapping, or wrap again"
                    )

    def drop(self) -> None:
        """Forget this cycle's gradients. Blocks until what was begun has ended on every rank."""
        if self._begun():
            self._settle()
        self.reset()

    def reset(self) -> None:
        """Begin a new cycle. Nothing may be in flight."""
        for bucket in self._buckets:
            bucket.reset()
        self._left[:] = [self._passes] * len(self._left)
        self._unlaunched = len(self._buckets)
        self._synced = False

    def set_passes(self, passes: int) -> None:
        """Launch after this many gradients of a parameter. Raises ArgumentError within a cycle."""
        if self._begun():
            raise ArgumentError(
                "set_backward_passes_per_step was called after a backward pass; call it after "
                "step() or zero_grad()"
            )
        self._passes = passes
        if not self._synced:
            self.reset()

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _counter(self, bucket: Bucket, index: int, position: int) -> Callable[[torch.Tensor], None]:
        """Make the hook of one parameter. It runs for every gradient of every step."""
        left = self._left

        def fired(param: torch.Tensor) -> None:
            left[index] = more = left[index] - 1
            if more == 0:
                bucket.missing -= 1
                if not bucket.missing:
                    self._full(bucket)
            elif more < 0:
                self._fired_again(bucket, position, param, fired)

        return fired

    def _full(self, bucket: Bucket) -> None:
        try:
            bucket.launch(self._process_set)
        except ArgumentError as exc:  # peers wait for this bucket
            self._fail(str(exc))
            raise
        self._unlaunched -= 1
        if not self._unlaunched:
            Variable._execution_engine.queue_callback(self._backward_ends)

    def _fired_again(
        self,
        bucket: Bucket,
        position: int,
        param: torch.Tensor,
        fired: Callable[[torch.Tensor], None],
    ) -> None:
        place = bucket.places[position]
        if self._synced and param.grad is not place.view:
            # The reduced gradient is gone: somebody has zeroed the model, not the optimizer.
            self.reset()
            fired(param)
            return
        text = (
            f"parameter {place.name!r} got one more gradient before step() or zero_grad() than "
            f"backward_passes_per_step={self._passes} allows; give DistributedOptimizer the "
            "number of backward passes whose gradients you add up"
        )
        self._fail(text)
        raise ArgumentError(text)

    def _fail(self, text: str) -> None:
        """End the cycle with an error on every rank: what is not submitted fails everywhere.

        If all ranks have submitted all, the cycle has gone well: the others' next one fails.
        """
        self._report([bucket for bucket in self._buckets if bucket.handle is None], text)
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        failed = [handle for handle in handles if handle.exception() is not None]
        if len(handles) == len(self._buckets) and not failed:
            self._report(self._buckets, text)
        self.reset()

    def _report(self, buckets: Sequence[Bucket], text: str) -> None:
        for bucket in buckets:
            session().runtime.report(self._process_set.id(), bucket.name, text)

    def _backward_ends(self) -> None:
        if not self._unlaunched:
            self.synchronize()

    def _begun(self) -> bool:
        if self._synced:
            return False
        return (
            self._left != [self._passes] * len(self._left) or
            any(bucket.handle is not None for bucket in self._buckets)
        )  # fmt: skip

    def _settle(self) -> list[tuple[int, ...]]:
        """Submit the rest, wait for all; return the positions that are absent everywhere.

        Raises the first error once nothing is in flight any more.
        """
        errors: list[BaseException] = []
        for bucket in self._buckets:
            if bucket.handle is None:
                try:
                    bucket.launch(self._process_set)
                except CommError as exc:
                    errors.append(exc)
                    if isinstance(exc, ArgumentError):
                        self._report([bucket], str(exc))
        handles = [bucket.handle for bucket in self._buckets if bucket.handle is not None]
        ended = [handle.exception() for handle in handles]
        errors += [error for error in ended if error is not None]
        if errors:
            self.reset()
            raise errors[0]
        return [handle.wait() for handle in handles]

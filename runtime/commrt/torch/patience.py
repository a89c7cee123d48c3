"""Waits at the end of backward(), unless ranks would wait for one another for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from commrt.engine.handle import Handle
from commrt.torch.buckets import Way
from commrt.torch.naming import Named

log = logging.getLogger("commrt.torch")

_NAME = "optimizers.waiting"
_LOOK = 0.05


class Patience:
    """For processes with several optimizers: ranks may call their backward() in any order.

    A rank that has waited for long tells the others for which optimizer. If all have told, and
    not the same, waiting is of no use: the gradients are left to `synchronize()` or `step()`, and
    whoever changes them before is noticed.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._given_up = False
        self._left: list[tuple[str, torch.Tensor, torch.Tensor, int]] = []

    def wait(self, handles: Sequence[Handle], number: int, way: Way) -> bool:
        """Wait until all have ended, or one of them in vain; False if ranks wait for one another.

        `number`: for whom.
        """
        if self._given_up:
            return False
        for handle in handles:
            if not self._ends(handle, number, way):
                break
            if handle.exception() is not None:
                return True  # the rest may never meet anybody
        else:
            return True
        self._given_up = True
        log.warning(
            "the ranks call backward() for their optimizers in different orders: from now on "
            "optimizer.%d reduces its gradients in step() or synchronize(), not at the end of "
            "backward(); call synchronize() before you change or read them", number,
        )  # fmt: skip
        return False

    def leave(self, named: Iterable[Named]) -> None:
        """Remember gradients as they are, before they are reduced."""
        self._left = [
            (name, param, grad, grad._version)
            for name, param in named if (grad := param.grad) is not None
        ]  # fmt: skip

    def changed(self) -> str | None:
        """Name a parameter whose gradient has been changed since, or is another one."""
        left, self._left = self._left, []
        return next(
            (
                name for name, param, grad, version in left
                if param.grad is not grad or grad._version != version
            ),
            None,
        )  # fmt: skip

    def _ends(self, handle: Handle, number: int, way: Way) -> bool:
        if _within(handle, self._seconds):
            return True
        while True:
            mine = np.array([number])
            question = way.session.allgather_async(mine, _NAME, way.process_set)
            while not question.done():
                if _within(handle, _LOOK):
                    self._withdraw(question, way)
                    return True
            if question.exception() is None:
                break
            # That was the end of an older question of another rank.
        if len(set(question.wait().tolist())) > 1:
            return False
        handle.exception()
        return True

    def _withdraw(self, question: Handle, way: Way) -> None:
        way.session.runtime.report(way.process_set.id(), _NAME, "a rank waits no longer")
        question.exception()
        self._seconds = min(2 * self._seconds, 60.0)  # it was merely slow: ask less


def _within(handle: Handle, seconds: float) -> bool:
    try:
        handle.exception(seconds)
    except TimeoutError:
        return False
    return True

"""One optimizer's parameters, and how they change behind our back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from commrt.torch.naming import Named, name_added

_dtype = attrgetter("dtype")


class Layout:
    """How parameters lay when gradients were planned: what must not change while they do so."""

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        self._params = list(params)
        self._shapes = [param.shape for param in params]
        self._then = self._now()

    def change(self) -> tuple[int, str] | None:
        """Say which parameter is laid out otherwise now, and how."""
        now = self._now()
        if now == self._then:
            return None
        pairs = zip(zip(*self._then, strict=True), zip(*now, strict=True), strict=True)
        index, old, new = next((i, *pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        before, after = self._shapes[index], self._params[index].shape
        return index, f"{_said(new, after)} now, and was {_said(old, before)}"

    def _now(self) -> tuple[Sequence[object], ...]:
        """Where elements are dense, strides and their number give the shape, which is dearer."""
        params = self._params
        return (
            list(map(_dtype, params)), list(map(torch.Tensor.numel, params)),
            list(map(torch.Tensor.stride, params)),
        )  # fmt: skip


def _said(found: tuple[object, ...], shape: torch.Size) -> str:
    dtype, _, strides = found
    return f"{dtype} {tuple(shape)} of strides {strides}"


class Table:
    """Parameters with their names, numbered in the order in which they came."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Sequence[Named]) -> None:
        self.optimizer = optimizer
        self.named = list(named)
        self._known = self._groups()
        self._replacements = Replacements(named)

    def __len__(self) -> int:
        return len(self.named)

    def param(self, index: int) -> torch.Tensor:
        """Return a parameter."""
        return self.named[index][1]

    def extend(self) -> bool:
        """Take in parameters that have come to the optimizer since; have any?"""
        if self._unchanged():
            return False
        self._known = self._groups()
        added = name_added(self.optimizer, self.named)
        self.named += added
        self._replacements.watch(added)
        return bool(added)

    def replaced(self) -> str | None:
        """Say which parameter of the model is not the optimizer's any more."""
        if not self._replacements.found:
            return None
        ours = {id(param) for group in self.optimizer.param_groups for param in group["params"]}
        for old, (name, new) in self._replacements.found.items():
            if old in ours and id(new) not in ours:
                return (
                    f"parameter {name!r} of the model is another tensor now than the one that the "
                    "optimizer has, which gets no gradients any more "
                    "(load_state_dict(assign=True) does this); make the optimizer and wrap it again"
                )
        return None

    def close(self) -> None:
        """Watch no longer."""
        self._replacements.close()

    def _groups(self) -> list[list[torch.Tensor]]:
        return [list(group["params"]) for group in self.optimizer.param_groups]

    def _unchanged(self) -> bool:
        """Not only as many: a parameter may have taken another's place."""
        groups, known = self.optimizer.param_groups, self._known
        return list(map(len, known)) == [len(group["params"]) for group in groups] and all(
            all(map(is_, group["params"], before))
            for group, before in zip(groups, known, strict=True)
        )


class Replacements:
    """Sees a module get another tensor in the place of a known parameter.

    Nothing else tells: hooks of the old one never run again, as if it were unused.
    """

    def __init__(self, named: Iterable[Named]) -> None:
        self.found: dict[int, tuple[str, torch.Tensor]] = {}
        self._known: dict[int, str] = {}
        self.watch(named)
        known, found = self._known, self.found  # not self: torch keeps the hook

        def registered(module: Any, name: str, new: Any) -> None:
            old = module._parameters.get(name)
            if id(old) in known and new is not None and new is not old:
                found[id(old)] = known[id(old)], new
            found.pop(id(new), None)

        self._hook = register_module_parameter_registration_hook(registered)

    def watch(self, named: Iterable[Named]) -> None:
        """Know these too."""
        self._known.update((id(param), name) for name, param in named)

    def close(self) -> None:
        """Take the hook away."""
        self._hook.remove()

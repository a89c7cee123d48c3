"""Makes a rank's card, and looks at everyone's."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from commrt.errors import ArgumentError
from commrt.torch.buckets import lay
from commrt.torch.cards import Card, Entry
from commrt.torch.digests import digest, first_difference
from commrt.torch.options import Options
from commrt.torch.plan import Plan
from commrt.torch.table import Table
from commrt.types import TensorSpec

log = logging.getLogger("commrt.torch")


def make_card(table: Table, options: Options, plan: Plan | None, trouble: str) -> Card:
    """Describe the optimizer here. Raises ArgumentError for what can't be reduced."""
    groups = options.group_of()
    sparse = frozenset[str]() if plan is None else plan.sparse
    entries = tuple(
        _entry(
            name, param, groups.get(id(param), -1),
            not options.densifies() and (name in sparse or _is_sparse(param.grad)), plan is None,
        )
        for name, param in table.named
    )  # fmt: skip
    return Card(entries, options.terms(), trouble)


def warn_of_difference(cards: Mapping[int, Card], rank: int) -> None:
    """Let the lowest rank warn if the parameters are not the same everywhere."""
    digests = {rank: {e.name: e.digest for e in card.entries} for rank, card in cards.items()}
    text = first_difference(digests)
    if text is not None and rank == min(cards):
        log.warning(
            "the ranks begin with different parameters: %s. Ranks that start apart stay apart; "
            "call broadcast_parameters() before the first step", text,
        )  # fmt: skip


def _entry(name: str, param: torch.Tensor, group: int, sparse: bool, digested: bool) -> Entry:
    """Describe a parameter; a frozen one may be of any kind."""
    try:
        spec = lay(param, name).spec
        value = digest(param) if digested else 0
    except ArgumentError:
        if param.requires_grad:
            raise
        spec, value = TensorSpec(str(param.dtype), tuple(param.shape)), 0
    return Entry(name, spec, group, param.requires_grad, sparse, value)


def _is_sparse(grad: torch.Tensor | None) -> bool:
    return grad is not None and grad.layout is not torch.strided

"""Which gradients share a bucket, made of what all ranks have told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from commrt.core.bucketing import BucketPolicy
from commrt.engine.arena import Allocate
from commrt.torch.buckets import (
    Bucket,
    DenseBucket,
    Member,
    Row,
    cut_up,
    lay_out,
    placeholder,
)
from commrt.torch.cards import Entry
from commrt.torch.delta_buckets import DeltaBucket
from commrt.torch.odd_buckets import CompressedBucket, SparseBucket
from commrt.torch.options import Options
from commrt.torch.table import Layout
from commrt.types import ReduceOp


@dataclass(frozen=True, slots=True)
class Plan:
    """Buckets, their numbers in order; and what it was made of.

    `layout` is that of the parameters of `members`. `resting` are parameters that are
    frozen on all ranks. `sparse` are names. `rows` are where dense gradients lie.
    """

    buckets: tuple[Bucket, ...]
    members: tuple[Member, ...]
    layout: Layout
    resting: tuple[Member, ...]
    sparse: frozenset[str]
    rows: tuple[Row, ...]

    def thawed(self) -> str | None:
        """Say which parameter requires gradients now and did nowhere."""
        for member in self.resting:
            if member.param.requires_grad:
                return f"parameter {member.name!r} requires gradients now"
        return None

    def change(self) -> str | None:
        """Say which parameter is not laid out as it was planned."""
        found = self.layout.change()
        if found is None:
            return None
        index, text = found
        return f"parameter {self.members[index].name!r} is {text}"


def make_plan(
    entries: Sequence[Entry], params: Mapping[str, tuple[int, torch.Tensor]], options: Options,
    policy: BucketPolicy, allocate: Allocate,
) -> Plan:  # fmt: skip
    """Plan for what is trainable on any rank. `params`: numbers and tensors by name."""
    found = [(entry, Member(params[entry.name][0], entry.name, params[entry.name][1], entry.group))
             for entry in entries]  # fmt: skip
    members = tuple(member for entry, member in found if entry.trainable)
    sparse = frozenset(entry.name for entry in entries if entry.sparse)
    dense = [] if options.codec() is None else [m for m in members if m.name not in sparse]
    rows = tuple(lay_out(split(dense, options.groups)[::-1], allocate))
    return Plan(
        _buckets(members, sparse, rows, options, policy),
        members,
        Layout([member.param for member in members]),
        tuple(member for entry, member in found if not entry.trainable),
        sparse,
        rows,
    )


def recut(plan: Plan, options: Options, policy: BucketPolicy) -> Plan:
    """Return the plan with other buckets of the same memory."""
    return replace(plan, buckets=_buckets(plan.members, plan.sparse, plan.rows, options, policy))


def reordered(
    plan: Plan, order: Sequence[int], options: Options, policy: BucketPolicy, allocate: Allocate
) -> Plan:
    """Return the plan with gradients in this order of the places that they have, all rows' in one.

    Those that are not in it come last, as they were.
    """
    was = [place.member for row in plan.rows for place in row.places]
    ranked = [was[place] for place in dict.fromkeys([*order, *range(len(was))])]
    if ranked == was:
        return recut(plan, options, policy)
    return recut(replace(plan, rows=tuple(lay_out(ranked, allocate))), options, policy)


def _buckets(
    members: Sequence[Member], sparse: frozenset[str], rows: Sequence[Row], options: Options,
    policy: BucketPolicy,
) -> tuple[Bucket, ...]:  # fmt: skip
    like = options.signature()
    if not members:
        return (placeholder(like),)
    buckets: list[Bucket] = []
    if options.codec() is None:
        alone = [m for m in reversed(members) if m.name not in sparse]
        buckets += [CompressedBucket(i, m, like, options.compression) for i, m in enumerate(alone)]
    else:
        kind = DeltaBucket if options.op is ReduceOp.ADASUM else DenseBucket
        buckets += cut_up(rows, like, policy, options.sparse_as_dense, kind)
    size = options.process_set().size()
    found = (member for member in members if member.name in sparse)
    buckets += [SparseBucket(n, m, like, size) for n, m in enumerate(found, start=len(buckets))]
    return tuple(buckets)


def split(members: Sequence[Member], groups: object) -> list[Member]:
    """Put members into `groups` groups of about one length, if that is a number above 0."""
    if not isinstance(groups, int) or not groups:
        return list(members)
    n = len(members)
    return [Member(m.index, m.name, m.param, i * groups // n) for i, m in enumerate(members)]

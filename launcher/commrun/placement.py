"""Where the ranks go."""

from __future__ import annotations

from collections.abc import Sequence

from commrun.hosts import Host
from commrun.spec import UsageError


def rank_count(np: int | None, hosts: Sequence[Host]) -> int:
    """Return the number of ranks asked for. Raises UsageError if nothing says it."""
    if np is None:
        if not hosts:
            raise UsageError("say how many ranks: -np N, or -H HOST:SLOTS,...")
        return sum(host.slots for host in hosts)
    if np < 1:
        raise UsageError(f"-np {np}: at least one rank is needed")
    return np


def place(np: int, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Give each host its number of ranks, in rank order: slots first, then the rest evenly.

    Hosts that get none are left out.
    """
    counts = []
    left = np
    for host in hosts:
        counts.append(min(host.slots, left))
        left -= counts[-1]
    each, extra = divmod(left, len(hosts))
    counts = [n + each + (i < extra) for i, n in enumerate(counts)]
    return tuple(Host(host.name, n) for host, n in zip(hosts, counts, strict=True) if n)

"""What every rank tells every other before there is a link, and what follows from it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

import msgspec

from commrt.errors import InitError
from commrt.types import Topology


class Card(msgspec.Struct, array_like=True, frozen=True):
    """One rank's introduction. `machine` and `pid_space` prove what a host name cannot.

    `generation` counts this process's calls of `init()`; the ranks go by the highest.
    """

    rank: int
    version: str
    host: str
    machine: str
    pid_space: str
    net_space: str
    pid: int
    generation: int
    settings: dict[str, str]
    sets: tuple[tuple[int, ...], ...]
    public_key: bytes = b""
    addresses: tuple[str, ...] = ()


def introduce(
    rank: int,
    version: str,
    generation: int,
    settings: Mapping[str, str],
    sets: Sequence[Sequence[int]],
    public_key: bytes,
    addresses: Sequence[str] = (),
) -> Card:
    """Make this process's card."""
    return Card(
        rank,
        version,
        socket.gethostname(),
        _read("/proc/sys/kernel/random/boot_id"),
        _space("pid"),
        _space("net"),
        os.getpid(),
        generation,
        dict(settings),
        tuple(tuple(s) for s in sets),
        public_key,
        tuple(addresses),
    )


def compare(cards: Sequence[Card]) -> None:
    """Raise InitError, with the same text on all ranks, where cards must agree and do not."""
    first = cards[0]
    for card in cards[1:]:
        if card.version != first.version:
            raise InitError(
                f"commrt versions differ: rank 0 on {first.host} has {first.version}, "
                f"rank {card.rank} on {card.host} has {card.version}"
            )
    for key in sorted({key for card in cards for key in card.settings}):
        values: dict[str, list[int]] = {}
        for card in cards:
            values.setdefault(card.settings.get(key, "not known"), []).append(card.rank)
        if len(values) > 1:
            said = "; ".join(
                f"{value} on rank{'s' * (len(r) > 1)} {', '.join(map(str, r[:8]))}"
                for value, r in values.items()
            )
            raise InitError(f"{key} differs between ranks: {said}. Set it alike on all ranks")
    for card in cards[1:]:
        if card.sets != first.sets:
            raise InitError(
                f"process_sets differ between ranks: rank 0 gave {list(first.sets)}, "
                f"rank {card.rank} gave {list(card.sets)}"
            )


def topology(rank: int, cards: Sequence[Card]) -> Topology:
    """Work out local and cross ranks: local means one machine and one network, not one name."""
    homes = [_home(card) for card in cards]
    order = list(dict.fromkeys(homes))
    local = [r for r, home in enumerate(homes) if home == homes[rank]]
    local_rank = local.index(rank)
    members = {home: [r for r, h in enumerate(homes) if h == home] for home in order}
    cross = [home for home in order if len(members[home]) > local_rank]
    return Topology(
        rank,
        len(cards),
        local_rank,
        len(local),
        cross.index(homes[rank]),
        len(cross),
        tuple(card.host for card in cards),
    )


def ranks_by_host(cards: Sequence[Card]) -> list[tuple[int, ...]]:
    """Return the ranks of each host, hosts in the order of their first ranks."""
    hosts: dict[tuple[str, str, str], list[int]] = {}
    for rank, card in enumerate(cards):
        hosts.setdefault(_home(card), []).append(rank)
    return [tuple(ranks) for ranks in hosts.values()]


def same_machine(a: Card, b: Card) -> bool:
    """Can `a` reach `b` over an abstract unix socket?"""
    return (a.machine, a.net_space) == (b.machine, b.net_space)


def same_processes(a: Card, b: Card) -> bool:
    """Does a process id of `b` mean the same process to `a`?"""
    return bool(a.pid_space) and (a.machine, a.pid_space) == (b.machine, b.pid_space)


def _home(card: Card) -> tuple[str, str, str]:
    return card.machine, card.net_space, card.host


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _space(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""

"""Reads `-H a:2,b:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from commrun.spec import UsageError

_HOST = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<slots>[0-9]+))?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1"})


@dataclass(frozen=True, slots=True)
class Host:
    """A host and a number of ranks: those it has room for, or those it gets."""

    name: str
    slots: int


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read `name[:slots],…`, one slot where none is given; slots of a repeated name add up.

    Raises UsageError with the word that is wrong.
    """
    slots: dict[str, int] = {}
    for word in text.split(","):
        match = _HOST.fullmatch(word.strip())
        if match is None:
            raise UsageError(f"-H {text}: {word.strip()!r} is not HOST or HOST:SLOTS")
        count = int(match["slots"] or 1)
        if count < 1:
            raise UsageError(f"-H {text}: {word.strip()!r} has no slots")
        slots[match["name"]] = slots.get(match["name"], 0) + count
    return tuple(Host(name, count) for name, count in slots.items())


def all_local(hosts: Iterable[Host], own_name: str) -> bool:
    """Tell whether every host is this machine. Looks nothing up, so it works offline."""
    own = _LOOPBACK | {own_name, own_name.partition(".")[0]}
    return all(host.name in own for host in hosts)

"""Who is lost, gathered for a moment so that two deaths at once are told together."""

from __future__ import annotations

from collections.abc import Sequence

from commrt.core.member import peer_lost
from commrt.core.wire import COORDINATOR
from commrt.errors import PeerLostError

_WINDOW = 0.2
_PATIENCE = 1.0
"""Seconds that a member gives the coordinator to tell: else its own end may seem a loss there."""


class Losses:
    """Collects losses; ranks that have said goodbye do not count. Pure."""

    def __init__(self, hosts: Sequence[str], coordinates: bool) -> None:
        self._hosts = tuple(hosts)
        self._window = _WINDOW if coordinates else _PATIENCE
        self._why: dict[int, str] = {}
        self._hung_up: set[int] = set()  # of these nothing else is known
        self._left: set[int] = set()
        self._until: float | None = None

    def leave(self, ranks: Sequence[int]) -> None:
        """Note that these ranks have said goodbye."""
        self._left.update(ranks)
        for rank in ranks:
            self._why.pop(rank, None)
        if not self._why:
            self._until = None

    def add(self, rank: int, why: str, now: float, hung_up: bool = False) -> None:
        """Note a loss. What ended a process counts more than that a connection was closed."""
        if rank in self._left:
            return
        if rank not in self._why or rank in self._hung_up:
            self._why[rank] = why
            (self._hung_up.add if hung_up else self._hung_up.discard)(rank)
        until = now + (_WINDOW if rank == COORDINATOR else self._window)
        self._until = until if self._until is None else min(self._until, until)

    def deadline(self) -> float | None:
        """When `due` is next needed."""
        return self._until

    def due(self, now: float) -> tuple[list[int], list[str]] | None:
        """Return ranks and reasons once the moment is over."""
        if self._until is None or now < self._until:
            return None
        self._until = None
        ended = self._why.keys() - self._hung_up
        ranks = sorted(ended or self._why)  # who notices a death ends as well, and hangs up
        return ranks, [self._why[r] for r in ranks]

    def error(self, ranks: Sequence[int], why: Sequence[str]) -> PeerLostError:
        """Return the error for these losses."""
        return peer_lost(ranks, self._hosts, why)

"""Who has come and who is leaving: the coordinator's ledger of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commrt.core.actions import Action, SendControl
from commrt.core.wire import Farewell, Leaving, Left, Message, Welcome


class Goodbye:
    """Counts hellos, lets ranks go, keeps rank 0 until all others have gone. Pure."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here: set[int] = set()
        self._leaving: dict[int, str] = {}
        self._gone: set[int] = set()
        self._asked: dict[int, int] = {}
        self._postponed: dict[int, Leaving] = {}

    def hello(self, rank: int) -> list[Action]:
        """Welcome everyone once the last rank is here."""
        self._here.add(rank)
        return list(self.broadcast(Welcome())) if len(self._here) == self._size else []

    def ask_again(self, rank: int) -> None:
        """Note that a rank has to announce something again."""
        self._asked[rank] = self._asked.get(rank, 0) + 1

    def asks(self, rank: int) -> bool:
        """Has a rank something to announce again?"""
        return self._asked.get(rank, 0) > 0

    def postpone(self, rank: int, message: Leaving) -> bool:
        """Tell whether a rank's goodbye came before something it has to announce again."""
        if self._asked.get(rank):
            self._postponed[rank] = message
            return True
        return False

    def answered(self, rank: int) -> Leaving | None:
        """Note that a rank has announced again; return its goodbye if that waited for it."""
        self._asked[rank] = self._asked.get(rank, 0) - 1
        return None if self._asked[rank] > 0 else self._postponed.pop(rank, None)

    def calm(self) -> bool:
        """Is everyone here, and has nobody anything to announce again?"""
        return not (self._leaving or self._gone or any(self._asked.values()))

    def leave(self, rank: int, why: str) -> str:
        """Note that a rank submits nothing more; return the text that says so."""
        self._leaving.setdefault(rank, why)
        return self.left_among([rank])

    def left_among(self, ranks: Iterable[int]) -> str:
        """Say which of `ranks` have shut down and why, or return ''."""
        if not self._leaving:
            return ""
        return "; ".join(
            f"rank {r}, which has shut down ({self._leaving[r]})"
            for r in ranks
            if r in self._leaving
        )

    def lose(self, ranks: Iterable[int]) -> None:
        """Note that these ranks listen no more."""
        self._gone.update(ranks)

    def farewells(self, busy: set[int]) -> list[Action]:
        """Let every leaving rank go that has nothing open, rank 0 last of all."""
        going = [r for r in self._leaving if r and r not in busy and r not in self._gone]
        actions: list[Action] = []
        if going:
            actions += self.broadcast(Left(tuple(going)))
            self._gone.update(going)
            actions += [SendControl(r, Farewell()) for r in going]
        if 0 in self._leaving and 0 not in self._gone and len(self._gone) == self._size - 1:
            self._gone.add(0)
            actions.append(SendControl(0, Farewell()))
        return actions

    def broadcast(self, message: Message, without: Sequence[int] = ()) -> list[SendControl]:
        """Address every rank that still listens, rank 0 last."""
        ranks = [
            r for r in range(self._size - 1, -1, -1) if r not in self._gone and r not in without
        ]
        return [SendControl(r, message) for r in ranks]

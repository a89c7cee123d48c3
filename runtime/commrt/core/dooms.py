"""Operations that have failed before every member submitted them."""

from __future__ import annotations

from dataclasses import dataclass

from commrt.core.ids import Key


@dataclass(slots=True)
class Doomed:
    """An operation that has failed already and that `waiting` ranks have yet to submit."""

    error: str
    text: str
    waiting: set[int]


class Dooms:
    """Remembers failures for late ranks, several of one key in order. Pure.

    Ranks that know of a failure go on, so a key may fail again before the last one has come.
    """

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Doomed]] = {}

    def add(self, key: Key, error: str, text: str, waiting: set[int]) -> None:
        """Note that `key` fails on the ranks in `waiting` when they submit it."""
        if waiting:
            self._by_key.setdefault(key, []).append(Doomed(error, text, set(waiting)))

    def take(self, key: Key, rank: int) -> Doomed | None:
        """Return why the operation that a rank submits now has failed already, if it has."""
        dooms = self._by_key.get(key, [])
        found = next((doomed for doomed in dooms if rank in doomed.waiting), None)
        if found is not None:
            found.waiting.remove(rank)
            if not found.waiting:
                dooms.remove(found)
            if not dooms:
                del self._by_key[key]
        return found

    def expected(self) -> list[Key]:
        """Return what some rank has yet to submit in vain."""
        return list(self._by_key)

    def release(self, rank: int) -> None:
        """Expect nothing of a rank any more: it has joined."""
        for key, dooms in list(self._by_key.items()):
            for doomed in dooms:
                doomed.waiting.discard(rank)
            self._by_key[key] = [doomed for doomed in dooms if doomed.waiting]
            if not self._by_key[key]:
                del self._by_key[key]

    def forget(self, set_id: int) -> None:
        """Drop the failures of a process set that is no more."""
        for key in [key for key in self._by_key if key[0] == set_id]:
            del self._by_key[key]

"""Where the ranks of a host tell each other how far they have come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from commrt.errors import EngineError
from commrt.kernels import shared
from commrt.transports.base import Channel, Flat, Members
from commrt.transports.segment import Segment

SLOTS = 256
_SLOT = 128  # two cache lines, which processors fetch in pairs
_HEAD = 4096
_STAGES = 1 << 15
_NUMBERS = 1 << 46
_SETS = 64  # whose tables are kept

CONTROL = _HEAD + SLOTS * _SLOT
"""Bytes of one rank's part of the board: a page with the word that says it sleeps, then slots."""

Words = npt.NDArray[np.int64]


def board_nbytes(size: int) -> int:
    """Return what the board of so many ranks takes, from the beginning of the segment on."""
    return _HEAD + size * CONTROL


class Board:
    """The board as one rank sees it. `ranks`: world ranks of this host, in order.

    `bells[i]`: a descriptor that wakes the i-th of them; ours becomes readable. Background thread.
    """

    def __init__(
        self, segment: Segment, ranks: Sequence[int], rank: int, bells: Sequence[int]
    ) -> None:
        self.segment = segment
        self._places = {r: i for i, r in enumerate(ranks)}
        self._bells = list(bells)
        self._me = self._places[rank]
        self._asleep = segment.words(self._part(self._me), 1)
        self._tables = lru_cache(_SETS)(self._make_tables)

    def descriptor(self) -> int:
        """Return what becomes readable when somebody wakes us."""
        return self._bells[self._me]

    def sleep(self, asleep: bool) -> None:
        """Say that we are about to sleep, and look for work once more after that; or woke up."""
        shared.exchange(self._asleep, int(asleep))
        if not asleep:
            try:
                os.eventfd_read(self.descriptor())
            except BlockingIOError:
                pass

    def slot(self, channel: Channel) -> int:
        """Return the number of the slot of an operation."""
        return (4 * channel.number + channel.stage % 4) % SLOTS

    def slots(self, members: Members, number: int) -> Words:
        """Return the addresses of the members' slots of a number."""
        return self._tables(members.ranks)[0] + (_HEAD + number * _SLOT)

    def bells(self, members: Members) -> Words:
        """Return for each member where it says that it sleeps and what wakes it; last a 1."""
        return self._tables(members.ranks)[1]

    def close(self) -> None:
        """Close all descriptors."""
        for fd in self._bells:
            os.close(fd)
        self._bells = []
        self.segment.close()

    def _make_tables(self, ranks: tuple[int, ...]) -> tuple[Words, Words]:
        """Return where the members' parts lie, and their bells."""
        places = [self._places[rank] for rank in ranks]
        parts = [self.segment.base + self._part(place) for place in places]
        flat = [x for p, part in zip(places, parts, strict=True) for x in (part, self._bells[p])]
        return np.array(parts, np.int64), np.array([*flat, 1], np.int64)

    def _part(self, place: int) -> int:
        return _HEAD + place * CONTROL


def key_of(channel: Channel) -> int:
    """Return an operation's key: later ones have larger keys. Raises EngineError."""
    if channel.stage >= _STAGES or channel.number >= _NUMBERS:
        raise EngineError(f"operation {channel} has a number that shared memory can't hold")
    return (channel.number * _STAGES + channel.stage) << 2


class Entry:
    """One operation: everybody's slots, and how far everybody has come. Background thread."""

    def __init__(self, board: Board, members: Members, channel: Channel, spins: int) -> None:
        self.n, self.me = len(members.ranks), members.index
        self.slots = board.slots(members, board.slot(channel))
        self.bells = board.bells(members)
        self._board = board
        self._ranks = members.ranks
        self._key = key_of(channel)
        self.spins = spins

    def describe(self, source: Flat, out: Flat, stage: Flat, filled: int) -> None:
        """Tell where our arrays lie and what we have filled of the stage; a phase comes next."""
        offset = self._board.segment.offset
        where = np.array([offset(source), offset(out), filled, 0, offset(stage)], np.int64)
        shared.describe(int(self.slots[self.me]), where)

    def announce(self, word: int, value: int) -> None:
        """Tell how far we have come."""
        shared.announce(
            self.slots.ctypes.data, self.n, self.me, word, value, self.bells.ctypes.data
        )

    def phase(self, phase: int) -> None:
        """Tell that we have come to a phase."""
        self.announce(shared.STATE, self._key | phase)

    def have(self, phase: int) -> bool:
        """Have all come to a phase? Looks for a while."""
        return self.come(shared.STATE, self._key | phase)

    def come(self, word: int, value: int) -> bool:
        """Have all words come to a value? Looks for a while."""
        address = self.slots.ctypes.data
        return bool(shared.wait(address, self.n, word, value, self.spins) == self.n)

    def gone(self) -> bool:
        """Has everybody done with this operation, in whatever way?"""
        return not self.late_for(shared.DONE)

    def late(self, word: int, value: int) -> tuple[int, ...]:
        """Return the world ranks that have not come so far."""
        low = shared.words(self.slots, word) < value
        return tuple(rank for rank, is_late in zip(self._ranks, low, strict=True) if is_late)

    def late_for(self, phase: int) -> tuple[int, ...]:
        """Return the world ranks that have not come to a phase."""
        return self.late(shared.STATE, self._key | phase)

    def stages(self) -> Words:
        """Return where everybody's stage lies here."""
        offsets: Words = shared.words(self.slots, shared.STAGE)
        return offsets + self._board.segment.base

    def addresses(self, word: int) -> Words | None:
        """Return where an array of each member lies here; None if some array is not shared."""
        offsets = shared.words(self.slots, word)
        return None if (offsets < 0).any() else offsets + self._board.segment.base

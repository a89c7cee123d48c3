"""The transport of ranks that share memory: each joins its share of everybody's arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commrt.kernels import shared
from commrt.kernels.numba_ import recipe
from commrt.kernels.reduction import Reduction
from commrt.transports.base import Channel, Flat, Members
from commrt.transports.board import Board, Entry
from commrt.transports.segment import Pool
from commrt.transports.shared_flows import Broadcast, Exchange, Flow, Gather, Relay, Scatter
from commrt.transports.shared_works import DEPTH, PIECE, Large, Mailbox, Task

SMALL = 64 << 10
"""Bytes of all members' values up to which everybody reads all of them."""

_LOOKS = 4000
"""Times that a slot is looked at before a rank gives up for the moment: some 20 microseconds."""


class Ends:
    """Operations that are over here, whose slots and stages others may still look at."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self._pool = pool
        self._nbytes = nbytes
        self._left: dict[int, tuple[Entry, Flat]] = {}
        self._stages: list[Flat] = []

    def free(self, slot: int) -> bool:
        """May a slot be used?"""
        if slot in self._left and self._left[slot][0].gone():
            self._stages.append(self._left.pop(slot)[1])
        return slot not in self._left

    def stage(self) -> Flat:
        """Return memory for pieces, with any content. Raises OSError."""
        if not self._stages:
            for slot in list(self._left):
                self.free(slot)
        return self._stages.pop() if self._stages else self._pool.take(self._nbytes)

    def leave(self, slot: int, entry: Entry, stage: Flat) -> None:
        """Note that an operation is over here."""
        self._left[slot] = entry, stage


class SharedWork:
    """See `Work`."""

    def __init__(
        self, board: Board, ends: Ends, members: Members, channel: Channel, looks: int,
        arrays: tuple[Flat, Flat], task: Task,
    ) -> None:  # fmt: skip
        self._board, self._ends, self._task = board, ends, task
        self._members, self._channel, self._looks = members, channel, looks
        self._arrays = arrays
        self._entry: Entry | None = None
        self._state = _Progress()

    def progress(self) -> bool:
        """Move on; see `Work`."""
        state = self._state
        if state.done and not state.cancelled:
            return True
        entry = self._entry or self._enter()
        if entry is None:
            return False
        if state.cancelled:
            return entry.have(shared.CANCELLED)
        if not state.entered:
            state.entered = entry.have(shared.POSTED)
        if state.entered and self._task.move(entry):
            state.done = True
            entry.phase(shared.DONE)
        return state.done

    def steps(self) -> int:
        """What the task counts, and that all have entered; see `Work`."""
        return self._task.steps() + self._state.entered

    def cancel(self) -> None:
        """Say so; nobody's memory is touched once all have."""
        state = self._state
        if not state.cancelled and self._entry is not None:
            self._entry.phase(shared.CANCELLED)
        state.cancelled = True

    def waiting_for(self) -> tuple[int, ...]:
        """World ranks whose data is missing now."""
        if self._entry is None or self._state.done:
            return ()
        if self._state.cancelled:
            return self._entry.late_for(shared.CANCELLED)
        if not self._state.entered:
            return self._entry.late_for(shared.POSTED)
        return self._task.waiting_for(self._entry)

    def _enter(self) -> Entry | None:
        slot = self._board.slot(self._channel)
        if not self._ends.free(slot):
            return None
        entry = Entry(self._board, self._members, self._channel, self._looks)
        stage = self._ends.stage()
        cancelled = self._state.cancelled
        entry.describe(*self._arrays, stage, 0 if cancelled else self._task.fill(stage))
        entry.phase(shared.CANCELLED if cancelled else shared.POSTED)
        self._ends.leave(slot, entry, stage)
        self._entry = entry
        return entry


class _Progress:
    """How far a work is."""

    __slots__ = ("cancelled", "done", "entered")

    def __init__(self) -> None:
        self.entered = self.done = self.cancelled = False


class SharedTransport:
    """See `Transport`. All members of a set must be on this host. `spin`: every rank has a core."""

    revocable = True
    wide = True
    swift = True

    def __init__(
        self, board: Board, pool: Pool, spin: bool, small: int = SMALL, piece: int = PIECE
    ) -> None:
        self._board = board
        self._pool = pool
        self._small, self._piece = small, piece
        self._ends = Ends(pool, max(small, DEPTH * piece))
        self._looks = _LOOKS if spin else 1

    def allocate(self, nbytes: int) -> Flat:
        """Return zeros that every rank of the host can see."""
        return self._pool.allocate(nbytes)

    def descriptors(self) -> tuple[int, ...]:
        """Return what becomes readable when others have moved."""
        return (self._board.descriptor(),)

    def sleep(self, asleep: bool) -> bool:
        """Say so; who has moved before they could see it has rung no bell."""
        self._board.sleep(asleep)
        return True

    def arm(self) -> None:
        """Do nothing: bells ring for everybody who said that he sleeps."""

    def allreduce(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        reduction: Reduction,
    ) -> SharedWork:
        """Read all, if that is little; else join one share, and write it to all."""
        how = recipe(reduction, source.dtype)
        offset = self._board.segment.offset
        task: Task
        if source.nbytes * len(members.ranks) <= self._small:
            task = Mailbox(source, out, how)
        else:
            seen = offset(source) >= 0 and offset(out) >= 0
            task = Large(source, out, how, self._piece, seen)
        return self._start(members, channel, source, out, task)

    def reduce_scatter(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        counts: Sequence[int],
        reduction: Reduction,
    ) -> SharedWork:
        """Join one share of everybody's."""
        how = recipe(reduction, source.dtype)
        return self._relay(
            members, channel, Scatter(members, source, out, counts, how, self._piece)
        )

    def allgather(
        self, members: Members, channel: Channel, source: Flat, out: Flat, counts: Sequence[int]
    ) -> SharedWork:
        """Read everybody's."""
        return self._relay(members, channel, Gather(source, out, counts, self._piece))

    def alltoallv(
        self,
        members: Members,
        channel: Channel,
        source: Flat,
        out: Flat,
        sent: Sequence[int],
        received: Sequence[int],
    ) -> SharedWork:
        """Read from everybody what is ours."""
        return self._relay(
            members, channel, Exchange(members, source, out, sent, received, self._piece)
        )

    def broadcast(
        self, members: Members, channel: Channel, source: Flat, out: Flat, root: int
    ) -> SharedWork:
        """Read what the root has."""
        return self._relay(members, channel, Broadcast(members, source, out, root, self._piece))

    def after_fork(self) -> None:
        """In a child: keep nothing open, and keep its parent's memory as it is."""
        self._board.segment.make_private()
        self._board.close()

    def close(self, orderly: bool) -> None:
        """Give descriptors back; memory goes with the last array in it."""
        self._board.close()

    def _relay(self, members: Members, channel: Channel, flow: Flow) -> SharedWork:
        nothing = np.empty(0, np.uint8)
        return self._start(members, channel, nothing, nothing, Relay(flow))

    def _start(
        self, members: Members, channel: Channel, source: Flat, out: Flat, task: Task
    ) -> SharedWork:
        looks = max(1, self._looks // len(members.ranks))
        return SharedWork(self._board, self._ends, members, channel, looks, (source, out), task)

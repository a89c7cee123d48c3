"""What a rank does with memory that it shares with the others of its host, compiled.

Every member of an operation has a slot, of which the others read and only it writes:

    word 0  how far it has come: the operation's key and a phase
         1  where its input lies, 2  where its output lies: offsets, -1 if not in shared memory
         3  pieces that it has filled, 4  pieces that it has worked on, 5  where its stage lies

A table of addresses is an int64 array, passed by its own address. `bells` holds for each member
the address of a word that is 1 while it sleeps, and the descriptor that wakes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.kernels import flags, vectors
from commrt.kernels.compiler import compiled

STATE, SOURCE, OUT, FILLED, WORKED, STAGE = range(0, 48, 8)
"""Offsets of a slot's words in bytes."""

ENDLESS = 1 << 60
"""Counted by whoever has nothing to fill, or to work on, any more."""

POSTED, DONE, CANCELLED = 1, 2, 3
"""Phases. A key's two lowest bits are free for them."""

_Words = npt.NDArray[np.int64]


@compiled
def exchange(word: _Words, value: int) -> int:
    """Write a word and return what it was; nothing is read before that is seen."""
    before: int = flags.swap(word.ctypes.data, value)
    return before


@compiled
def describe(slot: int, words: _Words) -> None:
    """Write all words of our slot but the first."""
    for i in range(words.size):
        flags.store(slot + 8 * (i + 1), words[i])


@compiled
def words(slots: _Words, word: int) -> _Words:
    """Read one word of every member."""
    found = np.empty(slots.size, np.int64)
    for i in range(slots.size):
        found[i] = flags.load(slots[i] + word)
    return found


@compiled
def _entry(table: int, i: int) -> int:
    found: int = flags.load(table + 8 * i)
    return found


@compiled
def reached(slots: int, n: int, word: int, value: int) -> int:
    """Return the first member whose word is below `value`, or that has cancelled; n if none."""
    for i in range(n):
        found = flags.load(_entry(slots, i) + word)
        if found < value:
            return i
        if word == STATE and found == value | CANCELLED and found != value:
            return i
    return n


@compiled
def announce(slots: int, n: int, me: int, word: int, value: int, bells: int) -> None:
    """Write our word, and wake who sleeps if ours was the lowest: only that can be waited for."""
    ours = _entry(slots, me) + word
    before = flags.load(ours)
    flags.store(ours, value)
    flags.fence()
    for i in range(n):
        if flags.load(_entry(slots, i) + word) <= before:
            return
    for i in range(n):
        if i != me and flags.load(_entry(bells, 2 * i)) and flags.swap(_entry(bells, 2 * i), 0):
            flags.write(np.int32(_entry(bells, 2 * i + 1)), bells + 16 * n, 8)


@compiled
def wait(slots: int, n: int, word: int, value: int, spins: int) -> int:
    """Look `spins` times more until all have come as far; return as `reached` does."""
    for _ in range(spins):
        if reached(slots, n, word, value) == n:
            return n
    late: int = reached(slots, n, word, value)
    return late


@compiled
def fetch(target: npt.NDArray[np.uint8], at: int, address: int, nbytes: int) -> None:
    """Copy bytes from an address to a place in an array."""
    flags.copy(target.ctypes.data + at, address, nbytes)


@compiled
def share(n: int, size: int, index: int) -> tuple[int, int]:
    """Return what member `index` owns of n elements: whole cache lines."""
    blocks = (n + 63) // 64
    return min(n, blocks * index // size * 64), min(n, blocks * (index + 1) // size * 64)


@compiled
def _inside(piece: int, size: int, index: int, m: int) -> tuple[int, int]:
    """Return what a member owns of a piece of which m elements are used.

    It has the same place in all pieces: what others have not taken yet is in nobody's way.
    """
    lo, hi = share(piece, size, index)
    return min(lo, m), min(hi, m)


@compiled
def _put(job: _Words, number: int, stage: int) -> None:
    """Copy a piece of our input to our stage, but for our share of it."""
    _, _, size, me, source, _, n, piece, itemsize = job
    at = source + number * piece * itemsize
    m = min(piece, n - number * piece)
    lo, hi = _inside(piece, size, me, m)
    flags.copy(stage, at, lo * itemsize)
    flags.copy(stage + hi * itemsize, at + hi * itemsize, (m - hi) * itemsize)


@compiled
def _take(job: _Words, number: int, stages: _Words) -> None:
    """Copy everybody's share of a piece to our output."""
    _, _, size, me, _, out, n, piece, itemsize = job
    at = out + number * piece * itemsize
    m = min(piece, n - number * piece)
    for r in range(size):
        if r != me:
            lo, hi = _inside(piece, size, r, m)
            flags.copy(at + lo * itemsize, stages[r] + lo * itemsize, (hi - lo) * itemsize)


@compiled
def reduce_staged(
    op: int, like: Any, job: _Words, pieces: _Words, came: _Words, div: float, mul: float,
    spins: int, budget: int,
) -> int:  # fmt: skip
    """Allreduce arrays that others cannot see, in pieces that travel through staging memory.

    Of each piece a rank puts what others own into its stage, joins its own share, leaves that in
    its stage too, and takes the others' shares out of theirs. `job`: slots, bells, members, our
    index, input, output, elements, elements of a piece, bytes of an element. `pieces[k, r]`: where
    member r keeps every k-th piece. `came`: pieces filled, worked on, taken, which is moved on.
    Ends when nothing moves, or after `budget` steps; returns how many were made.
    """
    slots, bells, size, me, source, out, n, piece, itemsize = job
    depth, steps, tries = pieces.shape[0], 0, 0
    count = (n + piece - 1) // piece
    outs = np.empty(2, np.int64)
    while came[2] < count and steps < budget:
        filled, worked, taken = came
        if taken < worked and reached(slots, size, WORKED, taken + 1) == size:
            _take(job, taken, pieces[taken % depth])
            came[2] += 1
        elif worked < filled and reached(slots, size, FILLED, worked + 1) == size:
            lo, hi = _inside(piece, size, me, min(piece, n - worked * piece))
            sources = pieces[worked % depth].copy()
            at = worked * piece * itemsize
            outs[0], outs[1] = out + at, sources[me]
            sources[me] = source + at
            vectors.reduce_span(op, like, sources, outs, lo, hi, div, mul)
            came[1] += 1
            announce(slots, size, me, WORKED, worked + 1, bells)
        elif filled < count and filled < taken + depth:
            # Our share of it is overwritten only once all have filled theirs, having taken ours.
            _put(job, filled, pieces[filled % depth, me])
            came[0] += 1
            announce(slots, size, me, FILLED, filled + 1, bells)
        elif tries < spins:
            tries += 1
            continue
        else:
            break
        steps += 1
        tries = 0
    return steps

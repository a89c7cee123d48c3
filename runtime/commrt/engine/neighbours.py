"""Meets the ranks of this host in shared memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from commrt.control.base import Rendezvous
from commrt.control.handover import Counter, visit

if TYPE_CHECKING:
    from commrt.transports.shared_memory import SharedTransport

_PROOF = 32
_PATIENCE = 60.0


class Invitation(msgspec.Struct, array_like=True, frozen=True):
    """What the first rank of a host tells the others: where it hands memory out, or why not.

    `proof`: bytes that are found in the memory.
    """

    address: bytes = b""
    proof: bytes = b""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The ranks of this host, us among them; `spin`: every one has a core."""

    ranks: tuple[int, ...]
    rank: int
    spin: bool

    @property
    def place(self) -> int:
        """Our position."""
        return self.ranks.index(self.rank)


def share_memory(
    near: Neighbours, rendezvous: Rendezvous, check: Callable[[], None]
) -> SharedTransport | str:
    """Return a transport, or why some rank of this host can't share memory; the same everywhere.

    All ranks of the job must call it. Blocks.
    """
    host = Host(near, check)
    invitations = rendezvous.exchange(msgspec.msgpack.encode(host.invite()))
    invitation = msgspec.msgpack.decode(invitations[near.ranks[0]], type=Invitation)
    transport, trouble = None, invitation.trouble
    if not trouble:
        try:
            transport = host.join(invitation)
        except (OSError, ImportError) as exc:
            trouble = f"rank {near.rank}: {exc}"
    host.close()
    troubles = [blob.decode() for blob in rendezvous.exchange(trouble.encode())]
    found = next((troubles[rank] for rank in near.ranks if troubles[rank]), "")
    if transport is None or found:
        if transport is not None:
            transport.close(orderly=True)
        return found
    return transport


class Host:
    """One rank's part in the meeting. The first rank makes the memory and hands it out."""

    def __init__(self, near: Neighbours, check: Callable[[], None]) -> None:
        self._near = near
        self._check = check
        self._memory = -1
        self._counter: Counter | None = None

    def invite(self) -> Invitation:
        """Make what is handed out, if that is ours to do."""
        if self._near.place:
            load_kernels()  # takes long: all ranks at once
            return Invitation()
        try:
            from commrt.transports.board import board_nbytes  # loads numba
            from commrt.transports.segment import make_segment

            rehearse()  # compiles, if that has to be done, before many ranks would at once
            control = board_nbytes(len(self._near.ranks))
            whole = control + len(self._near.ranks) * _pool_nbytes()
            self._memory = make_segment(whole, control)
            proof = secrets.token_bytes(_PROOF)
            os.pwrite(self._memory, proof, 0)
            self._counter = Counter()
        except (OSError, ImportError) as exc:
            return Invitation(trouble=f"rank {self._near.rank}: {exc}")
        return Invitation(self._counter.address, proof)

    def join(self, invitation: Invitation) -> SharedTransport:
        """Map the memory. Raises OSError or ImportError."""
        from commrt.transports.board import Board, board_nbytes
        from commrt.transports.segment import Pool, Segment
        from commrt.transports.shared_memory import SharedTransport

        near, size = self._near, len(self._near.ranks)
        memory, bells = self._fetch(invitation)
        segment = Segment(memory)
        if segment.words(0, _PROOF // 8).tobytes() != invitation.proof:
            raise OSError("this is not the memory that the first rank of the host sees")
        start = board_nbytes(size) + near.place * _pool_nbytes()
        board = Board(segment, near.ranks, near.rank, bells)
        if near.place:
            rehearse()
        return SharedTransport(board, Pool(segment, start, start + _pool_nbytes()), near.spin)

    def close(self) -> None:
        """End the handing out."""
        if self._counter is not None:
            self._counter.close()
        if self._memory >= 0:
            os.close(self._memory)

    def _fetch(self, invitation: Invitation) -> tuple[int, list[int]]:
        """Return descriptors of the memory and of everybody's bell."""
        near, size = self._near, len(self._near.ranks)
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if self._counter is not None:
            bells = self._counter.serve(self._memory, bell, size, _PATIENCE, self._check)
            return os.dup(self._memory), bells
        try:
            memory, *bells = visit(invitation.address, near.place, bell, size, _PATIENCE)
        finally:
            os.close(bell)
        return memory, bells


def load_compiler() -> None:
    """Load numba, and what of scipy it loads later. Not while MPI starts in another thread.

    MPI changes the environment, and these libraries read it: together they may crash.
    """
    with suppress(ImportError):
        import commrt.kernels.compiler  # noqa: F401
    with suppress(ImportError):
        import scipy.linalg.cython_blas  # noqa: F401


def load_kernels() -> None:
    """Load what `join` needs; that will say what is missing. Any thread, after `load_compiler`."""
    with suppress(ImportError):
        import commrt.transports.shared_memory  # noqa: F401
        from commrt.kernels.compiler import wake

        wake()


def rehearse() -> None:
    """Run every way of an allreduce once, alone: compiles or loads what it needs.

    Raises OSError where that does not work on this machine.
    """
    from commrt.kernels.compiler import NumbaError

    try:
        _rehearse()
    except (NumbaError, NotImplementedError, TypeError) as exc:
        raise OSError(f"kernels can't be compiled on this machine: {exc!r}") from exc


def _rehearse() -> None:
    from commrt.kernels.reduction import Reduction
    from commrt.transports.base import Channel, Members
    from commrt.transports.board import Board, board_nbytes
    from commrt.transports.segment import Pool, Segment, make_segment
    from commrt.transports.shared_memory import SMALL, SharedTransport
    from commrt.types import ReduceOp

    control = board_nbytes(1)
    segment = Segment(make_segment(control + 16 * SMALL, control))
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    stage = 2 * SMALL
    pool = Pool(segment, control, control + 16 * SMALL)
    transport = SharedTransport(Board(segment, (0,), 0, [bell]), pool, False, SMALL, stage // 4)
    alone, mean = Members((0,), 0), Reduction(ReduceOp.SUM, 2)
    for number, n in enumerate((16, SMALL, SMALL)):
        inside = transport.allocate(4 * n) if number == 2 else np.empty(4 * n, np.uint8)
        array = inside.view(np.float32)
        array[:] = 2.0
        work = transport.allreduce(alone, Channel(0, number, 0), array, array, mean)
        while not work.progress():
            pass
        if not (array == 1.0).all():
            raise OSError("compiled kernels give wrong results on this machine")
    transport.close(orderly=True)


def _pool_nbytes() -> int:
    """Return the room of one rank: all memory of the machine, of which it takes what it uses."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

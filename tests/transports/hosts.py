"""Hosts whose ranks all run in this process, each with a mapping of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from commrt.transports.board import Board, board_nbytes
from commrt.transports.segment import Pool, Segment, make_segment
from commrt.transports.shared_memory import SharedTransport

POOL = 64 << 20


@contextmanager
def host(ranks: Sequence[int], small: int, piece: int) -> Iterator[dict[int, SharedTransport]]:
    """Yield the transports of the ranks of one host, which close in the end."""
    size = len(ranks)
    control = board_nbytes(size)
    fd = make_segment(control + size * POOL, control)
    bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(size)]
    transports = {}
    for place, rank in enumerate(ranks):
        segment = Segment(os.dup(fd))
        board = Board(segment, ranks, rank, [os.dup(bell) for bell in bells])
        start = control + place * POOL
        transports[rank] = SharedTransport(
            board, Pool(segment, start, start + POOL), False, small, piece
        )
    try:
        yield transports
    finally:
        for transport in transports.values():
            transport.close(orderly=True)
        for descriptor in (fd, *bells):
            os.close(descriptor)

"""Chooses what moves data: the only place where that is done. All ranks choose alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commrt.config import Config
from commrt.control.base import Rendezvous
from commrt.control.peers import Card, ranks_by_host
from commrt.engine.distant import connect
from commrt.engine.neighbours import Neighbours, share_memory
from commrt.errors import InitError
from commrt.transports.base import Transport
from commrt.transports.hierarchical import HierarchicalTransport
from commrt.transports.idle import IdleTransport
from commrt.transports.local import LocalTransport
from commrt.transports.message import MessageTransport
from commrt.transports.mpi import MpiWire
from commrt.types import Topology

log = logging.getLogger("commrt.engine")


@dataclass(frozen=True, slots=True)
class Job:
    """What a choice depends on. `check` is called while waiting for others; it may raise."""

    config: Config
    comm: Any
    here: Topology
    cards: Sequence[Card]
    rendezvous: Rendezvous
    check: Callable[[], None]


def choose(job: Job) -> Transport:
    """Return what moves data between the ranks of a job. Blocks; raises InitError."""
    wish, here = job.config.transport, job.here
    if here.size == 1:
        return LocalTransport()
    if wish == "none":
        log.warning("COMMRT_TRANSPORT=none: reductions move nothing; their results are wrong")
        return IdleTransport(MpiWire(job.comm))
    if wish == "mpi":
        return MessageTransport(MpiWire(job.comm))
    hosts = ranks_by_host(job.cards)
    if wish == "shm" and len(hosts) > 1:
        raise InitError("COMMRT_TRANSPORT=shm: the ranks are on several hosts")
    near = _near(job, hosts) if may_share(job.config) else None
    if len(hosts) == 1 and wish != "tcp":
        return near or MessageTransport(MpiWire(job.comm))
    far = _far(job)
    return far if near is None else HierarchicalTransport(near, far, hosts)


def may_share(config: Config) -> bool:
    """May ranks of one host share memory?"""
    return config.transport == "shm" or (config.transport == "auto" and bool(config.shm))


def spin_allowed(here: Topology) -> bool:
    """Spinning pays only while every rank has a core."""
    return here.local_size <= len(os.sched_getaffinity(0))


def _near(job: Job, hosts: Sequence[tuple[int, ...]]) -> Transport | None:
    """Return what serves inside hosts; None if there is nothing to serve, or it can't be had."""
    if len(hosts) == job.here.size:
        return None
    rank = job.here.rank
    ranks = next(ranks for ranks in hosts if rank in ranks)
    near = Neighbours(ranks, rank, spin_allowed(job.here))
    found = share_memory(near, job.rendezvous, job.check)
    trouble = found if isinstance(found, str) else ""
    troubles = [blob.decode() for blob in job.rendezvous.exchange(trouble.encode())]
    if not any(troubles):
        assert not isinstance(found, str)
        return found
    if not isinstance(found, str):
        found.close(orderly=True)
    trouble = next(filter(None, troubles))
    if job.config.transport == "shm":
        raise InitError(f"COMMRT_TRANSPORT=shm, but memory can't be shared: {trouble}")
    if rank == 0:
        instead = "MPI" if len(hosts) == 1 else "TCP"
        log.warning("ranks of a host can't share memory, so %s moves data: %s", instead, trouble)
    return None


def _far(job: Job) -> Transport:
    """Return what serves between hosts."""
    wire = connect(job.here.rank, job.cards, job.rendezvous)
    if not isinstance(wire, str):
        return MessageTransport(wire)
    if job.config.transport == "tcp":
        raise InitError(f"COMMRT_TRANSPORT=tcp, but ranks can't be reached: {wire}")
    if job.here.rank == 0:
        log.warning("TCP can't reach all ranks, so MPI moves data: %s", wire)
    return MessageTransport(MpiWire(job.comm))

"""Chooses what moves data: the only place where that is done. All ranks choose alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from commrt.config import Config, cache_directory
from commrt.control.base import Rendezvous
from commrt.control.peers import Card, ranks_by_host
from commrt.core.tuning import Choice
from commrt.engine.distant import connect
from commrt.engine.neighbours import Neighbours, share_memory
from commrt.engine.tuning import PATIENCE, Kept, Trials
from commrt.errors import CommError, InitError
from commrt.transports.base import Members, Transport, Wire
from commrt.transports.hierarchical import HierarchicalTransport
from commrt.transports.idle import IdleTransport
from commrt.transports.local import LocalTransport
from commrt.transports.message import MessageTransport
from commrt.transports.mpi import MpiWire
from commrt.types import Topology
from commrt.version import __version__

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


@dataclass(frozen=True, slots=True)
class Carrier:
    """What moves data, and what that is, for people."""

    transport: Transport
    text: str


def choose(job: Job) -> Carrier:
    """Return what moves data between the ranks of a job. Blocks; raises InitError."""
    wish, here = job.config.transport, job.here
    if here.size == 1:
        return ALONE
    if wish == "none":
        log.warning("COMMRT_TRANSPORT=none: reductions move nothing; their results are wrong")
        return Carrier(IdleTransport(MpiWire(job.comm)), "nothing: COMMRT_TRANSPORT=none")
    hosts = ranks_by_host(job.cards)
    if wish == "shm" and len(hosts) > 1:
        raise InitError("COMMRT_TRANSPORT=shm: the ranks are on several hosts")
    near = _near(job, hosts) if may_share(job.config) else None
    if near is not None and len(hosts) == 1:
        return Carrier(near, "shared memory")
    try:
        far = _far(job, hosts, lanes=near is not None)
    except BaseException:
        if near is not None:
            near.close(orderly=False)
        raise
    if near is None:
        return Carrier(far.transport, f"{far.text}{_why_not_shared(job, hosts)}")
    both = HierarchicalTransport(near, far.transport, hosts)
    return Carrier(both, f"shared memory inside {len(hosts)} hosts; between them {far.text}")


ALONE = Carrier(LocalTransport(), "nothing: there is one rank")


def _why_not_shared(job: Job, hosts: Sequence[tuple[int, ...]]) -> str:
    if len(hosts) == job.here.size:
        return ""
    if job.config.transport != "auto":
        return f"; COMMRT_TRANSPORT={job.config.transport}"
    return "; memory can't be shared" if job.config.shm else "; COMMRT_SHM=0"


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


def _far(job: Job, hosts: Sequence[tuple[int, ...]], lanes: bool) -> Carrier:
    """Return what serves between hosts. `lanes`: one rank of each host at a time."""
    wires = _wires(job, len(hosts))
    try:
        choice, origin = _tuned(job, hosts, lanes, wires)
    except BaseException:
        for wire in wires.values():
            wire.close(orderly=False)
        raise
    for name, wire in wires.items():
        if name not in (choice.wire, "mpi"):  # the communicator is not a wire's alone
            wire.close(orderly=True)
    transport = MessageTransport(wires[choice.wire], choice.small, choice.segment)
    return Carrier(transport, _describe(choice, origin))


def _wires(job: Job, hosts: int) -> dict[str, Wire]:
    """Return those that may be used, the one to prefer first."""
    wish = job.config.transport
    mpi = MpiWire(job.comm)
    if wish == "mpi" or (hosts == 1 and wish != "tcp"):
        return {"mpi": mpi}
    tcp = connect(job.here.rank, job.cards, job.rendezvous)
    if not isinstance(tcp, str):
        return {"tcp": tcp} if wish == "tcp" else {"tcp": tcp, "mpi": mpi}
    if wish == "tcp":
        raise InitError(f"COMMRT_TRANSPORT=tcp, but ranks can't be reached: {tcp}")
    if job.here.rank == 0:
        log.warning("TCP can't reach all ranks, so MPI moves data: %s", tcp)
    return {"mpi": mpi}


def _tuned(
    job: Job, hosts: Sequence[tuple[int, ...]], lanes: bool, wires: Mapping[str, Wire]
) -> tuple[Choice, str]:
    """Return how to use which wire, and how that is known."""
    if len(hosts) == 1:
        return Choice(next(iter(wires))), "not measured: the ranks are on one host"
    if not job.config.tune:
        return Choice(next(iter(wires))), "not measured: COMMRT_TUNE=0"
    rank = job.here.rank
    members = tuple(ranks[0] for ranks in hosts) if lanes else tuple(range(job.here.size))
    kept = Kept(cache_directory(), _facts(job, hosts, members, wires))
    known = Report(kept.load(wires) if rank == 0 else None)
    if (choice := _reports(job, known)[0].choice) is not None:
        return choice, "measured by an earlier job"
    report = Report()
    if rank in members:
        report = _measure(job, wires, Members(members, members.index(rank)))
    reports = _reports(job, report)
    if (choice := _settle(job, reports, wires)) is not None:
        if rank == 0:
            kept.save(choice)
        return choice, "measured now"
    return Choice("mpi"), "TCP failed when it was measured"


_TOLD = 4  # troubles; one is the cause, others follow from it


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a rank has to say of its trials: a choice, or what went wrong, and over which wire."""

    choice: Choice | None = None
    trouble: str = ""
    wire: str = ""


def _reports(job: Job, ours: Report) -> list[Report]:
    """Return every rank's."""
    blobs = job.rendezvous.exchange(msgspec.msgpack.encode(ours))
    return [msgspec.msgpack.decode(blob, type=Report) for blob in blobs]


def _settle(job: Job, reports: Sequence[Report], wires: Mapping[str, Wire]) -> Choice | None:
    """Return what was chosen; None if MPI has to do instead. Raises InitError."""
    troubles = [report for report in reports if report.trouble]
    if not troubles:
        return reports[0].choice
    trouble = "; ".join(report.trouble for report in troubles[:_TOLD])
    # What has been begun over MPI would be taken for data later.
    if "mpi" not in wires or any(report.wire == "mpi" for report in troubles):
        raise InitError(f"while the links between hosts were measured: {trouble}")
    if job.here.rank == 0:
        log.warning("TCP does not serve, so MPI moves data: %s", trouble)
    return None


def _facts(
    job: Job, hosts: Sequence[tuple[int, ...]], members: tuple[int, ...], wires: Mapping[str, Wire]
) -> list[str]:
    """Return what jobs have in common that one choice serves."""
    places = [(job.cards[ranks[0]].host, job.cards[ranks[0]].addresses, ranks) for ranks in hosts]
    return [__version__, *wires, repr(members), *map(repr, places)]


def _measure(job: Job, wires: Mapping[str, Wire], members: Members) -> Report:
    """Make the trials. Raises only what `check` does."""
    trials = Trials(wires, members, job.check, min(PATIENCE, job.config.init_timeout / 3))
    try:
        if members.index == 0:
            return Report(trials.lead())
        trials.follow()
    except (CommError, TimeoutError) as exc:
        for wire in wires.values():  # so that the others do not wait for us
            wire.close(orderly=False)
        job.check()  # a rank that has died is no matter of wires
        return Report(None, f"rank {job.here.rank}: {exc}", trials.wire)
    return Report()


def _describe(choice: Choice, origin: str) -> str:
    """Say how data moves."""
    seen = [f"{name.upper()} {rate / 1e6:.0f} MB/s" for name, rate in choice.rates]
    rings = f"; the largest rings tried: {', '.join(seen)}" if seen else ""
    return (
        f"{choice.wire.upper()}, recursive doubling up to {choice.small >> 10} KiB, else a ring in "
        f"segments of {choice.segment >> 10} KiB ({origin}{rings})"
    )

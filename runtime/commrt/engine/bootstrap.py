"""Finds the other ranks and wires one rank's engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec
import zmq

from commrt.clock import Clock
from commrt.config import Config, LauncherEnv
from commrt.control.base import ControlLink, Rendezvous
from commrt.control.interfaces import common_address, own_addresses
from commrt.control.launcher import LauncherLine
from commrt.control.memory import MemoryHub
from commrt.control.mpi_rendezvous import MpiRendezvous
from commrt.control.peers import Card, compare, introduce, same_machine, same_processes, topology
from commrt.control.zmq_ import ZmqLink
from commrt.core.coordinator import Coordinator
from commrt.core.lease import Lease
from commrt.core.member import Member
from commrt.core.stall import StallWatch
from commrt.engine.carriers import ALONE, Carrier, Job, choose, may_share
from commrt.engine.departure import Departure
from commrt.engine.executor import Executor, Sets
from commrt.engine.heart import Heart
from commrt.engine.mpi_start import MpiState
from commrt.engine.neighbours import load_compiler, load_kernels
from commrt.engine.parts import Parts
from commrt.engine.queue import TensorQueue
from commrt.errors import ArgumentError, InitError
from commrt.observe.trace import Trace
from commrt.transports.base import Members
from commrt.types import WORLD, ProcessSetSpec, Topology
from commrt.version import __version__

log = logging.getLogger("commrt.engine")


@dataclass(frozen=True, slots=True)
class Order:
    """What `init()` was asked for. `check` is called while waiting for others; it may raise."""

    config: Config
    env: LauncherEnv
    comm: Any
    sets: tuple[tuple[int, ...], ...]
    generation: int
    clock: Clock
    mpi: MpiState
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank found itself, and its lines to the others."""

    topology: Topology
    generation: int
    link: ControlLink
    carrier: Carrier
    launcher: LauncherLine


def find_place(order: Order) -> Place:
    """Meet the other ranks, or find that there are none. Blocks; raises InitError."""
    if not order.env.family and order.comm is None:
        launcher = LauncherLine("")
        alone = topology(0, [_card(order, 0, b"")])
        return Place(alone, order.generation, MemoryHub(1).link(0), ALONE, launcher)
    if may_share(order.config):
        load_compiler()
        Thread(target=load_kernels, name="commrt-load", daemon=True).start()
    order.mpi.start()
    order.mpi.check_size(order.env)
    return _meet(order)


def _meet(order: Order) -> Place:
    parent = order.mpi.communicator(order.comm)
    comm, request = parent.Idup()
    rendezvous = MpiRendezvous(comm, order.config.init_timeout, order.check)
    rendezvous.wait(request, "making a communicator")
    rank = comm.Get_rank()
    public, secret = zmq.curve_keypair()
    cards = [
        msgspec.msgpack.decode(blob, type=Card)
        for blob in rendezvous.exchange(msgspec.msgpack.encode(_card(order, rank, public)))
    ]
    compare(cards)
    here = topology(rank, cards)
    # Before there are connections: an engine that is busy with this would not greet who connects.
    carrier = choose(Job(order.config, comm, here, cards, rendezvous, order.check))
    if rank == 0:
        log.info("data is moved by %s", carrier.text)
    launcher = LauncherLine(order.env.shim)
    link = ZmqLink(rank, launcher)
    try:
        _connect(link, rendezvous, cards, rank, secret)
    except BaseException:
        link.close()
        carrier.transport.close(orderly=False)
        raise
    generation = max(card.generation for card in cards)
    return Place(here, generation, link, carrier, launcher)


def _connect(
    link: ZmqLink, rendezvous: Rendezvous, cards: Sequence[Card], rank: int, secret: bytes
) -> None:
    blob = b""
    if rank == 0:
        far = [card for card in cards if not same_machine(cards[0], card)]
        address = None
        if far:
            address = common_address(cards[0].addresses, [card.addresses for card in far])
            if address is None:
                blob = _NO_ADDRESS
        keys = {card.public_key: card.rank for card in cards}
        if blob != _NO_ADDRESS:
            server, addresses = link.listen(keys, address)
            blob = msgspec.msgpack.encode((server, addresses))
    blob = rendezvous.exchange(blob)[0]
    if blob == _NO_ADDRESS:
        raise InitError(
            f"rank 0's host {cards[0].host} has no network interface whose subnet all other hosts "
            f"share; its addresses are {', '.join(cards[0].addresses)}"
        )
    if rank != 0:
        server, addresses = msgspec.msgpack.decode(blob, type=tuple[bytes, list[str]])
        near = same_machine(cards[0], cards[rank])
        link.connect(addresses[0 if near else -1], server, cards[rank].public_key, secret)
    own = cards[rank]
    link.guard({c.rank: c.pid for c in cards if c.rank != rank and same_processes(own, c)})


_NO_ADDRESS = b"no address"


def assemble(order: Order, place: Place, started: Callable[[], None]) -> Parts:
    """Wire the parts of a rank that has found its place; `started`: every rank is connected."""
    here, config = place.topology, order.config
    sets = _process_sets(order.sets, here.size)
    members = {
        s.id: Members(s.ranks, s.ranks.index(here.rank))
        for s in sets.values()
        if here.rank in s.ranks
    }
    coordinator = None
    if here.rank == 0:
        stalls = StallWatch(config.stall_warn, config.stall_fail, here.hosts)
        lease = Lease(here.hosts, config.stall_warn, config.stall_fail, bool(config.lock))
        coordinator = Coordinator(
            here.size, sets, config.fusion_limit(), stalls, lease, config.cache_capacity
        )
    executor = Executor(
        place.carrier.transport, Sets(here.rank, members), place.generation, order.clock
    )
    heart = Heart()
    heart.describe, heart.wake = executor.current, place.link.wake
    return Parts(
        topology=here,
        generation=place.generation,
        link=place.link,
        launcher=place.launcher,
        member=Member(
            here.rank, here.hosts, config.stall_warn, config.stall_fail, config.cache_capacity
        ),
        coordinator=coordinator,
        queue=TensorQueue(place.link.wake, order.clock),
        executor=executor,
        heart=heart,
        trace=Trace(),
        departure=Departure(here.rank, config.shutdown_timeout, started),
        clock=order.clock,
        moved_by=place.carrier.text,
    )


def _card(order: Order, rank: int, public: bytes) -> Card:
    return introduce(
        rank,
        __version__,
        order.generation,
        order.config.shared(),
        order.sets,
        public,
        own_addresses(),
    )


def _process_sets(wanted: Sequence[Sequence[int]], size: int) -> dict[int, ProcessSetSpec]:
    sets = {WORLD: ProcessSetSpec(WORLD, tuple(range(size)))}
    for number, ranks in enumerate(wanted, start=1):
        if not ranks or min(ranks) < 0 or max(ranks) >= size or len(set(ranks)) != len(ranks):
            raise ArgumentError(
                f"process set {list(ranks)} is not a set of different ranks below {size}"
            )
        sets[number] = ProcessSetSpec(number, tuple(sorted(ranks)))
    return sets

"""A wire between ranks of one process, as slow and as synchronous as MPI may be."""

from __future__ import annotations

import random
import threading
from collections import deque

import numpy as np

from commrt.transports.base import Flat, Test, Unwakeable, as_bytes

Route = tuple[int, int, int]
"""Source, destination, tag."""


class Parcel:
    """A message on its way. Its bytes are read when they are delivered, and no earlier."""

    __slots__ = ("data", "delivered", "hold")

    def __init__(self, data: Flat, hold: int) -> None:
        self.data: Flat | None = data
        self.hold = hold
        self.delivered = False


class Wish:
    """A message that was asked for."""

    __slots__ = ("arrived", "data")

    def __init__(self, data: Flat) -> None:
        self.data = data
        self.arrived = False


class Lane:
    """The messages of one route, in order. The switch locks."""

    def __init__(self, route: Route, rng: random.Random, hold: int, eager: int) -> None:
        self._route = route
        self._rng = rng
        self._hold = hold
        self._eager = eager
        self._parcels: deque[Parcel] = deque()
        self._wishes: deque[Wish] = deque()

    def send(self, data: Flat) -> Parcel:
        """Put a message on its way; a small one is copied, and its sender is done with it."""
        parcel = Parcel(as_bytes(data), self._rng.randint(0, self._hold))
        if data.nbytes <= self._eager:
            parcel.data = as_bytes(data).copy()
            parcel.delivered = True
        self._parcels.append(parcel)
        return parcel

    def ask(self, data: Flat) -> Wish:
        """Ask for the next message that nobody has asked for."""
        wish = Wish(as_bytes(data))
        self._wishes.append(wish)
        return wish

    def withdraw(self, wish: Wish) -> None:
        """Ask for it no more."""
        if not wish.arrived:
            self._wishes.remove(wish)

    def move(self) -> None:
        """Let some time pass: deliver the next message once it has been held long enough."""
        if not self._parcels or not self._wishes:
            return
        parcel = self._parcels[0]
        if parcel.hold > 0:
            parcel.hold -= 1
            return
        wish = self._wishes[0]
        assert parcel.data is not None
        if parcel.data.size != wish.data.size:
            source, to, tag = self._route
            raise AssertionError(
                f"rank {source} sent {parcel.data.size} bytes with tag {tag}, but rank {to} "
                f"expects {wish.data.size}"
            )
        np.copyto(wish.data, parcel.data)
        self._parcels.popleft()
        self._wishes.popleft()
        parcel.data = None
        parcel.delivered = wish.arrived = True

    def left(self) -> tuple[int, int]:
        """Return the numbers of messages and of requests for some that have found no partner."""
        return len(self._parcels), len(self._wishes)


class MemorySwitch:
    """Connects the memory wires of a process. Thread safety: any thread.

    A message is delivered when both sides are there and have looked at most `hold` times at it; the
    number is drawn from `seed`, for each route on its own. A send is through once its message
    is delivered, or at once up to `eager` bytes.
    """

    def __init__(self, seed: int = 0, hold: int = 0, eager: int = -1) -> None:
        self._seed = seed
        self._hold = hold
        self._eager = eager
        self._lanes: dict[Route, Lane] = {}
        self._lock = threading.Lock()

    def wire(self, rank: int) -> MemoryWire:
        """Return a rank's end."""
        return MemoryWire(self, rank)

    def send(self, route: Route, data: Flat) -> Test:
        """Start sending."""
        with self._lock:
            lane = self._lane(route)
            parcel = lane.send(data)

        def test() -> bool:
            if not parcel.delivered:
                with self._lock:
                    lane.move()
            return parcel.delivered

        return test

    def ask(self, route: Route, data: Flat) -> MemoryIncoming:
        """Start receiving."""
        with self._lock:
            lane = self._lane(route)
            return MemoryIncoming(lane, lane.ask(data), self._lock)

    def left(self) -> dict[Route, tuple[int, int]]:
        """Return what has not been received and what was asked for in vain, by route."""
        with self._lock:
            counts = {route: lane.left() for route, lane in self._lanes.items()}
        return {route: count for route, count in counts.items() if any(count)}

    def _lane(self, route: Route) -> Lane:
        lane = self._lanes.get(route)
        if lane is None:
            rng = random.Random(f"{self._seed} {route}")
            lane = self._lanes[route] = Lane(route, rng, self._hold, self._eager)
        return lane


class MemoryIncoming:
    """See `Incoming`."""

    def __init__(self, lane: Lane, wish: Wish, lock: threading.Lock) -> None:
        self._lane = lane
        self._wish = wish
        self._lock = lock

    def test(self) -> bool:
        """Has it arrived?"""
        if not self._wish.arrived:
            with self._lock:
                self._lane.move()
        return self._wish.arrived

    def cancel(self) -> None:
        """Take the request back."""
        with self._lock:
            self._lane.withdraw(self._wish)


class MemoryWire(Unwakeable):
    """See `Wire`: one rank's end of a `MemorySwitch`."""

    def __init__(self, switch: MemorySwitch, rank: int) -> None:
        self._switch = switch
        self._rank = rank

    def send(self, peer: int, tag: int, data: Flat) -> Test:
        """Start sending."""
        return self._switch.send((self._rank, peer, tag), data)

    def receive(self, peer: int, tag: int, data: Flat) -> MemoryIncoming:
        """Start receiving."""
        return self._switch.ask((peer, self._rank, tag), data)

    def close(self, orderly: bool) -> None:
        """Do nothing: what others still receive stays where it is."""

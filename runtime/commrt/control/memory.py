"""Control links between threads of one process, for one rank alone and for `LocalWorld`."""

from __future__ import annotations

import threading
from collections import deque

from commrt.control.base import Event, PeerGone, Received
from commrt.errors import EngineError


class MemoryLink:
    """One rank's end of a hub of in-process links."""

    def __init__(self, hub: MemoryHub, rank: int) -> None:
        self._hub = hub
        self._rank = rank
        self._inbox: deque[Event] = deque()
        self._awake = threading.Event()

    def deliver(self, event: Event) -> None:
        """Put an event in this end's inbox. Any thread."""
        self._inbox.append(event)
        self._awake.set()

    def send(self, rank: int, data: bytes) -> None:
        """Deliver to the other end at once; nothing happens if either end has closed."""
        if self._hub.connected(self._rank):
            self._hub.deliver(rank, Received(self._rank, data))

    def poll(self, timeout: float | None) -> list[Event]:
        """Return what has come."""
        if not self._inbox and timeout != 0:
            self._awake.wait(timeout)
        self._awake.clear()
        events = []
        while self._inbox:
            events.append(self._inbox.popleft())
        return events

    def wake(self) -> None:
        """Make `poll` return."""
        self._awake.set()

    def watch(self, *fds: int) -> None:
        """Do nothing: an end that sleeps on an event waits for no descriptors."""
        if fds:
            raise EngineError("an in-process link can't watch descriptors")

    def inherited(self) -> list[int]:
        """Nothing that a child would keep."""
        return []

    def close(self, linger: float = 0.0) -> None:
        """Take this end off the hub; as with a real link, rank 0 notices, or all do if it is 0."""
        if self._hub.connected(self._rank):
            self._hub.drop(self._rank)
            gone = PeerGone(self._rank, "its connection closed", hung_up=True)
            for other in self._hub.here() if self._rank == 0 else [0]:
                self._hub.deliver(other, gone)


class MemoryHub:
    """Connects the memory links of `size` ranks. Thread safety: any thread."""

    def __init__(self, size: int) -> None:
        self._links: dict[int, MemoryLink] = {r: MemoryLink(self, r) for r in range(size)}

    def link(self, rank: int) -> MemoryLink:
        """Return a rank's end."""
        return self._links[rank]

    def connected(self, rank: int) -> bool:
        """Is a rank's end on the hub?"""
        return rank in self._links

    def here(self) -> list[int]:
        """Return the ranks that are there."""
        return list(self._links)

    def deliver(self, rank: int, event: Event) -> None:
        """Hand an event to a rank that is still there."""
        link = self._links.get(rank)
        if link is not None:
            link.deliver(event)

    def drop(self, rank: int) -> None:
        """Forget a rank that has closed."""
        self._links.pop(rank, None)

    def lose(self, rank: int, why: str) -> None:
        """Play a rank's death: its link goes, all others hear of it."""
        self.drop(rank)
        for other in self.here():
            self.deliver(other, PeerGone(rank, why))

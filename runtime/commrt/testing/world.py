"""Ranks as threads of one process, over memory links and wires."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from commrt.clock import Clock, monotonic
from commrt.config import Config, LauncherEnv
from commrt.control.launcher import LauncherLine
from commrt.control.memory import MemoryHub
from commrt.core.tuning import SEGMENT, SMALL
from commrt.engine.bootstrap import Order, Place
from commrt.engine.carriers import Carrier
from commrt.engine.mpi_start import MpiState
from commrt.engine.runtime import Runtime
from commrt.errors import CommError, EngineError, ShutdownError
from commrt.process_sets import ProcessSet, WorldSet
from commrt.session import Session
from commrt.testing.clock import FakeClock
from commrt.testing.wire import MemorySwitch
from commrt.transports.message import MessageTransport
from commrt.types import Topology

T = TypeVar("T")


class LocalWorld:
    """A job of `size` ranks in this process. Use it as a context manager.

    `sets`: process sets, numbered as they come. `switch`: how slow the wires are; `small` and
    `segment` as for `MessageTransport`. Thread safety: any thread.
    """

    def __init__(
        self,
        size: int,
        sets: Sequence[ProcessSet] = (),
        config: Config | None = None,
        clock: Clock = monotonic,
        switch: MemorySwitch | None = None,
        small: int = SMALL,
        segment: int = SEGMENT,
    ) -> None:
        self.switch = switch or MemorySwitch()
        self._clock = clock
        self._hub = MemoryHub(size)
        self._sets = [ProcessSet(s.ranks) for s in sets]
        shared = tuple(s.ranks for s in sets)
        order = Order(
            config or Config(), LauncherEnv("", 0, 1, ""), None, shared, 1, clock, MpiState(), _fine
        )
        self._runtimes = [
            Runtime(order, self._placer(rank, size, small, segment)) for rank in range(size)
        ]
        self.sessions: list[Session] = []
        for number, process_set in enumerate(sets, start=1):
            process_set.attach(number)

    def __enter__(self) -> LocalWorld:
        """Start all ranks. Raises what `init()` would."""
        self.on_all(Runtime.start)
        world = WorldSet()
        world.ranks = tuple(range(len(self._runtimes)))
        for number, process_set in enumerate(self._sets, start=1):
            process_set.attach(number)
        self.sessions = [Session(runtime, [world, *self._sets]) for runtime in self._runtimes]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all ranks: in an orderly way, or at once after an error."""
        if error is not None:
            self._abort(ShutdownError(f"the test failed: {error!r}"))
        self.on_all(Runtime.shutdown)
        alive = [r for r, runtime in enumerate(self._runtimes) if runtime.alive()]
        if alive:
            raise EngineError(f"the engines of ranks {alive} have not ended")

    def run(self, body: Callable[[Session], T]) -> list[T]:
        """Run `body(session)` on every rank, each in a thread; return the results in order.

        Raises the first error of a rank, after which the world has ended.
        """
        return self.on_all(lambda runtime: body(self.sessions[self._runtimes.index(runtime)]))

    def on_all(self, body: Callable[[Runtime], T]) -> list[T]:
        """Run `body(runtime)` on every rank; see `run`."""
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def main(rank: int) -> None:
            try:
                results[rank] = body(self._runtimes[rank])
            except BaseException as exc:
                errors.append(exc)
                self._abort(ShutdownError(f"rank {rank} failed: {exc!r}"))

        threads = [
            threading.Thread(target=main, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(len(self._runtimes))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[rank] for rank in range(len(threads))]

    def lose(self, rank: int, why: str = "killed by signal 9") -> None:
        """Let a rank die: all others hear of it, and its own engine ends."""
        self._hub.lose(rank, why)
        self._runtimes[rank].abort(ShutdownError(f"rank {rank} is dead: {why}"))

    def advance(self, seconds: float) -> None:
        """Move the world's fake clock and let every engine look at it."""
        assert isinstance(self._clock, FakeClock)
        self._clock.advance(seconds)
        for runtime in self._runtimes:
            runtime.parts.link.wake()

    def _abort(self, error: CommError) -> None:
        first, *others = self._runtimes
        first.abort(error)
        first.shutdown()  # it stays until the others have heard and gone
        for runtime in others:
            runtime.abort(error)

    def _placer(self, rank: int, size: int, small: int, segment: int) -> Callable[[Order], Place]:
        def place(order: Order) -> Place:
            hosts = ("memory",) * size
            here = Topology(rank, size, rank, size, 0, 1, hosts)
            carrier = Carrier(MessageTransport(self.switch.wire(rank), small, segment), "memory")
            link = self._hub.link(rank)
            return Place(here, order.generation, link, carrier, LauncherLine(""))

        return place


def _fine() -> None:
    return None

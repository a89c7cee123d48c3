"""What a caller holds while an operation is under way."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from commrt.engine.heart import Heart
from commrt.errors import ArgumentError, CommError

log = logging.getLogger("commrt.engine")

_POLLED = 0.01
"""Seconds after which who asks whether it is done is taken to wait for it."""

_LOOK = 5.0
"""Seconds between looks at a sleeping waiter's engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation left.

    Flat arrays; the positions of tensors that no rank had; the `rows` of `Agreed`.
    """

    arrays: tuple[Any, ...]
    absent: tuple[int, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()


class Handle:
    """The result to come. Never spins, holds no interpreter lock while waiting.

    Thread safety: any thread; `complete` and `fail` background thread only.
    """

    __slots__ = (
        "_callbacks", "_collected", "_error", "_heart", "_latch", "_lock", "_polled", "_result",
        "_wanted", "_wrap", "name",
    )  # fmt: skip

    def __init__(self, name: str, wrap: Callable[[Outcome], Any], heart: Heart) -> None:
        self.name = name
        self._wrap: Callable[[Outcome], Any] | None = wrap
        self._heart = heart
        self._latch = threading.Lock()
        self._latch.acquire()
        self._lock = threading.Lock()
        self._result: Any = None
        self._collected = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Handle], None]] | None = []
        self._wanted = False
        self._polled: float | None = None

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the operation has ended; return its result or raise its error.

        Raises TimeoutError after `timeout` seconds; the operation goes on and may be waited for
        again. Raises EngineError if the background thread is stuck.
        """
        if self._callbacks is not None:
            self._block(timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)
        with self._lock:
            if self._wrap is not None:
                self._result = self._wrap(self._result)
                self._wrap = None
        return self._result

    def collect(self, timeout: float | None = None) -> Any:
        """Do `wait`, but raise ArgumentError once its result or error has been collected."""
        if self._collected:
            raise ArgumentError(f"{self.name!r} was synchronized before; keep its result instead")
        self.exception(timeout)
        self._collected = True
        return self.wait()

    def done(self) -> bool:
        """Tell whether it has ended, well or not. Never blocks."""
        if self._callbacks is not None and self._heart.blocked is not None:
            self._poll()
        return self._callbacks is None

    def wanted(self, long: bool) -> bool:
        """Does, or did, a caller wait for it, or ask for it again and again?

        `long`: it has taken so long that who is to be called back may well be waiting.
        """
        return self._wanted or (long and bool(self._callbacks))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until it has ended; return its error or None. Raises TimeoutError."""
        if self._callbacks is not None:
            self._block(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[Handle], None]) -> None:
        """Call `callback(handle)` once it has ended, from the background thread, or now.

        An exception that it raises is logged.
        """
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait in an asyncio task."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake(_: Handle) -> None:
            loop.call_soon_threadsafe(_resolve, future)

        self.add_done_callback(wake)
        self._want()
        yield from future
        return self.wait()

    def complete(self, outcome: Outcome) -> None:
        """End it well."""
        self._result = outcome
        self._end()

    def fail(self, error: CommError) -> None:
        """End it with an error, which every waiter gets. The first end counts."""
        if self._callbacks is None:
            return
        self._error = error
        self._wrap = None
        self._end()

    def _end(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        self._latch.release()
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callable[[Handle], None]) -> None:
        try:
            callback(self)
        except BaseException:  # SystemExit too: the engine outlives a callback
            log.exception("a callback of %r raised", self.name)

    def _want(self) -> None:
        self._wanted = True
        self._heart.ask()

    def _poll(self) -> None:
        now = time.monotonic()
        if self._polled is None:
            self._polled = now
        elif now >= self._polled + _POLLED:
            self._want()

    def _block(self, timeout: float | None) -> None:
        self._heart.check()
        if timeout is None or timeout > _POLLED:
            self._wanted = True
        else:
            self._poll()
        start = time.monotonic()
        deadline = None if timeout is None else start + timeout
        try:
            self._heart.wait_begins()
            while self._callbacks is not None:
                left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
                if self._latch.acquire(timeout=max(0.0, left)):
                    self._latch.release()
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self.name!r} is not done after {timeout:g} s; it goes on")
                self._heart.check()
        finally:
            self._heart.wait_ended(time.monotonic() - start)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

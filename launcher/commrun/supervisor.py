"""Runs a job: feeds events to `Job`, carries out its actions, prints the ranks' output."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections import Counter
from typing import Any

from commrun.environment import Seat, rank_defaults, rank_variables
from commrun.events import (
    Action,
    Announce,
    Begin,
    CommandEnded,
    Dismissed,
    Event,
    MpirunEnded,
    Release,
    Reported,
    Signalled,
    SignalMpirun,
    SignalRanks,
    Tick,
    Vanished,
)
from commrun.job import Job, Stage
from commrun.lines import Screen
from commrun.links import GONE, Message, Switchboard
from commrun.plan import Plan
from commrun.printer import Printer
from commrun.process import Mpirun
from commrun.wire import JSON, WINDOW

_LAST_WORDS = 1.0
_UNPRINTED = 1 << 20


class Supervisor:
    """One job in the making. Single-threaded; `run` blocks until all is over."""

    def __init__(
        self,
        plan: Plan,
        job: Job,
        board: Switchboard,
        mpirun: Mpirun,
        output: tuple[Screen, Printer],
        wake: int,
    ) -> None:
        self._plan = plan
        self._job = job
        self._board = board
        self._mpirun = mpirun
        self._screen, self._printer = output
        self._wake = wake
        self._owed: Counter[int] = Counter()

    def run(self) -> None:
        """Serve until mpirun has ended and all shims have said their last."""
        while not self._over():
            self._step(None)
        deadline = time.monotonic() + _LAST_WORDS
        while self._board.ranks() and time.monotonic() < deadline:
            self._step(deadline)
        self._printer.add(self._screen.close())
        self._listen_to_mpirun()

    def _over(self) -> bool:
        if self._job.stage == Stage.ABANDONED:
            return True
        return self._job.stage >= Stage.RELEASED and self._mpirun.status() is not None

    def _step(self, deadline: float | None) -> None:
        for fd in self._wait(deadline):
            if fd == self._wake:
                for signum in os.read(fd, 64):
                    self._on_signal(signum)
            elif fd == self._mpirun.fd():
                self._listen_to_mpirun()
            else:
                for message in self._board.serve(fd):
                    self._on_message(message)
        now = time.monotonic()
        self._act(self._job.receive(Tick(), now))
        self._printer.add(self._screen.tick(now))
        self._print()

    def _wait(self, deadline: float | None) -> list[int]:
        poller = select.poll()
        self._board.register(poller)
        for fd in (self._wake, self._mpirun.fd()):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        if (fd := self._printer.fd()) is not None:
            poller.register(fd, select.POLLOUT)
        times = [t for t in (deadline, self._job.deadline, self._screen.deadline) if t is not None]
        left = max(0.0, min(times) - time.monotonic()) if times else None
        return [fd for fd, _ in poller.poll(None if left is None else left * 1000 + 1)]

    def _on_signal(self, signum: int) -> None:
        status = self._mpirun.status()
        if signum != signal.SIGCHLD:
            self._receive(Signalled(signum))
        elif status is not None:
            self._receive(MpirunEnded(status))

    def _on_message(self, message: Message) -> None:
        rank, kind, body = message
        if kind == GONE:
            self._receive(Vanished(rank))
        elif kind == JSON:
            self._on_word(rank, json.loads(body))
        else:
            self._owed[rank] += len(body)
            self._printer.add(self._screen.feed(rank, kind, body, time.monotonic()))

    def _on_word(self, rank: int, message: dict[str, Any]) -> None:
        what = message.pop("op")
        if what == "hello":
            self._receive(Reported(Seat(**message)))
        elif what == "started":
            host = self._job.seats[rank].host
            self._printer.note(f"rank {rank} is process {message['pid']} on {host}")
        elif what == "ended":
            tail = tuple(message["tail"])
            self._receive(CommandEnded(rank, message["code"], tail, message["consequence"]))
        elif what == "dismissed":
            self._receive(Dismissed(rank))

    def _receive(self, event: Event) -> None:
        self._act(self._job.receive(event, time.monotonic()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Begin():
                    self._begin()
                case Announce(end):
                    self._printer.note(f"rank {end.rank}: {end.how}")
                    for rank in self._board.ranks():
                        if rank != end.rank:
                            self._board.tell(
                                rank, op="ended", rank=end.rank, host=end.host, how=end.how
                            )
                case SignalRanks(signum):
                    for rank in self._job.running():
                        self._board.tell(rank, op="signal", signum=signum)
                case Release():
                    for rank in self._board.ranks():
                        self._board.tell(rank, op="go")
                case SignalMpirun(signum):
                    self._mpirun.signal(signum)

    def _begin(self) -> None:
        self._board.stop_listening()
        head = self._job.seats[0]
        for rank, seat in sorted(self._job.seats.items()):
            self._board.tell(
                rank,
                op="start",
                argv=self._plan.command,
                env={**self._plan.to_ranks, **rank_variables(seat, self._plan.np, head)},
                defaults=rank_defaults(seat),
                shared_memory=self._plan.shared_memory,
            )

    def _listen_to_mpirun(self) -> None:
        for line in self._mpirun.read().decode(errors="replace").splitlines():
            self._printer.note(f"mpirun: {line}")

    def _print(self) -> None:
        """Print what can be printed, and let shims send more if that was enough."""
        was_open = not self._printer.output_closed
        self._printer.write()
        if was_open and self._printer.output_closed:
            self._receive(Signalled(signal.SIGPIPE))
        if self._printer.waiting > _UNPRINTED:
            return
        for rank, n in self._owed.items():
            if n >= WINDOW // 4:
                self._board.tell(rank, op="credit", n=n)
                self._owed[rank] = 0

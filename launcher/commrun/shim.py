"""Runs between mpirun and one rank's command: `python -I -S shim.py`, standard library only.

It asks commrun what to run, passes on the command's output and end, and stays until commrun lets
it go, so that mpirun never sees a rank fail. Without commrun it kills the command and leaves.
If it is killed itself, its guard does what is left to do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

if __name__ == "__main__":  # found by its path alone; appended, so that it hides no library
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from commrun.command import Command, die_with_parent
from commrun.door import Door
from commrun.ports import claim_port
from commrun.quarters import Quarters
from commrun.wire import JSON, STDERR, WINDOW, Link, connect, unpack

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_ORPHANED = signal.SIGUSR2  # also sent when only the thread that started us ends
_LAST_DRAIN = 1 << 20
_ON_DISMISSAL = 0.5  # mpirun's SIGKILL follows its SIGTERM after a second
_FOR_LEFTOVERS = 1.0
_FAREWELL = 5.0


class Shim:
    """One rank: its link to commrun, its command, its door for the runtime."""

    def __init__(self, link: Link, door: Door, quarters: Quarters, wake: int) -> None:
        self._link = link
        self._door = door
        self._quarters = quarters
        self._wake = wake
        self._command: Command | None = None
        self._credit = WINDOW
        self._kill_at: float | None = None

    def run(self) -> int:
        """Serve until commrun or mpirun ends it. Returns the exit status; leaves no process."""
        try:
            while self._step():
                pass
            self._leave()
            return 0
        except OSError:
            return 1  # commrun is gone
        finally:
            if self._command is not None:
                self._command.clear(0)
            self._tidy_up()

    def _step(self) -> bool:
        """Wait for something and deal with it; False when it is time to leave."""
        going_on = True
        for fd in self._ready():
            if fd == self._link.sock.fileno():
                going_on = self._obey_all() and going_on
            elif fd == self._wake:
                going_on = self._on_signals(os.read(fd, 64)) and going_on
            elif self._command is not None and fd in self._command.pipes:
                self._pass_on(self._command, fd)
            else:
                self._door.serve(fd)
        self._link.flush()
        if self._command is not None and not self._command.ended:
            self._look_after(self._command)
        dismissed = self._kill_at is not None
        return going_on and not (dismissed and (self._command is None or self._command.ended))

    def _ready(self) -> list[int]:
        poller = select.poll()
        poller.register(self._link.sock, select.POLLIN | (select.POLLOUT * bool(self._link.outbox)))
        pipes = self._command.pipes if self._command is not None and self._credit > 0 else ()
        for fd in (self._wake, *self._door.fds(), *pipes):
            poller.register(fd, select.POLLIN)
        wait = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic()) * 1000
        return [fd for fd, _ in poller.poll(wait)]

    def _obey_all(self) -> bool:
        self._link.fill()
        for kind, body in unpack(self._link.inbox):
            if kind == JSON and not self._obey(json.loads(body)):
                return False
        return True

    def _obey(self, message: dict[str, Any]) -> bool:
        what = message.pop("op")
        if what == "start":
            self._start(message)
        elif what == "signal" and self._command is not None:
            self._signal(self._command, message["signum"])
        elif what == "credit":
            self._credit += message["n"]
        elif what == "ended":
            self._door.announce({"event": "ended", **message})
        return bool(what != "go")

    def _start(self, message: dict[str, Any]) -> None:
        env = {**message["defaults"], **self._quarters.env, **message["env"]}
        env["COMMRUN_SHIM"] = self._door.path
        self._quarters.share_memory(env, message["shared_memory"])
        try:
            self._command = Command(message["argv"], env, self._quarters.guard)
        except OSError as exc:
            self._link.send(STDERR, f"commrun: can't start a process: {exc.strerror}\n".encode())
            self._link.tell(op="ended", code=126, tail=[str(exc)], consequence="")
            return
        self._link.tell(op="started", pid=self._command.pid)

    def _signal(self, command: Command, signum: int) -> None:
        command.signal(signum)
        if signum in _ENDING:
            command.signal(signal.SIGCONT)  # one that is stopped could not act on it

    def _pass_on(self, command: Command, fd: int) -> int:
        kind = command.pipes[fd]
        data = command.read(fd)
        if data:
            self._credit -= len(data)
            self._link.send(kind, data)
        return len(data)

    def _on_signals(self, signums: bytes) -> bool:
        """End in time by ourselves if mpirun wants us gone: MPI_Abort, or its own end."""
        if self._kill_at is not None or not (self._quarters.orphaned or signal.SIGTERM in signums):
            return True
        self._kill_at = time.monotonic() + _ON_DISMISSAL
        self._link.tell(op="dismissed")
        if self._command is not None:
            self._signal(self._command, signal.SIGTERM)
        return self._command is not None

    def _look_after(self, command: Command) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            command.signal(signal.SIGKILL)
            self._kill_at += _ON_DISMISSAL
        code = command.poll()
        if code is None:
            return
        self._door.drain()
        self._drain(command)
        self._link.tell(
            op="ended", code=code, tail=command.last_lines(), consequence=self._door.consequence
        )

    def _drain(self, command: Command) -> None:
        """Pass on what is in the pipes, but not for ever: a grandchild may go on writing."""
        for fd in list(command.pipes):
            left = _LAST_DRAIN
            while left > 0 and (n := self._pass_on(command, fd)):
                left -= n

    def _leave(self) -> None:
        if self._command is not None:
            self._command.clear(_FOR_LEFTOVERS)
            self._drain(self._command)
            self._command = None
        self._tidy_up()  # first: with the connection commrun ends, and then nothing may be left
        sock = self._link.sock
        sock.settimeout(_FAREWELL)
        sock.sendall(self._link.outbox)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):  # closed with words unread it would take back what we sent
            pass

    def _tidy_up(self) -> None:
        self._door.close()
        self._quarters.tidy_up()


def main() -> int:
    """Report to commrun and serve. Returns the exit status."""
    wake = _catch_signals()
    die_with_parent(_ORPHANED)
    quarters = Quarters(os.environ)
    addresses = os.environ["COMMRUN_CONNECT"]
    names = os.environ["COMMRUN_RANK_FROM"].split(",")
    rank, local_rank, local_size = (int(os.environ[name]) for name in names)
    try:
        sock = connect(addresses, bytes.fromhex(os.environ["COMMRUN_SECRET"]))
        door = Door(quarters.door_path(addresses, rank))
    except OSError as exc:
        quarters.tidy_up()
        print(f"commrun: rank {rank} can't reach commrun at {addresses}: {exc}", file=sys.stderr)
        return 1
    address = sock.getsockname()[0] if sock.family != socket.AF_UNIX else "127.0.0.1"
    port, _claim = claim_port() if rank == 0 else (0, None)
    link = Link(sock)
    link.tell(
        op="hello", rank=rank, local_rank=local_rank, local_size=local_size,
        host=os.uname().nodename, cores=len(os.sched_getaffinity(0)), address=address, port=port,
    )  # fmt: skip
    return Shim(link, door, quarters, wake).run()


def _catch_signals() -> int:
    """Have the signals for us written to the descriptor returned; ignore what is for others."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM, _ORPHANED):
        signal.signal(signum, lambda *_: None)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    return reader


if __name__ == "__main__":
    raise SystemExit(main())

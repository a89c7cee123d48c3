"""`commrt doctor`."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commrt.cli.bench.machine import Machine
from commrt.cli.doctor.advice import problems
from commrt.cli.doctor.facts import EXTRA, NEEDED, UNLIMITED, Facts, Limits
from commrt.cli.doctor.mpi import Library, Mpirun
from commrt.cli.doctor.report import lines
from commrt.config import Config, LauncherEnv, read_settings, variable_of
from harness import environment, run_command

GOOD = Facts(
    packages=dict.fromkeys((*NEEDED, *EXTRA), "1.0"),
    machine=Machine("a processor", 4, 8 << 30, "6.1", "x86_64"),
    limits=Limits((4 << 30, 3 << 30), (1024, UNLIMITED), 64 << 10, False),
    library=Library("Open MPI v5.0.8", "/lib/libmpi.so.40", ""),
    mpirun=Mpirun("/bin/mpirun", "mpirun (Open MPI) 5.0.8", ""),
    launcher=LauncherEnv("", 0, 1, ""),
    addresses=("127.0.0.1/8", "10.0.0.3/24"),
    settings=read_settings({}),
)
NO_LIBRARY = Library("", "", "cannot load MPI library")
LAUNCHED = LauncherEnv("Open MPI", 1, 2, "/shim")


def doctor(**variables: str) -> subprocess.CompletedProcess[str]:
    plain = {n: v for n, v in environment().items() if not n.startswith(("COMMRT_", "HOROVOD_"))}
    return subprocess.run(
        [sys.executable, "-m", "commrt", "doctor"],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_lists_every_setting_with_value_source_and_meaning() -> None:
    found = doctor(COMMRT_STALL_WARN="5", HOROVOD_FUSION_THRESHOLD="1048576")
    assert found.returncode == 0, found.stdout + found.stderr
    shown = found.stdout.splitlines()
    rows = {line.split()[0]: i for i, line in enumerate(shown) if line.startswith("  COMMRT_")}
    assert list(rows) == [variable_of(f.name) for f in dataclasses.fields(Config)]
    for f in dataclasses.fields(Config):
        assert shown[rows[variable_of(f.name)] + 1].strip() == f.metadata["help"]
    stalls = " ".join(shown[rows["COMMRT_STALL_WARN"]].split())
    assert stalls == "COMMRT_STALL_WARN 5 seconds from COMMRT_STALL_WARN; default: 60 seconds"
    assert "from HOROVOD_FUSION_THRESHOLD; default: auto" in shown[rows["COMMRT_BUCKET"]]
    assert shown[rows["COMMRT_LOG"]].split() == ["COMMRT_LOG", "warning", "default"]


def test_a_setting_that_is_wrong_is_told_and_the_rest_is_still_shown() -> None:
    found = doctor(COMMRT_BUCKETS="1")
    assert found.returncode == 1
    assert "BROKEN: unknown setting COMMRT_BUCKETS='1'; the nearest known one is COMMRT_BUCKET" in (
        found.stdout
    )
    assert "processor" in found.stdout


def test_it_works_without_an_mpi_library(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [environment().get("PYTHONPATH")])])
    alone = doctor(PYTHONPATH=path)
    assert alone.returncode == 0
    assert "only one rank can run: RuntimeError: cannot load MPI library" in alone.stdout
    launched = doctor(PYTHONPATH=path, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    assert launched.returncode == 1
    assert "BROKEN: mpi4py finds no MPI library, so init() will fail" in launched.stdout


def test_it_loads_neither_mpi_nor_torch_into_its_own_process() -> None:
    code = (
        "import sys; from commrt.cli import main; main(['doctor'])\n"
        "assert not {'mpi4py', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=environment(), stdout=subprocess.DEVNULL, check=True
    )


def test_where_all_is_well_there_are_no_problems() -> None:
    assert problems(GOOD) == []
    assert "\nno problems" in list(lines(GOOD, []))


def test_torch_may_be_missing() -> None:
    facts = dataclasses.replace(GOOD, packages={**GOOD.packages, "torch": ""})
    assert problems(facts) == []
    assert any(line.split() == ["torch", "not", "installed"] for line in lines(facts, []))


@pytest.mark.parametrize(
    ("changed", "said", "broken"),
    [
        ({"packages": {**GOOD.packages, "pyzmq": ""}}, "not installed: pyzmq", True),
        ({"settings": "COMMRT_LOG: no"}, "COMMRT_LOG: no", True),
        ({"settings": read_settings({"HOROVOD_AUTOTUNE": "1"})}, "HOROVOD_AUTOTUNE", False),
        ({"library": NO_LIBRARY}, "only one rank can run", False),
        ({"library": NO_LIBRARY, "launcher": LAUNCHED}, "init() will fail", True),
        ({"mpirun": Mpirun("", "", "")}, "commrun can't start", False),
        ({"mpirun": Mpirun("/m", "", "no answer")}, "/m does not work: no answer", False),
        ({"mpirun": Mpirun("/m", "HYDRA build", "")}, "every process would be rank 0", True),
        ({"library": Library("MPICH 4", "/l", "")}, "not that of the MPI library", True),
        ({"launcher": "RANK='one' is no number"}, "RANK='one'", True),
        ({"launcher": LauncherEnv("torchrun", 0, 2, "")}, "torchrun started this", True),
        ({"launcher": LauncherEnv("horovodrun", 0, 2, "")}, "horovodrun started this", True),
        ({"addresses": ("127.0.0.1/8",)}, "all ranks must be on this host", False),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], said: str, broken: bool) -> None:
    (problem,) = problems(dataclasses.replace(GOOD, **changed))
    assert said in problem.text
    assert problem.broken == broken
    assert problem.advice


@pytest.mark.parametrize(
    ("changed", "said", "advice"),
    [
        ({"open_files": (256, 4096)}, "only 256 open files", "`ulimit -n 1024`"),
        ({"open_files": (256, 512)}, "only 256 open files", "`ulimit -n 512`"),
        ({"shared_memory": None}, "/dev/shm is small or missing", "--shm-size"),
        ({"shared_memory": (64 << 20, 64 << 20)}, "/dev/shm is small", "--shm-size"),
        ({"infiniband": True}, "only 64 KiB of memory may be locked", "ulimit -l"),
    ],
)
def test_a_limit_that_is_low_is_named(changed: dict[str, Any], said: str, advice: str) -> None:
    limits = dataclasses.replace(GOOD.limits, **changed)
    (problem,) = problems(dataclasses.replace(GOOD, limits=limits))
    assert said in problem.text
    assert advice in problem.advice
    assert not problem.broken


def test_what_is_broken_comes_first() -> None:
    facts = dataclasses.replace(GOOD, addresses=(), launcher="RANK='one' is no number")
    assert [problem.broken for problem in problems(facts)] == [True, False]
    assert "  BROKEN: RANK='one' is no number" in list(lines(facts, problems(facts)))


def test_a_rank_says_who_started_it() -> None:
    facts = dataclasses.replace(GOOD, launcher=LAUNCHED)
    assert any("Open MPI: rank 1 of 2, under commrun" in line for line in lines(facts, []))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("settings", "moved_by"),
    [
        ({}, "shared memory"),
        ({"COMMRT_SHM": "0"}, r"MPI, recursive doubling .*; COMMRT_SHM=0"),
        (
            {"COMMRT_TRANSPORT": "tcp"},
            r"TCP, .* \(not measured: .* one host\); .*=tcp",
        ),
    ],
)
def test_links_are_shown_by_one_rank(settings: dict[str, str], moved_by: str) -> None:
    result = run_command([sys.executable, "-m", "commrt", "doctor", "--links"], 2, env=settings)
    assert result.status == 0, result.output
    assert list(result.stdout_of) == [0]
    rows = dict(line.strip().split(maxsplit=1) for line in result.stdout_of[0].splitlines()[:2])
    assert re.fullmatch(r"2 on \S+ \(2\)", rows["ranks"])
    assert re.fullmatch(f"moved by {moved_by}", rows["data"])
    assert len(re.findall(r"reduced in \d+\.\d+ ms: bus bandwidth", result.stdout_of[0])) == 4


@pytest.mark.ranks
def test_links_say_why_there_can_be_no_job() -> None:
    result = run_command(
        [sys.executable, "-m", "commrt", "doctor", "--links"], 2, env={"COMMRT_BUCKETS": "1"}
    )
    assert result.status == 1
    assert "commrt doctor: unknown setting COMMRT_BUCKETS='1'" in result.output

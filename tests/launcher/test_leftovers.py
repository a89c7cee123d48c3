"""However a job ends, no process, no shared memory and no directory of it is left.

Others may run at the same time, so only what belongs to the job is looked at.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from harness import end_job, environment, start_command, wait_until

pytestmark = pytest.mark.faults

RANK = """
    import json, os, pathlib, sys, time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    rank, gate = world.rank, pathlib.Path(sys.argv[1])
    assert world.allreduce(1) == 2
    with open("/proc/self/maps") as maps:
        names = {line.split(maxsplit=5)[5].strip() for line in maps if "sm_segment" in line}
    text = json.dumps([os.getpid(), sorted(names)])
    gate.joinpath(f"new{rank}").write_text(text)
    gate.joinpath(f"new{rank}").rename(gate / f"rank{rank}")
    while not gate.joinpath("go").exists():
        time.sleep(0.01)
    exec(sys.argv[2])
    os._exit(0)
"""


@dataclass
class Job:
    """A running one of 2 ranks. `files` is its shared memory, `mark` in all its environments."""

    process: subprocess.Popen
    mark: str
    temporary: Path
    gate: Path
    ranks: list
    files: set

    @property
    def commrun(self):
        return [psutil.Process(self.process.pid)]

    @property
    def shims(self):
        return [rank.parent() for rank in self.ranks]

    @property
    def mpirun(self):
        return [self.shims[0].parent()]

    @property
    def rank(self):
        return self.ranks[1:]

    @property
    def shim(self):
        return self.shims[1:]

    def processes(self):
        found = []
        for process in psutil.process_iter():
            try:
                alive = process.status() != psutil.STATUS_ZOMBIE
                found += [process] if alive and self.mark in process.environ() else []
            except psutil.Error:
                continue
        return found

    def leftovers(self):
        """Return all that is there of it, also while it runs."""
        places = {os.path.dirname(file) for file in self.files} - {"/dev/shm"}
        shared = [path for path in self.files | places if os.path.exists(path)]
        return [*self.processes(), *shared, *self.temporary.iterdir()]

    def go_on(self):
        (self.gate / "go").touch()


@contextmanager
def job(code="", **variables):
    """Start one, wait until its ranks have met; at last end it and see that nothing is left."""
    with tempfile.TemporaryDirectory(prefix="t") as temporary, tempfile.TemporaryDirectory() as top:
        gate, mark = Path(top), f"MARK_{os.path.basename(top)}"
        (gate / "script.py").write_text(textwrap.dedent(RANK))
        command = [sys.executable, str(gate / "script.py"), str(gate), code]
        process = subprocess.Popen(
            [sys.executable, "-m", "commrun", "-np", "2", "--grace", "0.1", *command],
            env={**environment(), "TMPDIR": temporary, mark: "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            wait_until(lambda: len(list(gate.glob("rank*"))) == 2, "both ranks")
            told = [json.loads((gate / f"rank{rank}").read_text()) for rank in range(2)]
            ranks = [psutil.Process(pid) for pid, _ in told]
            files = {name for _, names in told for name in names}
            started = Job(process, mark, Path(temporary), gate, ranks, files)
            assert started.files and any(started.temporary.iterdir())
            yield started
            process.communicate(timeout=60)
            wait_until(lambda: not started.leftovers(), "nothing left")
        except BaseException:
            print(*end_job(process))
            raise


def send(processes, *signums):
    for process in processes:
        for signum in signums:
            process.send_signal(signum)


@pytest.mark.parametrize("whom", ["rank", "shim", "shims", "mpirun", "commrun", "mpirun commrun"])
def test_nothing_is_left_after_a_sigkill_of(whom):
    with job() as running:
        victims = [process for name in whom.split() for process in getattr(running, name)]
        send(victims, signal.SIGKILL)


def test_nothing_is_left_after_a_stop_and_a_sigkill_of_mpirun():
    with job() as running:
        send(running.mpirun, signal.SIGSTOP, signal.SIGKILL)


def test_nothing_is_left_if_mpirun_is_killed_before_any_rank_is_there():
    with tempfile.TemporaryDirectory(prefix="t") as temporary:
        with start_command(["sleep", "600"], 2, env={"TMPDIR": temporary}) as process:
            wait_until(lambda: list(Path(temporary).rglob("ompi.*")), "a directory of mpirun")
            children = psutil.Process(process.pid).children()
            send([child for child in children if "python" not in child.name()], signal.SIGKILL)
            process.communicate(timeout=60)
        assert process.returncode != 0
        wait_until(lambda: not os.listdir(temporary), "nothing left")


def test_nothing_is_left_if_mpirun_is_killed_while_ranks_are_stopped():
    with job() as running:
        send(running.ranks, signal.SIGSTOP)
        send(running.mpirun, signal.SIGKILL)


def test_nothing_is_left_if_the_whole_group_is_killed_as_timeout_does():
    with job() as running:
        os.killpg(running.process.pid, signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal_to_commrun(signum):
    with job() as running:
        send(running.commrun, signum)
    assert running.process.returncode == 128 + signum


def test_nothing_is_left_if_a_rank_fails_and_the_other_is_ended():
    with job("os._exit(3) if rank else time.sleep(600)") as running:
        running.go_on()
    assert running.process.returncode == 3


def test_nothing_is_left_after_mpi_abort():
    with job("world.Abort(7) if rank else time.sleep(600)") as running:
        running.go_on()
    assert running.process.returncode == 7


def test_what_belongs_to_another_job_is_not_touched():
    with job() as other:
        with job() as running:
            send(running.mpirun, signal.SIGKILL)
        assert all(os.path.exists(file) for file in other.files)
        other.go_on()
    assert other.process.returncode == 0


def test_shared_memory_is_where_its_user_wants_it(tmp_path):
    with job(OMPI_MCA_btl_vader_backing_directory=str(tmp_path)) as running:
        assert {os.path.dirname(file) for file in running.files} == {str(tmp_path)}
        running.files.clear()  # not ours to remove: mpirun does at an orderly end
        running.go_on()

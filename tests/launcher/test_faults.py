"""Jobs of real processes in which something goes wrong, made on purpose."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import psutil
import pytest

from harness import end_job, environment, run_command, run_ranks, start_command, wait_until

pytestmark = pytest.mark.faults

KILL_RANK_1 = "if [ $RANK = 1 ]; then kill -9 $$; fi; "


@pytest.fixture
def marked():
    """A variable that marks a job's processes, and TMPDIR; afterwards nothing may be left."""
    mark = f"MARK_{os.getpid()}_{time.monotonic_ns()}"
    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # short, as sockets need it
        yield {mark: "1", "TMPDIR": temporary}
        wait_until(lambda: not processes(mark), "no process left")
        wait_until(lambda: not os.listdir(temporary), "no file left")


def processes(mark, words=()):
    """Return a job's processes, or only those started by an interpreter with these words."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if process.cmdline()[1 : 1 + len(words)] == [*words] else []
        except psutil.Error:
            continue
    return found


def parent_of(process):
    try:
        return process.ppid()
    except psutil.Error:
        return None


def shims(mark):
    """Return the shims without their guards, which are forks of them."""
    both = processes(mark, ("-I", "-S"))
    parents = {process.pid for process in both}
    return [process for process in both if parent_of(process) not in parents]


@contextmanager
def running(command, np, marked, *commrun_args, ready):
    """Start a job, wait until every rank has made its file `ready/RANK`; end it at last."""
    ready.mkdir()
    with start_command(command, np, env=marked, commrun_args=commrun_args) as process:
        try:
            wait_until(lambda: len(os.listdir(ready)) == np, "all ranks")
            yield process
        except BaseException:
            print(*end_job(process))
            raise


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("exit 3", 3, "ended with exit status 3"),
        ("kill -9 $$", 137, "was killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", 139, "was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_the_status_is_that_of_the_rank_that_failed(marked, end, status, how):
    script = f"if [ $RANK = 1 ]; then echo why >&2; {end}; fi; sleep 600"
    result = run_command(["sh", "-c", script], 3, env=marked, commrun_args=["--grace", "0.1"])
    assert result.status == status
    lines = result.report.splitlines()
    assert lines[-4].startswith("commrun: rank 1 on host ")
    assert how in lines[-4]
    assert lines[-2] == "commrun:   | why"
    assert lines[-1] == f"commrun: ranks 0 and 2 ended because of it; exit status {status}"


def test_a_rank_that_leaves_early_with_status_zero_is_no_failure(marked):
    script = """
        import os, time
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            os._exit(0)
        time.sleep(0.5)
        os._exit(0)
    """
    result = run_ranks(script, 2, env=marked)
    assert (result.status, result.report) == (0, "")


def test_the_first_failure_by_cause_gives_the_status(marked, tmp_path):
    """Ranks 0 and 2 fail before rank 1, but say that it is because of another rank."""
    script = f"""
        import json, os, socket, sys, time
        rank = int(os.environ["RANK"])
        gate = {str(tmp_path)!r}
        class PeerLostError(Exception): pass
        if rank == 0:
            link = socket.socket(socket.AF_UNIX)
            link.connect(os.environ["COMMRUN_SHIM"])
            line = json.dumps({{"event": "consequence", "error": "PeerLostError: rank 1"}})
            link.sendall(line.encode() + b"\\n")
            os._exit(4)
        if rank == 2:
            raise PeerLostError("rank 1 is gone")
        link = socket.socket(socket.AF_UNIX)
        link.connect(os.environ["COMMRUN_SHIM"])
        with link.makefile() as events:
            ended = sorted(json.loads(events.readline())["rank"] for _ in range(2))
        assert ended == [0, 2]
        sys.exit(5)
    """
    result = run_ranks(script, 3, env=marked, commrun_args=["--grace", "60"])
    assert result.status == 5
    assert "rank 1 on host" in result.report
    assert "ranks 0 and 2 ended because of it; exit status 5" in result.report


def test_survivors_may_act_during_the_grace(marked, tmp_path):
    script = KILL_RANK_1 + f"sleep 0.5; echo saved > {tmp_path}/$RANK; exit 0"
    result = run_command(["sh", "-c", script], 3, env=marked, commrun_args=["--grace", "60"])
    assert result.status == 137
    assert [(tmp_path / r).read_text() for r in "02"] == ["saved\n"] * 2
    assert result.report.splitlines()[-1] == "commrun: exit status 137"


def test_survivors_of_an_mpi_job_live_on_too(marked, tmp_path):
    script = f"""
        import os, pathlib, signal, time
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.rank
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3)
        pathlib.Path({str(tmp_path)!r}, str(rank)).touch()
        os._exit(0)
    """
    result = run_ranks(script, 3, env=marked, commrun_args=["--grace", "60"])
    assert result.status == 137
    assert {"0", "2"} <= set(os.listdir(tmp_path))


def test_survivors_are_told_who_ended_and_how(marked):
    script = """
        import json, os, socket, sys
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        for _ in range(2):
            link = socket.socket(socket.AF_UNIX)
            link.connect(os.environ["COMMRUN_SHIM"])
            with link.makefile() as events:
                event = json.loads(events.readline())
            print(event["event"], event["rank"], event["how"], bool(event["host"]))
    """
    result = run_ranks(script, 2, env=marked, commrun_args=["--grace", "60"])
    assert result.stdout_of[0] == "ended 1 killed by signal 9 (SIGKILL) True\n" * 2


def test_ranks_that_ignore_sigterm_are_killed(marked):
    script = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)\n"
    script = "import os\nif os.environ['RANK'] == '1': os._exit(3)\n" + script
    result = run_ranks(script, 2, env=marked, commrun_args=["--grace", "0"])
    assert result.status == 3


def test_stopped_ranks_are_ended_too(marked):
    script = "if [ $RANK = 1 ]; then exit 3; fi; kill -STOP $$"
    result = run_command(["sh", "-c", script], 2, env=marked, commrun_args=["--grace", "0.2"])
    assert result.status == 3


def test_mpi_abort_gives_its_status(marked):
    script = """
        import time
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        world.Barrier()
        if world.rank == 1:
            world.Abort(7)
        time.sleep(600)
    """
    result = run_ranks(script, 3, env=marked)
    assert result.status == 7
    assert "rank 1 on host" in result.report


@pytest.mark.parametrize("end", ["exit 0", "exit 3"])
def test_grandchildren_end_with_the_job(marked, end):
    script = f"(trap '' TERM; sleep 600) & sleep 600 & {end}"
    result = run_command(["sh", "-c", script], 2, env=marked)
    assert result.status == int(end[-1])


def trapping(ready, name, what):
    """A shell script that runs `what` on a signal."""
    return f"trap '{what}' {name}; : > {ready}/$RANK; while :; do sleep 0.02; done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_every_rank_and_give_the_status(marked, tmp_path, number):
    ready = tmp_path / "ready"
    script = trapping(ready, number.name[3:], "echo got it; exit 9")
    with running(["sh", "-c", script], 3, marked, ready=ready) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == [f"[{r}] got it" for r in range(3)]
    status = 128 + number
    assert process.returncode == status
    assert f"commrun: ended by signal {status - 128} ({number.name}); exit status {status}\n" in err


def test_user_signals_are_passed_on_and_the_job_goes_on(marked, tmp_path):
    ready = tmp_path / "ready"
    script = trapping(ready, "USR1", "echo got it; exit 0")
    with running(["sh", "-c", script], 2, marked, ready=ready) as process:
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, "commrun: " in err) == (0, False)
    assert sorted(out.splitlines()) == ["[0] got it", "[1] got it"]


def test_a_second_interrupt_kills(marked, tmp_path):
    ready = tmp_path / "ready"
    script = trapping(ready, "INT", "echo got it") + " # and goes on"
    with running(["sh", "-c", script], 1, marked, ready=ready) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "[0] got it\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_signal_during_the_start_ends_the_job(marked):
    for _ in range(3):
        with start_command(["sleep", "600"], 2, env=marked) as process:
            wait_until(lambda: shims(next(iter(marked))), "a shim")
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 143


def test_nothing_survives_a_killed_commrun(marked, tmp_path):
    ready = tmp_path / "ready"
    script = f"trap '' TERM INT HUP; sleep 600 & : > {ready}/$RANK; while :; do sleep 0.02; done"
    with running(["sh", "-c", script], 3, marked, ready=ready) as process:
        process.kill()
        process.communicate(timeout=60)


def test_nothing_survives_a_killed_mpirun(marked, tmp_path):
    ready = tmp_path / "ready"
    script = f": > {ready}/$RANK; sleep 600"
    with running(["sh", "-c", script], 2, marked, ready=ready) as process:
        mpirun = shims(next(iter(marked)))[0].parent()
        mpirun.kill()
        process.communicate(timeout=60)
    assert process.returncode != 0


def test_a_killed_shim_is_a_lost_rank(marked, tmp_path):
    ready = tmp_path / "ready"
    script = f"sleep 600 & : > {ready}/$RANK; exec sleep 600"
    with running(["sh", "-c", script], 2, marked, "--grace", "0.2", ready=ready) as process:
        victim = next(p for p in shims(next(iter(marked))) if p.environ()["PMIX_RANK"] == "1")
        victim.kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1 on host" in err
    assert "was lost, and its shim with it" in err


def test_a_reader_that_leaves_ends_the_job(marked):
    script = "import itertools\nfor i in itertools.count(): print(i)\n"
    words = [sys.executable, "-m", "commrun", "-np", "2", sys.executable, "-c", script]
    process = subprocess.Popen(
        words, env={**environment(), **marked}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=60)
    assert process.returncode == 141


def test_a_reader_that_is_slow_neither_hides_failures_nor_fills_memory(marked, tmp_path):
    """Nobody reads, rank 0 writes without end: still rank 1's failure ends the job."""
    ready = tmp_path / "ready"
    script = f"""
if [ $RANK = 0 ]; then : > {ready}/0; exec yes; fi
: > {ready}/1
while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done
exit 3
"""
    with running(["sh", "-c", script], 2, marked, "--grace", "0.1", ready=ready) as process:
        (tmp_path / "gate").touch()
        wait_until(lambda: not shims(next(iter(marked))), "all shims gone")
        assert psutil.Process(process.pid).memory_info().rss < 200 << 20
        process.communicate(timeout=60)
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("no-such-command", 127, "command not found"),
        ("/no/such/file", 127, "No such file or directory"),
        ("/etc", 126, "Permission denied"),
    ],
)
def test_a_command_that_can_not_start_is_named(marked, name, status, says):
    result = run_command([name], 2, env=marked)
    assert result.status == status
    assert result.stderr_of == dict.fromkeys((0, 1), f"commrun: {name}: {says}\n")


def test_foreign_connections_do_not_disturb_a_job(marked, tmp_path):
    """A rank's own user may reach its shim's socket; garbage there changes nothing."""
    script = """
        import os, socket
        for data in (b"", b"garbage", b'{"event": "consequence"', b"\\0" * 100_000):
            link = socket.socket(socket.AF_UNIX)
            link.connect(os.environ["COMMRUN_SHIM"])
            try:
                link.sendall(data)
            except OSError:
                pass
        print("done")
    """
    result = run_ranks(script, 2, env=marked)
    assert (result.status, result.stdout_of) == (0, {0: "done\n", 1: "done\n"})


def test_the_harness_ends_a_job_that_takes_too_long_and_shows_its_output(marked):
    with pytest.raises(AssertionError, match=r"(?s)no end after.*\[1\] here"):
        run_command(["sh", "-c", "trap '' TERM; echo here; sleep 600"], 2, env=marked, timeout=3)


def test_the_traceback_of_a_rank_is_reported(marked):
    result = run_ranks("import os\nassert os.environ['RANK'] != '1', 'not me'\n", 2, env=marked)
    assert result.status == 1
    assert "commrun:   | AssertionError: not me\n" in result.report
    assert json.dumps(result.stderr_of[1]).count("Traceback") == 1


def test_the_secret_is_nowhere_to_be_seen(marked, tmp_path):
    """Not in a rank's environment, nor on a command line."""
    ready = tmp_path / "ready"
    with running(
        ["sh", "-c", f"env; : > {ready}/$RANK; sleep 600"], 1, marked, "--verbose", ready=ready
    ) as process:
        mark = next(iter(marked))
        secret = shims(mark)[0].environ()["COMMRUN_SECRET"]
        words = [word for p in processes(mark) for word in p.cmdline()]
        out, err = end_job(process)
    assert len(secret) == 64
    assert secret not in "".join([out, err, *words])


def test_a_machine_that_does_not_know_its_own_name_works(marked):
    if os.geteuid() != 0 or subprocess.run(["unshare", "-nu", "true"], check=False).returncode:
        pytest.skip("namespaces are needed")
    words = [sys.executable, "-m", "commrun", "-np", "2", "sh", "-c", "echo $MASTER_ADDR"]
    shell = 'hostname nowhere.invalid; ip link set lo up; exec "$@"'
    done = subprocess.run(
        ["unshare", "-nu", "sh", "-c", shell, "sh", *words],
        env={**environment(), **marked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 127.0.0.1", "[1] 127.0.0.1"]
    with pytest.raises(OSError):
        socket.gethostbyname("nowhere.invalid")

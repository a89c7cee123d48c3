"""Jobs of real processes that go well."""

import os
import socket
import subprocess
import sys

import pytest

from harness import environment, run_command, run_ranks, start_command

pytestmark = pytest.mark.ranks


def commrun(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "commrun", *words],
        env={**environment(), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_any_command_runs_with_its_own_options_and_words():
    result = run_command(["sh", "-c", 'echo "$RANK|$1|$2|$3"', "-np", ":", "", "ä 'q' $x"], 2)
    assert result.status == 0
    assert result.stdout_of == {r: f"{r}|:||ä 'q' $x\n" for r in (0, 1)}
    assert result.report == ""


def test_a_script_without_a_first_line_runs_in_the_shell(tmp_path):
    script = tmp_path / "job"
    script.write_text("echo from $0 $1\n")
    script.chmod(0o755)
    assert run_command([str(script), "x"], 1).stdout_of == {0: f"from {script} x\n"}


def test_torch_finds_its_variables():
    script = """
        import os
        names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS".split()
        print(*(os.environ.get(name) for name in names), os.environ["PYTHONUNBUFFERED"])
        print(os.environ["MASTER_PORT"])
        print([name for name in os.environ if name.startswith("COMMRUN")])
    """
    result = run_ranks(script, 2, env={"OMP_NUM_THREADS": "7", "RANK": "9"})
    lines = [result.stdout_of[r].splitlines() for r in (0, 1)]
    assert [words[0] for words in lines] == [f"{r} 2 {r} 2 127.0.0.1 7 1" for r in (0, 1)]
    assert lines[0][1:] == lines[1][1:]
    assert lines[0][2] == "['COMMRUN_SHIM']"


def test_memory_given_back_in_one_step_is_there_in_the_next():
    script = """
        import ctypes, resource
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        PR_SET_THP_DISABLE = 41
        libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # a huge page is one fault for 512 pages
        def step():
            blocks = [libc.malloc(8 << 20) for _ in range(8)]
            for block in blocks:
                ctypes.memset(block, 1, 8 << 20)
            for block in blocks:
                libc.free(block)
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        before = faults()
        step()
        # A step touches 16384 pages of 4 KiB, each a fault if new; 2000 is room for Python's own.
        print(faults() - before < 2000)
    """
    assert run_ranks(script, 1).stdout_of == {0: "True\n"}
    glibc_defaults = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
    assert run_ranks(script, 1, env=glibc_defaults).stdout_of == {0: "False\n"}


def test_the_port_is_free_and_differs_between_jobs_at_once(tmp_path):
    gate = tmp_path / "gate"
    wait = f"echo $MASTER_PORT; while [ ! -e {gate} ]; do sleep 0.02; done"
    with (
        start_command(["sh", "-c", wait], 2) as one,
        start_command(["sh", "-c", wait], 2) as two,
    ):
        ports = [process.stdout.readline().split()[1] for process in (one, two)]
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", int(ports[0])))
        gate.touch()
        rest = [process.communicate(timeout=60) for process in (one, two)]
    assert ports[0] != ports[1]
    assert [one.returncode, two.returncode] == [0, 0], rest


def test_ranks_meet_in_mpi():
    script = """
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        print(world.allreduce(world.rank + 1), world.size)
    """
    result = run_ranks(script, 3)
    assert result.status == 0
    assert result.stdout_of == dict.fromkeys(range(3), "6 3\n")


def test_ranks_meet_in_torch():
    pytest.importorskip("torch")
    script = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        print(x.item())
        dist.destroy_process_group()
    """
    assert run_ranks(script, 2).stdout_of == {0: "3.0\n", 1: "3.0\n"}


def test_no_line_is_lost_or_torn():
    script = """
        import os, sys
        rank = os.environ["RANK"]
        for i in range(5000):
            print(rank, i, "x" * (i % 97))
            if i % 50 == 0:
                print(rank, i, file=sys.stderr)
    """
    result = run_ranks(script, 4)
    for rank in range(4):
        expected = [f"{rank} {i} {'x' * (i % 97)}" for i in range(5000)]
        assert result.stdout_of[rank].splitlines() == expected
        assert result.stderr_of[rank].splitlines() == [f"{rank} {i}" for i in range(0, 5000, 50)]


def test_large_output_comes_whole_though_it_is_read_late():
    script = "import sys\nfor i in range(300): sys.stdout.write(f'{i:05}' + 'y' * 20_000 + '\\n')\n"
    result = run_ranks(script, 2)
    for rank in range(2):
        lines = result.stdout_of[rank].splitlines()
        assert [line[:5] for line in lines] == [f"{i:05}" for i in range(300)]
        assert {len(line) for line in lines} == {20_005}


def test_a_prompt_shows_on_a_terminal_while_its_rank_waits(tmp_path):
    gate = tmp_path / "gate"
    wait = f"printf 'name? '; while [ ! -e {gate} ]; do sleep 0.02; done; "
    wait += "printf '\\r50%%\\r'; echo end"
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "commrun", "-np", "1", "sh", "-c", wait]
    with subprocess.Popen(words, env=environment(), stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        while not shown.endswith(b"[0] name? "):
            shown += os.read(ours, 4096)
        gate.touch()
        while b"end" not in shown:
            shown += os.read(ours, 4096)
        process.wait(60)
    os.close(ours)
    assert shown == b"[0] name? \r\x1b[K[0] 50%\r\x1b[K[0] end\r\n"


def test_the_last_line_needs_no_end():
    assert run_command(["printf", "a\\nb"], 2).stdout_of == {0: "a\nb\n", 1: "a\nb\n"}


def test_binary_output_is_passed_on():
    data = bytes(range(256)).replace(b"\n", b"")
    script = f"import sys\nsys.stdout.buffer.write({data!r})\n"
    with start_command([sys.executable, "-c", script], 1) as process:
        out = process.stdout.buffer.read()
    assert out == b"[0] " + data + b"\n"


def test_standard_input_is_empty():
    assert run_command(["cat"], 2).status == 0


def test_ranks_get_default_signals_and_a_group_of_their_own():
    script = """
        import os, signal
        assert os.getpgrp() == os.getpid()
        with open("/proc/self/status") as file:
            ignored = next(line for line in file if line.startswith("SigIgn"))
        mine = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
        standard = (1 << 31) - 1  # 32 and 33 are the C library's own
        print(int(ignored.split()[1], 16) & standard & ~mine)
        print(sorted(os.listdir("/proc/self/fd")))
    """
    result = run_ranks(script, 1)
    assert result.stdout_of[0] == "0\n['0', '1', '2', '3']\n"


def test_a_job_inside_a_rank_is_a_job_of_its_own():
    script = """
        import subprocess, sys
        inner = ["-m", "commrun", "-np", "2", "sh", "-c", "echo $RANK of $WORLD_SIZE"]
        out = subprocess.check_output([sys.executable, *inner], text=True)
        print(*sorted(out.splitlines()), sep="; ")
    """
    inner = "[0] 0 of 2; [1] 1 of 2\n"
    assert run_ranks(script, 1).stdout_of == {0: inner}


def test_a_dry_run_prints_and_runs_nothing(tmp_path):
    done = commrun("--dry-run", "-np", "2", "touch", str(tmp_path / "x"))
    assert done.returncode == 0
    assert " -np 2 " in done.stdout
    assert not (tmp_path / "x").exists()


def test_hosts_that_are_this_one_need_no_remote_start():
    done = commrun("-H", "localhost:1,127.0.0.1:1", "sh", "-c", "echo $RANK")
    assert sorted(done.stdout.splitlines()) == ["[0] 0", "[1] 1"]
    assert done.returncode == 0


def test_verbose_names_processes_and_ends():
    done = commrun("--verbose", "-np", "1", "true")
    assert "commrun: rank 0 is process " in done.stderr
    assert "commrun: rank 0: exit status 0\n" in done.stderr


def test_variables_can_be_given():
    assert commrun("-np", "1", "-x", "A=b c", "sh", "-c", 'echo "$A"').stdout == "[0] b c\n"


@pytest.mark.parametrize("given", ["/var/tmp", ""])
def test_ranks_get_the_temporary_directory_of_their_user(given):
    """And not that of mpirun, which is commrun's own."""
    result = run_command(["sh", "-c", "echo ${TMPDIR-unset}"], 1, env={"TMPDIR": given})
    assert result.stdout_of == {0: f"{given or 'unset'}\n"}


def test_nothing_is_left_behind(tmp_path):
    result = run_command(["sh", "-c", 'ls "$TMPDIR"'], 2, env={"TMPDIR": str(tmp_path)})
    assert result.status == 0
    assert os.listdir(tmp_path) == []


def test_a_soft_limit_of_open_files_does_not_limit_the_ranks():
    limited = 'ulimit -Sn 128; exec "$@"'
    words = ["-m", "commrun", "-np", "24", "sh", "-c", "ulimit -Sn"]
    done = subprocess.run(
        ["sh", "-c", limited, "sh", sys.executable, *words],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f" {256 + 16 * 24}\n") == 24


def test_a_hard_limit_of_open_files_is_named():
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-m", "commrun", "-np", "24",
         "true"],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode not in (0, 2)
    assert "commrun:   mpirun ran out of open files" in done.stderr


def test_an_mpirun_that_fails_is_shown_with_its_status():
    done = commrun("-np", "2", "--mpi-args=--no-such-option", "true")
    assert done.returncode not in (0, 2)
    assert "commrun: ranks 0 and 1 did not start" in done.stderr
    assert "no-such-option" in done.stderr

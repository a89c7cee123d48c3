"""Starting, ending and starting again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment, run_ranks

pytestmark = pytest.mark.ranks

OK = ["ok\n", "ok\n"]


def outputs(script: str, np: int = 2, **options: object) -> list[str]:
    result = run_ranks(script, np, **options)  # type: ignore[arg-type]
    assert result.status == 0
    return [result.stdout_of.get(r, "") for r in range(np)]


def alone(source: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_a_launcher_it_is_one_rank_without_mpi() -> None:
    done = alone(
        "import commrt, sys, numpy as np; commrt.init(); assert commrt.size() == 1;"
        "print(commrt.allreduce(np.ones(3)).tolist(), 'mpi4py.MPI' in sys.modules)"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[1.0, 1.0, 1.0] False\n", "", 0)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun that belongs to"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "commrun -np 2"),
    ],
)
def test_a_size_that_is_not_mpis_says_how_to_mend_it(
    env: dict[str, str], words: str, tmp_path: Path
) -> None:
    env = {**env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI without mpirun leaves its shared memory behind, finalized or not.
    env["OMPI_MCA_btl_sm_backing_directory"] = str(tmp_path)
    done = alone("import commrt; commrt.init()", **env)
    assert "InitError" in done.stderr and words in done.stderr
    assert done.returncode == 1


def test_an_unknown_setting_names_the_nearest() -> None:
    done = alone("import commrt; commrt.init()", COMMRT_STALL_WRAN="5")
    assert "COMMRT_STALL_WARN" in done.stderr and "InitError" in done.stderr


DIFFERENT = """
    import os, pytest, commrt
    import commrt.engine.bootstrap as bootstrap
    rank = int(os.environ["RANK"])

    os.environ["COMMRT_BUCKET"] = ["4MiB", "8MiB"][rank]
    with pytest.raises(commrt.InitError, match="COMMRT_BUCKET differs .*4194304.*8388608"):
        commrt.init()
    del os.environ["COMMRT_BUCKET"]

    version, bootstrap.__version__ = bootstrap.__version__, f"9.{rank}"
    with pytest.raises(commrt.InitError, match="versions differ: rank 0 .*9.0.*rank 1 .*9.1"):
        commrt.init()
    bootstrap.__version__ = version

    with pytest.raises(commrt.InitError, match="process_sets differ"):
        commrt.init(process_sets=[[rank]])
    assert not commrt.is_initialized()

    commrt.init()  # a failed init may be tried again
    assert commrt.allreduce(1.0) == 1.0
    print("ok", flush=True)
"""


def test_ranks_that_differ_are_told_what_differs_and_may_try_again() -> None:
    assert outputs(DIFFERENT) == OK


UNEVEN = """
    import pytest, commrt, os
    if os.environ["RANK"] == "1":
        with pytest.raises(commrt.InitError, match="without being in that list"):
            commrt.init(comm=[0])
    commrt.init()
    assert commrt.allreduce(1.0) == 1.0
    print("ok", flush=True)
"""


def test_a_rank_that_needed_another_try_meets_the_others_all_the_same() -> None:
    assert outputs(UNEVEN) == OK


AGAIN = """
    import gc, os, threading
    import numpy as np
    import commrt

    def fds():
        return len(os.listdir("/proc/self/fd"))

    for i in range(20):
        commrt.init(process_sets=[commrt.ProcessSet([i % 2])])
        commrt.init()  # idempotent
        assert commrt.allreduce(np.full(5, i)).tolist() == [i] * 5
        waiting = commrt.allreduce_async(np.ones(3), name="last")
        commrt.shutdown()
        commrt.shutdown()
        assert waiting.wait().tolist() == [1.0] * 3  # shutdown lets outstanding work finish
        try:
            commrt.allreduce(1.0)
        except commrt.InitError:
            pass
        else:
            raise AssertionError("an operation after shutdown must fail")
        if i == 1:
            gc.collect()
            before = fds()
    gc.collect()
    assert fds() <= before, (before, fds())
    assert threading.active_count() == 1
    print("ok", flush=True)
"""


def test_twenty_inits_in_one_process_leave_nothing() -> None:
    assert outputs(AGAIN, timeout=110) == OK


ENDS = """
    import commrt
    for i in range(4):
        commrt.init()
        for k in range(20):
            handle = commrt.allreduce_async(float(k))
        assert handle.wait() == 19.0
        if i < 3:
            commrt.shutdown()
"""


def test_a_script_that_simply_ends_after_another_init_ends_well() -> None:
    for _ in range(3):
        result = run_ranks(ENDS, 2)
        assert (result.status, result.report) == (0, "")


MPI_FIRST = """
    from mpi4py import MPI
    import numpy as np
    import commrt
    comm = MPI.COMM_WORLD.Dup()
    commrt.init(comm=comm)
    handle = commrt.allreduce_async(np.ones(100_000))
    comm.Barrier()
    assert handle.wait()[0] == 1.0
    commrt.shutdown()
    commrt.init(comm=[1, 0])
    assert commrt.rank() == 1 - MPI.COMM_WORLD.rank
    print("ok", flush=True)
"""


def test_mpi4py_may_be_imported_and_used_first() -> None:
    assert outputs(MPI_FIRST) == OK


FORK = """
    import os, sys, time
    import numpy as np
    import commrt
    commrt.init()
    before = commrt.allreduce(1.0)
    handle = commrt.allreduce_async(1.0, name="open") if os.environ["RANK"] == "0" else None
    pid = os.fork()
    if pid == 0:
        try:
            assert commrt.rank() == int(os.environ["RANK"])
            commrt.allreduce(1.0)
        except commrt.ShutdownError as exc:
            assert "forked from rank" in str(exc)
            try:
                handle and handle.wait()
            except commrt.ShutdownError:
                pass
            else:
                assert handle is None
            sys.exit(0)  # runs the exit handlers, which must leave the parent's runtime alone
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    (handle or commrt.allreduce_async(1.0, name="open")).wait()
    assert commrt.allreduce(np.ones(100_000))[0] == 1.0
    print("ok", flush=True)
"""


def test_a_forked_child_gets_a_clear_error_and_does_no_harm() -> None:
    assert outputs(FORK) == OK


OFFLINE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
assert [name for _, name in socket.if_nameindex()] == ["lo"]
socket.sethostname("nowhere")
os.execv(sys.executable, [sys.executable, "-m", "commrun", "-np", "2", sys.executable, "-c", '''
import commrt, socket
commrt.init()
assert socket.gethostname() == "nowhere"
assert commrt.allreduce(float(commrt.rank())) == 0.5
print("ok")
'''])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux's unshare is missing")
def test_a_machine_that_is_offline_and_cannot_resolve_its_name_works() -> None:
    done = subprocess.run(
        ["unshare", "--net", "--uts", sys.executable, "-c", OFFLINE],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.count("ok"), done.returncode) == (2, 0), done.stderr


def test_reductions_may_be_kept_from_moving_anything() -> None:
    script = """
        import numpy as np, commrt
        commrt.init()
        r = commrt.rank()
        print(commrt.allreduce(np.array([1.0, 2.0]) * (r + 1)).tolist(),
              commrt.reducescatter(np.array([1.0, 2.0]), op=commrt.Sum).tolist(),
              commrt.allgather(np.array([r])).tolist())
    """
    found = outputs(script, env={"COMMRT_TRANSPORT": "none"})
    assert found == ["[0.5, 1.0] [1.0] [0, 1]\n", "[1.0, 2.0] [2.0] [0, 1]\n"]


AFFINITY = """
    import os, threading
    import numpy as np
    import commrt
    before = os.sched_getaffinity(0)
    commrt.init()
    commrt.allreduce(np.ones(100_000))
    [engine] = [t for t in threading.enumerate() if t.name == "commrt"]
    print(*os.sched_getaffinity(engine.native_id), os.sched_getaffinity(0) == before)
"""


def test_the_background_thread_stays_on_the_core_of_its_rank() -> None:
    cores = sorted(os.sched_getaffinity(0))
    wanted = [cores[-1], cores[0], cores[0]]
    result = run_ranks(AFFINITY, 2, env={"COMMRT_AFFINITY": ",".join(map(str, wanted))})
    assert result.stdout_of == {0: f"{wanted[0]} True\n", 1: f"{wanted[1]} True\n"}


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        ("0", r"COMMRT_AFFINITY names 1 core, but \S+ has 2 ranks: name one for each"),
        ("99999,99999", r"background thread of rank \d can't run on core 99999; this process may"),
        ("x,1", "COMMRT_AFFINITY: 'x' is not a whole number"),
    ],
)
def test_cores_that_can_not_be_had_are_an_error(cores: str, said: str) -> None:
    result = run_ranks(AFFINITY, 2, env={"COMMRT_AFFINITY": cores})
    assert result.status != 0
    assert re.search(said, result.output), result.output

"""Golden command lines and environments."""

import shlex
from types import MappingProxyType

import pytest

from commrun.environment import (
    Seat,
    Surroundings,
    forwarded,
    inherited,
    rank_defaults,
    rank_variables,
)
from commrun.flavours import choose
from commrun.plan import SHIM, describe, make_plan
from commrun.spec import JobSpec, UsageError

V4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
V5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPI5 = "--mca btl_sm_eager_limit 65536"
CARRIED = "-x COMMRUN_CONNECT -x COMMRUN_SECRET -x COMMRUN_RANK_FROM"
PLACED = "--map-by slot --oversubscribe --bind-to none --mca osc '^ucx'"


def around(root=True, cores=4, **environ):
    variables = {"PATH": "/usr/bin:/bin", **environ}
    return Surroundings(MappingProxyType(variables), root, cores, "here", "/venv/bin/python", "")


def plan(spec, version=V5, where=None):
    where = where or around()
    return make_plan(spec, where, "/venv/bin/mpirun", choose("/venv/bin/mpirun", version))


@pytest.mark.parametrize(
    ("version", "asked", "words"),
    [
        (V5, {"np": 2}, f"-np 2 {PLACED} {MPI5}"),
        (V4, {"np": 2}, f"-np 2 {PLACED}"),
        (V5, {"hosts": "localhost:3,here:1"}, f"-np 4 {PLACED} {MPI5}"),
        (V5, {"np": 5}, f"-np 5 {PLACED} {MPI5} --mca mpi_yield_when_idle 1"),
        (V4, {"np": 5}, f"-np 5 {PLACED} --mca mpi_yield_when_idle 1"),
        (V5, {"hosts": "a:2,b:2"}, f"-np 4 --host a:2,b:2 {PLACED} {MPI5} {CARRIED}"),
        (V4, {"hosts": "a:2,b:2"}, f"-np 4 --host a:2,b:2 {PLACED} {CARRIED}"),
        (V5, {"hosts": "a:2,b:2", "np": 3}, f"-np 3 --host a:2,b:1 {PLACED} {MPI5} {CARRIED}"),
        (
            V5,
            {"hosts": "a:1,b", "np": 4, "mpi_args": ("--mca", "btl", "tcp,self")},
            f"-np 4 --host a:2,b:2 {PLACED} {MPI5} --mca mpi_yield_when_idle 1 {CARRIED} "
            "--mca btl tcp,self",
        ),
    ],
)
def test_mpirun_is_started_as(version, asked, words):
    made = plan(JobSpec(("train", "--lr", "1"), **asked), version)
    assert shlex.join(made.argv) == f"/venv/bin/mpirun {words} /venv/bin/python -I -S {SHIM}"
    assert made.command == ("train", "--lr", "1")


def test_root_gets_both_variables_and_others_none():
    assert plan(JobSpec(("x",), np=1)).added == {
        "PATH": "/venv/bin:/usr/bin:/bin",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "COMMRUN_RANK_FROM": "OMPI_COMM_WORLD_RANK,OMPI_COMM_WORLD_LOCAL_RANK,"
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    }
    user = plan(JobSpec(("x",), np=1), where=around(root=False))
    assert not [name for name in user.added if "ROOT" in name]


def test_crowded_hosts_are_noticed():
    assert plan(JobSpec(("x",), np=4)).notices == ()
    (notice,) = plan(JobSpec(("x",), np=5)).notices
    assert notice.startswith("5 ranks on 4 cores of here")
    notices = plan(JobSpec(("x",), np=5, hosts="a:1,b:3")).notices
    assert [notice.partition(":")[0] for notice in notices] == ["2 ranks on 1 slots of a"]


def test_ranks_on_other_hosts_get_what_is_on_the_list():
    where = around(PYTHONPATH="/p", NCCL_DEBUG="INFO", HOME="/root", OMPI_MCA_btl="tcp")
    made = plan(JobSpec(("x",), hosts="a:1,b:1", forward=("A=b=c", "HOME")), where=where)
    assert made.to_ranks == {
        "PATH": "/venv/bin:/usr/bin:/bin",
        "PYTHONPATH": "/p",
        "NCCL_DEBUG": "INFO",
        "A": "b=c",
        "HOME": "/root",
    }
    assert plan(JobSpec(("x",), np=2), where=where).to_ranks == {}
    assert forwarded({}, ["A="], remote=False) == {"A": ""}


def test_forwarding_what_is_not_set_is_an_error():
    with pytest.raises(UsageError, match="-x NOPE"):
        plan(JobSpec(("x",), np=1, forward=("NOPE",)))


@pytest.mark.parametrize(
    "version",
    [
        "HYDRA build details:\n    Version: 4.1\n",
        "mpirun (Open MPI) 3.1.0",
        "",
        "Intel(R) MPI Library",
    ],
)
def test_another_launcher_is_refused_by_name(version):
    with pytest.raises(UsageError, match="/venv/bin/mpirun is not Open MPI 4 or 5"):
        plan(JobSpec(("x",), np=1), version)


def test_open_mpi_is_known_by_either_of_its_names():
    assert choose("mpirun", "orterun (OpenRTE) 4.1.4\n").name == "Open MPI 4.1.4"
    assert choose("mpirun", V5).name == "Open MPI 5.0.11"


def test_torch_variables():
    head = Seat(0, 0, 2, "a", 8, "10.0.0.1", 20123)
    seat = Seat(3, 1, 2, "b", 8, "10.0.0.2", 0)
    assert rank_variables(seat, 4, head) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20123",
    }


@pytest.mark.parametrize(("cores", "local", "threads"), [(8, 2, "4"), (2, 4, "1"), (8, 1, None)])
def test_threads_share_the_cores_of_a_host(cores, local, threads):
    defaults = rank_defaults(Seat(0, 0, local, "a", cores, "", 0))
    assert defaults.get("OMP_NUM_THREADS") == threads
    assert defaults["PYTHONUNBUFFERED"] == "1"


def test_malloc_keeps_the_gradients_of_a_step():
    defaults = rank_defaults(Seat(0, 0, 2, "a", 8, "", 0))
    assert defaults["MALLOC_TRIM_THRESHOLD_"] == "1073741824"
    assert defaults["MALLOC_MMAP_THRESHOLD_"] == "33554432"


def test_a_job_inside_a_rank_does_not_inherit_the_outer_job():
    outer = {
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "PRTE_LAUNCHED": "1",
        "COMMRUN_SHIM": "/x",
        "OMPI_MCA_ess_base_jobid": "1",
        "OMPI_MCA_btl_sm_backing_directory": "/dev/shm/commrun-0123456789abcdef",
        "OMPI_MCA_btl": "tcp",
        "HOME": "/root",
    }
    assert inherited(outer) == {"OMPI_MCA_btl": "tcp", "HOME": "/root"}
    assert inherited({"PRTE_MCA_x": "1", "OMPI_x": "1"}) == {"PRTE_MCA_x": "1", "OMPI_x": "1"}


def test_a_dry_run_shows_everything_but_the_secret():
    text = describe(plan(JobSpec(("python", "a b.py"), np=2)), cores=4)
    assert "/venv/bin/mpirun -np 2 " in text
    assert "OMPI_ALLOW_RUN_AS_ROOT=1\n" in text
    assert "COMMRUN_SECRET=<secret of the job>\n" in text
    assert "TMPDIR=<private directory>\n" in text
    assert "OMPI_MCA_btl_sm_backing_directory=<private directory in /dev/shm>\n" in text
    assert "WORLD_SIZE=2\n" in text
    assert "OMP_NUM_THREADS=2\n" in text
    assert text.endswith("\npython 'a b.py'")

"""The migration page leaves out no name that a script may use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commrt.horovod_env import translate

PAGE = Path(__file__).resolve().parents[1] / "docs" / "migration.md"

NAMES = """
    Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product
    Sum SyncBatchNorm add_process_set allgather allgather_async allgather_object allreduce
    allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast
    broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state
    broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built elastic
    global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async
    grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_
    grouped_reducescatter grouped_reducescatter_async init is_homogeneous is_initialized join
    local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built poll rank
    reducescatter reducescatter_async remove_process_set rocm_built run shutdown size
    sparse_allreduce_async start_timeline stop_timeline synchronize
"""
"""Of `horovod.torch` 0.28."""

OPTIONS = """
    -H -cb -hostfile -i -np -p -prefix-timestamp -v --autotune --autotune-bayes-opt-max-samples
    --autotune-gaussian-process-noise --autotune-log-file --autotune-steps-per-sample
    --autotune-warmup-samples --binding-args --blacklist-cooldown-range --cache-capacity
    --check-build --config-file --cycle-time-ms --disable-cache --elastic-timeout
    --fusion-threshold-mb --gloo --gloo-timeout-seconds --hierarchical-allgather
    --hierarchical-allreduce --host-discovery-script --hostfile --hosts --jsrun --log-level
    --log-without-timestamp --max-np --min-np --mpi --mpi-args --mpi-threads-disable
    --network-interface --network-interfaces --no-stall-check --num-nccl-streams --num-proc
    --output-filename --prefix-output-with-timestamp --reset-limit --slots-per-host
    --ssh-identity-file --ssh-port --stall-check-shutdown-time-seconds
    --stall-check-warning-time-seconds --start-timeout --tcp --thread-affinity
    --timeline-filename --timeline-mark-cycles --torus-allreduce --verbose --version
"""
"""Of `horovodrun` 0.28."""

VARIABLES = """
    ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_LOG BATCH_D2D_MEMCOPIES CACHE_CAPACITY CONTROLLER
    CPU_OPERATIONS CYCLE_TIME DISABLE_GROUP_FUSION DISABLE_NVTX_RANGES DYNAMIC_PROCESS_SETS ELASTIC
    ELASTIC_TIMEOUT ENABLE_ASYNC_COMPLETION FUSION_THRESHOLD GLOO_TIMEOUT_SECONDS
    HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE LOG_HIDE_TIME LOG_LEVEL MPI_THREADS_DISABLE
    NUM_NCCL_STREAMS STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS
    START_TIMEOUT THREAD_AFFINITY TIMELINE TIMELINE_MARK_CYCLES TORUS_ALLREDUCE
"""

BYTEPS = """
    BYTEPS_ENABLE_ASYNC BYTEPS_PARTITION_BYTES DistributedOptimizer broadcast_optimizer_state
    broadcast_parameters declare local_rank local_size poll push_pull push_pull_async
    push_pull_async_inplace push_pull_inplace resume shutdown suspend synchronize
"""


def _words(title: str) -> set[str]:
    """Return the words in code style of the tables of one chapter."""
    chapters = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    chapter = next(part for part in chapters if part.startswith(title))
    rows = [line for line in chapter.splitlines() if line.startswith("|")]
    return set(re.findall(r"[-\w.]+", " ".join(re.findall(r"`([^`]+)`", "\n".join(rows)))))


@pytest.mark.parametrize("table", [NAMES, OPTIONS], ids=["names", "options"])
def test_every_name_of_horovod_has_its_line(table: str) -> None:
    said = {word.partition(".")[0] for word in _words("From Horovod")}
    assert [word for word in table.split() if word not in said] == []


def test_every_variable_of_horovod_has_its_line() -> None:
    said = _words("From Horovod")
    assert [name for name in VARIABLES.split() if f"HOROVOD_{name}" not in said] == []


def test_the_variables_said_to_have_no_effect_are_those_that_have_none() -> None:
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("| `HOROVOD_")]
    said = [name for row in rows if "no effect" in row for name in re.findall(r"HOROVOD_\w+", row)]
    _, ignored = translate({f"HOROVOD_{name}": "1" for name in VARIABLES.split()})
    assert sorted(said) == ignored


def test_every_name_of_byteps_has_its_line() -> None:
    said = _words("From BytePS")
    assert [word for word in BYTEPS.split() if word not in said] == []

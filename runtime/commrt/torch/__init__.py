"""commrt for PyTorch: takes the place of `horovod.torch`."""

from __future__ import annotations

from typing import Any

from commrt.api import (
    Stats,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
from commrt.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from commrt.engine.handle import Handle
from commrt.errors import (
    ArgumentError,
    CommError,
    DuplicateNameError,
    EngineError,
    InitError,
    MismatchError,
    PeerLostError,
    RemoteError,
    ShutdownError,
    StallError,
)
from commrt.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    poll,
    synchronize,
)
from commrt.process_sets import ProcessSet
from commrt.running import run
from commrt.torch.buffers import average_buffers, broadcast_buffers
from commrt.torch.compression import Compression
from commrt.torch.ddp import ddp_hook
from commrt.torch.functions import broadcast_optimizer_state, broadcast_parameters
from commrt.torch.guards import check_replicas
from commrt.torch.movements import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    join,
)
from commrt.torch.optimizer import DistributedOptimizer
from commrt.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from commrt.torch.sparse import sparse_allreduce_async
from commrt.torch.sync_batch_norm import SyncBatchNorm

HorovodInternalError = CommError

__all__ = [
    "Adasum", "ArgumentError", "Average", "CommError", "Compression", "DistributedOptimizer",
    "DuplicateNameError", "EngineError", "Handle", "HorovodInternalError", "InitError", "Max",
    "Min", "MismatchError", "PeerLostError", "ProcessSet", "Product", "RemoteError",
    "ShutdownError", "StallError", "Stats", "Sum", "SyncBatchNorm", "add_process_set",
    "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "average_buffers",
    "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_buffers", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "ccl_built", "check_replicas", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "ddp_hook", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter", "grouped_reducescatter_async", "init", "is_homogeneous",
    "is_initialized", "join", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "poll", "rank", "reducescatter",
    "reducescatter_async", "remove_process_set", "rocm_built", "run", "shutdown", "size",
    "sparse_allreduce_async", "start_timeline", "stats", "stop_timeline", "synchronize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise AttributeError(
            "commrt.torch.elastic does not exist yet: the ranks of a job are those it starts with. "
            "Save checkpoints, and start the job again after a failure"
        )
    raise AttributeError(f"module 'commrt.torch' has no attribute {name!r}")

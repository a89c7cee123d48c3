"""commrt for PyTorch: takes the place of `horovod.torch`."""

from __future__ import annotations

from commrt.api import (
    Average,
    Stats,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    poll,
    rank,
    shutdown,
    size,
    stats,
    synchronize,
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
from commrt.process_sets import ProcessSet
from commrt.torch.compression import Compression
from commrt.torch.functions import broadcast_optimizer_state, broadcast_parameters
from commrt.torch.ops import (
    allgather,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    grouped_allreduce,
)
from commrt.torch.optimizer import DistributedOptimizer

__all__ = [
    "ArgumentError", "Average", "CommError", "Compression", "DistributedOptimizer",
    "DuplicateNameError", "EngineError", "Handle", "InitError", "MismatchError", "PeerLostError",
    "ProcessSet", "RemoteError", "ShutdownError", "StallError", "Stats", "Sum", "allgather",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "barrier",
    "broadcast", "broadcast_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "cross_rank", "cross_size", "global_process_set", "grouped_allreduce",
    "init", "is_initialized", "local_rank", "local_size", "poll", "rank", "shutdown", "size",
    "stats", "synchronize",
]  # fmt: skip

"""commrt: a communication runtime for data-parallel deep learning.

Everything here is loaded on first use, so that `import commrt` costs nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from commrt.version import __version__

if sys.platform != "linux":
    raise ImportError(f"commrt runs on Linux only, not on {sys.platform}")

if TYPE_CHECKING:
    from commrt.api import (
        Stats as Stats,
        add_process_set as add_process_set,
        cross_rank as cross_rank,
        cross_size as cross_size,
        global_process_set as global_process_set,
        init as init,
        is_homogeneous as is_homogeneous,
        is_initialized as is_initialized,
        local_rank as local_rank,
        local_size as local_size,
        rank as rank,
        remove_process_set as remove_process_set,
        shutdown as shutdown,
        size as size,
        start_timeline as start_timeline,
        stats as stats,
        stop_timeline as stop_timeline,
    )
    from commrt.capabilities import (
        ccl_built as ccl_built,
        cuda_built as cuda_built,
        ddl_built as ddl_built,
        gloo_built as gloo_built,
        gloo_enabled as gloo_enabled,
        mpi_built as mpi_built,
        mpi_enabled as mpi_enabled,
        mpi_threads_supported as mpi_threads_supported,
        nccl_built as nccl_built,
        rocm_built as rocm_built,
    )
    from commrt.engine.handle import Handle as Handle
    from commrt.errors import (
        ArgumentError as ArgumentError,
        CommError as CommError,
        DuplicateNameError as DuplicateNameError,
        EngineError as EngineError,
        InitError as InitError,
        MismatchError as MismatchError,
        PeerLostError as PeerLostError,
        RemoteError as RemoteError,
        ShutdownError as ShutdownError,
        StallError as StallError,
    )
    from commrt.operations import (
        Adasum as Adasum,
        Average as Average,
        Max as Max,
        Min as Min,
        Product as Product,
        Sum as Sum,
        allgather as allgather,
        allgather_async as allgather_async,
        allgather_object as allgather_object,
        allreduce as allreduce,
        allreduce_ as allreduce_,
        allreduce_async as allreduce_async,
        allreduce_async_ as allreduce_async_,
        alltoall as alltoall,
        alltoall_async as alltoall_async,
        barrier as barrier,
        broadcast as broadcast,
        broadcast_ as broadcast_,
        broadcast_async as broadcast_async,
        broadcast_async_ as broadcast_async_,
        broadcast_object as broadcast_object,
        grouped_allgather as grouped_allgather,
        grouped_allgather_async as grouped_allgather_async,
        grouped_allreduce as grouped_allreduce,
        grouped_allreduce_ as grouped_allreduce_,
        grouped_allreduce_async as grouped_allreduce_async,
        grouped_allreduce_async_ as grouped_allreduce_async_,
        grouped_reducescatter as grouped_reducescatter,
        grouped_reducescatter_async as grouped_reducescatter_async,
        join as join,
        poll as poll,
        reducescatter as reducescatter,
        reducescatter_async as reducescatter_async,
        synchronize as synchronize,
        zeros as zeros,
    )
    from commrt.process_sets import ProcessSet as ProcessSet
    from commrt.running import run as run

_API = (
    "Stats",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
)
_FLAGS = (
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
)
_ERRORS = (
    "ArgumentError",
    "CommError",
    "DuplicateNameError",
    "EngineError",
    "InitError",
    "MismatchError",
    "PeerLostError",
    "RemoteError",
    "ShutdownError",
    "StallError",
)
_OPERATIONS = (
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
    "zeros",
)
_HOME = {
    **dict.fromkeys(_API, "commrt.api"),
    **dict.fromkeys(_ERRORS, "commrt.errors"),
    **dict.fromkeys(_FLAGS, "commrt.capabilities"),
    **dict.fromkeys(_OPERATIONS, "commrt.operations"),
    "ProcessSet": "commrt.process_sets",
    "Handle": "commrt.engine.handle",
    "run": "commrt.running",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'commrt' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

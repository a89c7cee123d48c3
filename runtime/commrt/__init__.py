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
        Average,
        Stats,
        Sum,
        allgather,
        allgather_object,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        barrier,
        broadcast,
        broadcast_,
        broadcast_object,
        cross_rank,
        cross_size,
        global_process_set,
        grouped_allreduce,
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

_API = (
    "Average",
    "Stats",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "stats",
    "synchronize",
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
_HOME = {
    **dict.fromkeys(_API, "commrt.api"),
    **dict.fromkeys(_ERRORS, "commrt.errors"),
    "ProcessSet": "commrt.process_sets",
    "Handle": "commrt.engine.handle",
}

__all__ = [
    "ArgumentError",
    "Average",
    "CommError",
    "DuplicateNameError",
    "EngineError",
    "Handle",
    "InitError",
    "MismatchError",
    "PeerLostError",
    "ProcessSet",
    "RemoteError",
    "ShutdownError",
    "StallError",
    "Stats",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "stats",
    "synchronize",
]


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

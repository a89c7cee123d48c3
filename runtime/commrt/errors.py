"""Every error the runtime raises. All derive from `CommError`; `TimeoutError` is Python's own."""

from __future__ import annotations

from collections.abc import Sequence


class CommError(RuntimeError):
    """Base of every error of the runtime."""


class InitError(CommError, ValueError):
    """`init()` failed, or was not called. It may be tried again."""


class ArgumentError(CommError, ValueError):
    """An argument that no rank could serve: dtype, layout, root, name, process set."""


class MismatchError(CommError, ValueError):
    """Ranks gave different dtypes, shapes, ops … for one name. Raised on every rank involved."""


class DuplicateNameError(CommError, ValueError):
    """A name, or the memory behind it, is in flight already. The first operation goes on."""


class RemoteError(CommError):
    """Another rank reported an error for this operation; its text is the message."""


class StallError(CommError):
    """Some ranks did not submit an operation within `COMMRT_STALL_FAIL` seconds."""


class EngineError(CommError):
    """The background thread failed or is stuck; the message names the call."""


class ShutdownError(CommError):
    """The runtime was shut down, here or on a rank that the operation needs."""


class PeerLostError(CommError):
    """A rank died or its connection broke.

    `ranks` and `hosts` name the lost ranks, in the same order; `operations` what was in flight.
    """

    def __init__(
        self,
        message: str,
        ranks: Sequence[int] = (),
        hosts: Sequence[str] = (),
        operations: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.hosts = tuple(hosts)
        self.operations = tuple(operations)

"""The wire over MPI point-to-point messages of one duplicated communicator."""

from __future__ import annotations

from typing import Any

from commrt.transports.base import Flat, Test, Unwakeable, as_bytes


class MpiIncoming:
    """A posted MPI receive."""

    __slots__ = ("_request", "test")

    def __init__(self, request: Any) -> None:
        self._request = request
        self.test: Test = request.Test

    def cancel(self) -> None:
        """Cancel the receive. Nothing was sent for it, so this does not block."""
        self._request.Cancel()
        self._request.Wait()


class MpiWire(Unwakeable):
    """See `Wire`. Data travels as bytes: MPI knows no bfloat16. mpi4py keeps arrays alive."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def send(self, peer: int, tag: int, data: Flat) -> Test:
        """Start sending; True from the result once the array may change."""
        return self._comm.Isend(as_bytes(data), peer, tag).Test  # type: ignore[no-any-return]

    def receive(self, peer: int, tag: int, data: Flat) -> MpiIncoming:
        """Start receiving."""
        return MpiIncoming(self._comm.Irecv(as_bytes(data), peer, tag))

    def close(self, orderly: bool) -> None:
        """Free the communicator, which the other members do as well."""
        if orderly:
            self._comm.Free()

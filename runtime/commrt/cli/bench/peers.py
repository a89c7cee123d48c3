"""What is measured in turn: commrt itself, plain MPI, gloo through torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import commrt
from commrt import api
from commrt.cli.bench import gloo
from commrt.cli.bench.options import Peer as PeerName
from commrt.cli.bench.options import UsageError

Array = npt.NDArray[Any]


class Peer(Protocol):
    """One way to reduce arrays over the ranks. All ranks call the same things in one order."""

    name: str

    def summing(self, array: Array) -> Callable[[], Array]:
        """Return what sums `array`, shape (n,), over ranks, blocks, and returns the sum.

        The sum is in `array` or in an array that the next call overwrites.
        """

    def averaging(self, buckets: Sequence[Array]) -> Callable[[], None]:
        """Return what averages all buckets, each of shape (n,), in place, and blocks."""

    def close(self) -> None:
        """Give everything back; a collective operation."""


class Ours:
    """commrt: named operations, in place, all buckets in flight at once."""

    name = "commrt"

    def summing(self, array: Array) -> Callable[[], Array]:
        """See `Peer`."""
        name = f"sum.{array.dtype}.{array.size}"
        return lambda: commrt.allreduce_(array, name=name, op=commrt.Sum)

    def averaging(self, buckets: Sequence[Array]) -> Callable[[], None]:
        """See `Peer`."""

        def run() -> None:
            handles = [commrt.allreduce_async_(b, name=f"mean.{i}") for i, b in enumerate(buckets)]
            for handle in handles:
                handle.wait()

        return run

    def close(self) -> None:
        """See `Peer`."""


class Mpi:
    """MPI_Allreduce on a communicator of its own, in place or not."""

    def __init__(self, mpi: Any, inplace: bool) -> None:
        self.name = "MPI in place" if inplace else "MPI out of place"
        self._mpi = mpi
        self._inplace = inplace
        self._comm = mpi.COMM_WORLD.Dup()

    def summing(self, array: Array) -> Callable[[], Array]:
        """See `Peer`."""
        if array.dtype.kind not in "iuf" or array.dtype.itemsize < 4:
            raise UsageError(f"MPI has no datatype for {array.dtype}")
        if self._inplace:
            return self._bind(self._mpi.IN_PLACE, array)
        return self._bind(array, np.empty_like(array))

    def averaging(self, buckets: Sequence[Array]) -> Callable[[], None]:
        """See `Peer`."""
        size = self._comm.Get_size()
        sums = [self.summing(bucket) for bucket in buckets]

        def run() -> None:
            for bucket, reduce in zip(buckets, sums, strict=True):
                np.divide(reduce(), size, out=bucket)

        return run

    def close(self) -> None:
        """See `Peer`."""
        self._comm.Free()

    def _bind(self, source: Any, out: Array) -> Callable[[], Array]:
        def run() -> Array:
            self._comm.Allreduce(source, out)
            return out

        return run


class Gloo:
    """torch.distributed's all_reduce on its default process group."""

    name = "gloo"

    def __init__(self) -> None:
        self._dist = gloo.join()

    def summing(self, array: Array) -> Callable[[], Array]:
        """See `Peer`."""
        tensor = _tensor(array)

        def run() -> Array:
            self._dist.all_reduce(tensor)
            return array

        return run

    def averaging(self, buckets: Sequence[Array]) -> Callable[[], None]:
        """See `Peer`."""
        tensors = [_tensor(bucket) for bucket in buckets]
        size = commrt.size()

        def run() -> None:
            works = [self._dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work, tensor in zip(works, tensors, strict=True):
                work.wait()
                tensor.div_(size)

        return run

    def close(self) -> None:
        """See `Peer`."""
        gloo.leave()


@contextmanager
def sides(peer: PeerName | None) -> Iterator[list[Peer]]:
    """Yield commrt and the forms of a peer, and close them in the end. Raises UsageError.

    They stay open after an error, when other ranks may be elsewhere.
    """
    opened: list[Peer] = [Ours()]
    if peer == "mpi":
        opened += [Mpi(_mpi(), inplace) for inplace in (True, False)]
    elif peer is not None:
        opened.append(Gloo())
    yield opened
    for side in opened:
        side.close()


def _mpi() -> Any:
    library = api.session().runtime.mpi.MPI
    if library is None:
        raise UsageError("--peer mpi needs ranks that commrun or mpirun has started")
    return library


def _tensor(array: Array) -> Any:
    import torch

    try:
        return torch.from_numpy(array)
    except TypeError:
        raise UsageError(
            f"gloo is compared by torch.from_numpy, which has no {array.dtype}"
        ) from None

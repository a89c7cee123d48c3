"""Objects as bytes, those that cannot be pickled included: their error travels in their place."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.errors import RemoteError


@dataclass(frozen=True, slots=True)
class Unsendable:
    """Stands for an object that could not be pickled."""

    why: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """An object's bytes, and why they are not the object's if they are not."""

    blob: npt.NDArray[np.uint8]
    failure: Exception | None = None

    def check(self) -> None:
        """Raise what went wrong here. After the exchange: the others must not wait for us."""
        if self.failure is not None:
            raise self.failure


def pack(obj: Any) -> Parcel:
    """Pickle an object by cloudpickle. Never raises."""
    import cloudpickle

    try:
        data, failure = cloudpickle.dumps(obj), None
    except Exception as exc:  # whatever an object's own reduction raises
        data, failure = cloudpickle.dumps(Unsendable(repr(exc))), exc
    return Parcel(np.frombuffer(data, np.uint8), failure)


def unpack(data: bytes, ranks: Sequence[int]) -> list[Any]:
    """Return the objects of these ranks, one after the other in `data`. Raises RemoteError."""
    stream = io.BytesIO(data)
    objects = [pickle.load(stream) for _ in ranks]
    for rank, obj in zip(ranks, objects, strict=True):
        if isinstance(obj, Unsendable):
            raise RemoteError(f"rank {rank} could not send its object: {obj.why}")
    return objects

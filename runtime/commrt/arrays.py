"""Arrays of several kinds seen as flat numpy memory, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from commrt.errors import ArgumentError
from commrt.kernels.numpy_ import bfloat16, name_of
from commrt.transports.base import Flat
from commrt.types import TensorSpec

_NAMES = (
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128"
)
_SUPPORTED = frozenset(_NAMES.split(" "))

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class View:
    """A caller's array: `array` is its memory if it `shares`; `make` makes results of its kind."""

    array: _Array
    make: Callable[[_Array], Any]
    shares: bool = True


@dataclass(frozen=True, slots=True)
class Laid:
    """An array's elements in a row. `flat` is the caller's own memory unless `copied`."""

    spec: TensorSpec
    flat: Flat
    copied: bool


def view(x: Any, what: str) -> View:
    """See an array, torch CPU tensor, number or sequence as numpy. Raises ArgumentError."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _view_torch(torch, x, what)
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(
            f"{what}: masked arrays have no sum over ranks; pass .filled(0) or .data"
        )
    if not isinstance(x, np.ndarray) and hasattr(x, "__dlpack__"):
        return _view_dlpack(x, what)
    array = x if type(x) is np.ndarray else np.asarray(x)
    if not _supported(array.dtype):
        raise ArgumentError(f"{what}: {_refusal(array.dtype)}")
    return View(array, _same, isinstance(x, np.ndarray))


def lay(array: _Array) -> Laid:
    """Put elements in a row: in memory order where they fill their memory, else as a copy."""
    dtype = name_of(array.dtype)
    if array.flags.c_contiguous:
        return Laid(TensorSpec(dtype, array.shape), array.reshape(-1), False)
    order = _memory_order(array)
    moved = array.transpose(order)
    if moved.flags.c_contiguous:
        return Laid(TensorSpec(dtype, array.shape, order), moved.reshape(-1), False)
    return Laid(TensorSpec(dtype, array.shape), np.ascontiguousarray(array).reshape(-1), True)


def unlay(flat: Flat, spec: TensorSpec) -> _Array:
    """Return the array that a row of elements stands for; shares its memory."""
    if spec.order is None:
        return flat.reshape(spec.shape)
    inverse = tuple(np.argsort(spec.order))
    return flat.reshape([spec.shape[i] for i in spec.order]).transpose(inverse)


def check_writable(seen: View, what: str) -> None:
    """Raise ArgumentError where an in-place result cannot be written."""
    array = seen.array
    if not seen.shares:
        raise ArgumentError(f"{what}: it has no memory to change in place; pass an array")
    if not array.flags.writeable:
        raise ArgumentError(f"{what}: the array is read-only, so it cannot be changed in place")
    for length, stride in zip(array.shape, array.strides, strict=True):
        if length > 1 and stride == 0 and array.size:
            raise ArgumentError(
                f"{what}: the array is expanded (stride 0: several elements share one place), so "
                "it cannot be changed in place; pass a copy"
            )


def _memory_order(array: _Array) -> tuple[int, ...]:
    long = [i for i, length in enumerate(array.shape) if length > 1]
    short = [i for i, length in enumerate(array.shape) if length <= 1]
    return (*short, *sorted(long, key=lambda i: (-abs(array.strides[i]), i)))


def _supported(dtype: np.dtype[Any]) -> bool:
    return dtype.isnative and name_of(dtype) in _SUPPORTED


def _same(array: _Array) -> _Array:
    return array


def _refusal(dtype: np.dtype[Any]) -> str:
    if not dtype.isnative:
        return f"dtype {dtype} has foreign byte order; pass .astype(dtype.newbyteorder('='))"
    return (
        f"dtype {dtype} cannot be summed over ranks; supported are bool, (u)int8 to 64, "
        "float16, 32, 64, bfloat16 and complex64, 128"
    )


def _view_torch(torch: Any, x: Any, what: str) -> View:
    if x.layout is not torch.strided:
        raise ArgumentError(f"{what}: a tensor of layout {x.layout} is not dense; pass .to_dense()")
    if x.device.type != "cpu":
        raise ArgumentError(f"{what}: tensors on {x.device} are not supported yet; pass .cpu()")
    plain = x.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        bits = plain.view(torch.int16).numpy().view(bfloat16())
        return View(bits, lambda a: _torch_bf16(torch, a), not x.is_neg())
    try:
        array = plain.numpy()
    except TypeError as exc:
        raise ArgumentError(f"{what}: {x.dtype} is not supported ({exc})") from None
    if not _supported(array.dtype):
        raise ArgumentError(f"{what}: {_refusal(array.dtype)}")
    return View(array, torch.from_numpy, not (x.is_conj() or x.is_neg()))


def _view_dlpack(x: Any, what: str) -> View:
    """See an array of another library through DLPack; results are made by its own namespace."""
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as exc:
        raise ArgumentError(
            f"{what}: a {type(x).__module__}.{type(x).__qualname__} does not come through DLPack "
            f"({exc}); pass a numpy array"
        ) from None
    if not _supported(array.dtype):
        raise ArgumentError(f"{what}: {_refusal(array.dtype)}")
    space = getattr(x, "__array_namespace__", None)
    make = getattr(space() if space is not None else None, "from_dlpack", _same)
    return View(array, make)


def _torch_bf16(torch: Any, array: _Array) -> Any:
    if array.dtype != bfloat16():  # the rows received by an alltoall
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

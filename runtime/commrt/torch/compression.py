"""What travels instead of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from commrt.errors import ArgumentError


class Compressor(Protocol):
    """What `compression=` takes: a class with these two static methods, or an object.

    What `compress` returns is reduced as it is, by the operation's `op`, and `decompress` gets
    the result. So the form must be one that can be added up: an integer code needs a scale that is
    the same on all ranks. An average of integers is exact and rounded toward zero, a sum wraps.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what is reduced, and what `decompress` will need besides."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return what a reduced tensor stands for."""
        raise NotImplementedError


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return the tensor and its dtype."""
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """Return the tensor in that dtype."""
        return tensor.to(ctx)


class FP16Compressor(NoneCompressor):
    """Makes float16 of wider floats."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return the tensor, narrowed if it is a wider float, and its dtype."""
        return _narrowed(tensor, torch.float16), tensor.dtype


class BF16Compressor(NoneCompressor):
    """Makes bfloat16 of wider floats."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return the tensor, narrowed if it is a wider float, and its dtype."""
        return _narrowed(tensor, torch.bfloat16), tensor.dtype


class Compression:
    """Values of `compression=`. `fp16` and `bf16` act on wider floats and leave the rest alone.

    As values they act inside the runtime, which adds in float32 and rounds once each way.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_CODECS = ((NoneCompressor, "none"), (FP16Compressor, "fp16"), (BF16Compressor, "bf16"))

Undo = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def codec_of(compression: Any) -> str | None:
    """Return the runtime's codec that a compression stands for; None for a compressor of one's own.

    Raises ArgumentError for what is neither.
    """
    for known, codec in _CODECS:
        if compression is known:
            return codec
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise ArgumentError(
            "compression must be Compression.none, fp16 or bf16, or a class with static methods "
            f"compress(tensor) and decompress(tensor, ctx), not {compression!r}"
        )
    return None


def compress(
    compression: Compressor, tensors: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], str, Undo]:
    """Return what to reduce for `tensors`, by which codec, and what makes results of it again."""
    codec = codec_of(compression)
    if codec is not None:
        return list(tensors), codec, list
    pairs = [compression.compress(tensor) for tensor in tensors]

    def undo(reduced: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        contexts = (context for _, context in pairs)
        return list(map(compression.decompress, reduced, contexts))

    return [packed for packed, _ in pairs], "none", undo


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    wider = tensor.is_floating_point() and tensor.dtype.itemsize > dtype.itemsize
    return tensor.to(dtype) if wider else tensor

"""Names for what travels instead of a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commrt.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Compressor:
    """Stands for a codec of the runtime."""

    codec: str


class Compression:
    """Values of `compression=`. `fp16` and `bf16` act on wider floats and leave the rest alone."""

    none = Compressor("none")
    fp16 = Compressor("fp16")
    bf16 = Compressor("bf16")


def codec_of(compression: Any) -> str:
    """Return the codec's name. Raises ArgumentError for anything but a `Compression`."""
    if not isinstance(compression, Compressor):
        raise ArgumentError(
            f"compression must be Compression.none, fp16 or bf16, not {compression!r}; compressors "
            "of one's own are not supported"
        )
    return compression.codec

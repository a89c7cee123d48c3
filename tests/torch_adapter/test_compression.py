from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import commrt.torch as hvd
from commrt.torch.compression import codec_of, compress

Holds = Callable[..., None]


@pytest.mark.parametrize(
    ("compression", "codec", "narrow"),
    [
        (hvd.Compression.none, "none", torch.float32),
        (hvd.Compression.fp16, "fp16", torch.float16),
        (hvd.Compression.bf16, "bf16", torch.bfloat16),
    ],
)
def test_compressions_of_the_runtime_can_be_called_too(
    compression: type[hvd.Compression.none], codec: str, narrow: torch.dtype
) -> None:
    x = torch.full((3,), 1.0 + 2**-12)
    packed, context = compression.compress(x)
    assert packed.dtype is narrow
    back = compression.decompress(packed, context)
    assert back.dtype is torch.float32 and torch.equal(back, packed.float())
    assert codec_of(compression) == codec


def test_only_wider_floats_are_narrowed() -> None:
    for x in (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bfloat16)):
        assert hvd.Compression.fp16.compress(x)[0] is x


class Doubling:
    """Adds a constant that only `decompress` knows how to take away."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        return tensor.double() + 1, tensor.dim()

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: int) -> torch.Tensor:
        assert tensor.dim() == ctx
        return (tensor - 1).float()


@pytest.mark.parametrize("compression", [Doubling, Doubling()], ids=["class", "object"])
@pytest.mark.usefixtures("world")
def test_a_compressor_of_ones_own_is_called_around_the_operation(compression: Doubling) -> None:
    x = torch.arange(3.0)
    assert codec_of(compression) is None
    packed, codec, undo = compress(compression, [x])
    assert codec == "none" and packed[0].dtype is torch.float64
    assert torch.equal(undo(packed)[0], x)
    assert torch.equal(hvd.allreduce(x, compression=compression), x)
    assert torch.equal(hvd.reducescatter(x, compression=compression), x)


@pytest.mark.parametrize("wrong", ["fp16", None, hvd.Compression, []], ids=repr)
def test_what_cannot_compress_is_refused(wrong: object) -> None:
    with pytest.raises(hvd.ArgumentError, match="compression must be"):
        hvd.allreduce(torch.ones(3), compression=wrong)  # type: ignore[arg-type]


_RANKS = """
class Eighths:
    # Integers that stand for eighths: they can be added up.
    @staticmethod
    def compress(tensor):
        return (tensor * 8).round().to(torch.int8), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx) / 8


@fact
def own_compressor():
    x = torch.tensor([1.0, -2.0, 12.0], requires_grad=True)
    assert hvd.allreduce(x, compression=Eighths).tolist() == [1.0, -2.0, 12.0]
    y = torch.tensor([0.125, 0.25]) * (1 + 2 * rank)
    total = hvd.allreduce(y, compression=Eighths, op=hvd.Sum)
    assert total.tolist() == [0.5, 1.0]
    a, b = hvd.grouped_allreduce([x.detach(), y], compression=Eighths)
    assert a.tolist() == [1.0, -2.0, 12.0] and b.tolist() == [0.25, 0.5]


class Halves:
    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


@fact
def gradients_go_through_a_compressor():
    for compression in (Halves, hvd.Compression.fp16):
        x = torch.ones(3, requires_grad=True)
        (hvd.allreduce(x, compression=compression) * (rank + 1 + 2**-13)).sum().backward()
        assert x.grad.dtype is torch.float32 and x.grad.tolist() == [1.5] * 3
"""


@pytest.mark.ranks
def test_a_compressors_output_is_what_is_reduced(holds: Holds) -> None:
    holds(_RANKS, "own_compressor")


@pytest.mark.ranks
def test_gradients_are_compressed_alike(holds: Holds) -> None:
    holds(_RANKS, "gradients_go_through_a_compressor")

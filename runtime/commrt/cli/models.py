"""The gradients of known models: shapes in order of registration, from the architectures alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

Shape = tuple[int, ...]

_BERT_LAYERS, _BERT_WIDTH, _BERT_INNER, _BERT_WORDS, _BERT_PLACES = 24, 1024, 4096, 30522, 512


def gradient_shapes(name: str) -> list[Shape]:
    """Return the shapes of `resnet18`, `resnet152` (ImageNet) or `bert-large`. Raises KeyError."""
    return list(_MODELS[name]())


def resnet_shapes(bottleneck: bool, depths: tuple[int, ...]) -> Iterator[Shape]:
    """Yield a ResNet's shapes: He et al. 2015, arXiv:1512.03385, with 1,000 classes."""
    expansion = 4 if bottleneck else 1
    yield from _convolution(64, 3, 7)
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            if bottleneck:
                yield from _convolution(width, channels, 1)
                yield from _convolution(width, width, 3)
                yield from _convolution(4 * width, width, 1)
            else:
                yield from _convolution(width, channels, 3)
                yield from _convolution(width, width, 3)
            if block == 0 and (stage > 0 or bottleneck):
                yield from _convolution(expansion * width, channels, 1)
            channels = expansion * width
    yield from _linear(1000, channels)


def bert_large_shapes() -> Iterator[Shape]:
    """Yield BERT-large's shapes, uncased, with pooler: Devlin et al. 2018, arXiv:1810.04805."""
    width = _BERT_WIDTH
    yield from ((rows, width) for rows in (_BERT_WORDS, _BERT_PLACES, 2))
    yield from _norm(width)
    for _ in range(_BERT_LAYERS):
        for _ in ("query", "key", "value", "output"):
            yield from _linear(width, width)
        yield from _norm(width)
        yield from _linear(_BERT_INNER, width)
        yield from _linear(width, _BERT_INNER)
        yield from _norm(width)
    yield from _linear(width, width)


def _convolution(out: int, into: int, kernel: int) -> Iterator[Shape]:
    """Yield a convolution without bias and the normalisation that follows it."""
    yield (out, into, kernel, kernel)
    yield from _norm(out)


def _linear(out: int, into: int) -> Iterator[Shape]:
    yield (out, into)
    yield (out,)


def _norm(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


_MODELS: dict[str, Callable[[], Iterator[Shape]]] = {
    "resnet18": lambda: resnet_shapes(False, (2, 2, 2, 2)),
    "resnet152": lambda: resnet_shapes(True, (3, 8, 36, 3)),
    "bert-large": bert_large_shapes,
}

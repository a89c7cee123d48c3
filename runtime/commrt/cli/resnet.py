"""ResNet in torch, as small as it can be: He et al. 2015, arXiv:1512.03385."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three, beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        out = 4 * width if bottleneck else width
        if bottleneck:
            self.body = nn.Sequential(
                *_convolution(channels, width, 1), nn.ReLU(True),
                *_convolution(width, width, 3, stride), nn.ReLU(True),
                *_convolution(width, out, 1),
            )  # fmt: skip
        else:
            self.body = nn.Sequential(
                *_convolution(channels, width, 3, stride), nn.ReLU(True),
                *_convolution(width, width, 3),
            )  # fmt: skip
        same = stride == 1 and channels == out
        self.shortcut = nn.Sequential(*(() if same else _convolution(channels, out, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        """Take and return images, shape (batch, channels, height, width)."""
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet(name: str) -> nn.Module:
    """Return `resnet18` or `resnet152` with 1,000 classes. Raises KeyError."""
    bottleneck, depths = _VARIANTS[name]
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage > 0 else 1
            layers.append(Block(channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return nn.Sequential(*layers, *head)


def _convolution(into: int, out: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(out)


_VARIANTS = {"resnet18": (False, (2, 2, 2, 2)), "resnet152": (True, (3, 8, 36, 3))}

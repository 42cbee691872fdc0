"""Networks for images in PyTorch: a multilayer perceptron, a small one of convolutions, ResNets.

The ResNets are as in torchvision.
"""

from __future__ import annotations

from typing import Any

from torch import nn

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # inner channels and first stride


def build_mlp() -> Any:
    """784-500-10."""
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def build_cnn() -> Any:
    """Return two 3x3 convolutions on 28x28, maxpool, 9216-128-10."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def _build_convolution(
    ci: int, co: int, taps: int, stride: int = 1, relu: bool = True
) -> list[Any]:
    conv = nn.Conv2d(ci, co, taps, stride, taps // 2, bias=False)
    return [conv, nn.BatchNorm2d(co), *([nn.ReLU(inplace=True)] if relu else [])]


class _Block(nn.Module):
    def __init__(self, ci: int, inner: int, stride: int, expansion: int) -> None:
        super().__init__()
        co = inner * expansion
        if expansion == 1:
            layers = [
                *_build_convolution(ci, inner, 3, stride),
                *_build_convolution(inner, co, 3, relu=False),
            ]
        else:
            middle = _build_convolution(inner, inner, 3, stride)
            layers = [
                *_build_convolution(ci, inner, 1),
                *middle,
                *_build_convolution(inner, co, 1, relu=False),
            ]
        self.body = nn.Sequential(*layers)
        same = stride == 1 and ci == co
        self.short = nn.Sequential(
            *([] if same else _build_convolution(ci, co, 1, stride, relu=False))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        y += self.short(x)
        return self.relu(y)


def _build_resnet(blocks: tuple[int, ...], expansion: int) -> Any:
    layers, channels = [*_build_convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for (inner, stride), count in zip(STAGES, blocks, strict=True):
        for i in range(count):
            layers.append(_Block(channels, inner, 1 if i else stride, expansion))
            channels = inner * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def build_resnet18() -> Any:
    """ResNet-18 of 10 classes."""
    return _build_resnet((2, 2, 2, 2), 1)


def build_resnet50() -> Any:
    """ResNet-50 of 10 classes."""
    return _build_resnet((3, 4, 6, 3), 4)

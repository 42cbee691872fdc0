"""MobileNetV2 and MobileNetV3-Small in PyTorch, as in torchvision."""

from __future__ import annotations

from typing import Any

from torch import nn

# Expansion, channels, blocks and first stride of MobileNetV2's stages.
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip

# Taps, expanded channels, channels, squeezed channels or 0, activation and stride of the blocks of
# MobileNetV3-Small.
SMALL = (
    (3, 16, 16, 8, nn.ReLU, 2),
    (3, 72, 24, 0, nn.ReLU, 2),
    (3, 88, 24, 0, nn.ReLU, 1),
    (5, 96, 40, 24, nn.Hardswish, 2),
    (5, 240, 40, 64, nn.Hardswish, 1),
    (5, 240, 40, 64, nn.Hardswish, 1),
    (5, 120, 48, 32, nn.Hardswish, 1),
    (5, 144, 48, 40, nn.Hardswish, 1),
    (5, 288, 96, 72, nn.Hardswish, 2),
    (5, 576, 96, 144, nn.Hardswish, 1),
    (5, 576, 96, 144, nn.Hardswish, 1),
)


def build_convolution(
    ci: int, co: int, taps: int, stride: int = 1, group: int = 1, act: Any = nn.ReLU6
) -> Any:
    """Convolution, batch normalisation and, unless `act` is None, an activation in place."""
    conv = nn.Conv2d(ci, co, taps, stride, taps // 2, groups=group, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(co), *([act(inplace=True)] if act else []))


class Excitation(nn.Module):
    """Every channel times a number between 0 and 1 that two layers make of all their means."""

    def __init__(self, channels: int, few: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), nn.ReLU(inplace=True),
            nn.Conv2d(few, channels, 1), nn.Hardsigmoid(inplace=True),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x * self.body(x)


class Block(nn.Module):
    """An inverted residual."""

    def __init__(
        self, ci: int, co: int, wide: int, stride: int, taps: int = 3, few: int = 0,
        act: Any = nn.ReLU6,
    ) -> None:  # fmt: skip
        super().__init__()
        first = [build_convolution(ci, wide, 1, act=act)] if wide > ci else []
        middle = [build_convolution(wide, wide, taps, stride, wide, act)]
        squeeze = [Excitation(wide, few)] if few else []
        self.body = nn.Sequential(
            *first, *middle, *squeeze, build_convolution(wide, co, 1, act=None)
        )
        self.adds = stride == 1 and ci == co

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.adds else self.body(x)


def build_mobilenet() -> Any:
    """MobileNetV2 of 10 classes, without dropout."""
    layers, channels = [build_convolution(3, 32, 3, 2)], 32
    for expansion, co, blocks, stride in STAGES:
        for i in range(blocks):
            layers.append(Block(channels, co, channels * expansion, 1 if i else stride))
            channels = co
    layers += [build_convolution(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, 10))


def build_mobilenet_v3() -> Any:
    """MobileNetV3-Small of 10 classes, without dropout."""
    layers, channels = [build_convolution(3, 16, 3, 2, act=nn.Hardswish)], 16
    for taps, wide, co, few, act, stride in SMALL:
        layers.append(Block(channels, co, wide, stride, taps, few, act))
        channels = co
    layers.append(build_convolution(channels, 576, 1, act=nn.Hardswish))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024)]
    net = nn.Sequential(*layers, nn.Hardswish(inplace=True), nn.Linear(1024, 10))
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eps = 1e-3
    return net

"""ResNet-18, -50 and -101 (He et al., arXiv 1512.03385), strides as torchvision has them."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.layers import Layers

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # inner channels and first stride


class _ResNet(Layers):
    def normed(
        self, x: str, name: str, ci: int, co: int, taps: int, stride: int = 1, relu: bool = True
    ) -> str:
        """Add a convolution, a batch normalisation and, for most, a Relu."""
        y = self.convolution(x, name, ci, co, taps, stride, pad=taps // 2)
        y = self.batch_norm(y, f"{name}.n", co)
        return self.op("Relu", y) if relu else y

    def block(self, x: str, name: str, ci: int, inner: int, stride: int, expansion: int) -> str:
        """Return a residual block: two convolutions, or three whose middle one is narrower."""
        co = inner * expansion
        if expansion == 1:
            y = self.normed(x, f"{name}.1", ci, inner, 3, stride)
            y = self.normed(y, f"{name}.2", inner, co, 3, relu=False)
        else:
            y = self.normed(x, f"{name}.1", ci, inner, 1)
            y = self.normed(y, f"{name}.2", inner, inner, 3, stride)
            y = self.normed(y, f"{name}.3", inner, co, 1, relu=False)
        if stride > 1 or ci != co:
            x = self.normed(x, f"{name}.short", ci, co, 1, stride, relu=False)
        return self.op("Relu", self.op("Add", y, x))


def _resnet(name: str, blocks: tuple[int, ...], expansion: int, side: int) -> Graph:
    to = _ResNet()
    y = to.normed("x", "stem", 3, 64, 7, 2)
    y = to.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, ((inner, stride), count) in enumerate(zip(STAGES, blocks, strict=True)):
        for i in range(count):
            step = 1 if i else stride
            y = to.block(y, f"s{stage}.{i}", channels, inner, step, expansion)
            channels = inner * expansion
    to.classify(to.op("Flatten", to.op("GlobalAveragePool", y)), channels)
    return to.graph(name, TensorType("f32", ("batch", 3, side, side)))


def resnet18(side: int = 224) -> Graph:
    """Return ResNet-18 with 10 classes, for square images."""
    return _resnet("resnet18", (2, 2, 2, 2), 1, side)


def resnet50(side: int = 224) -> Graph:
    """Return ResNet-50 with 10 classes, for square images."""
    return _resnet("resnet50", (3, 4, 6, 3), 4, side)


def resnet101(side: int = 224) -> Graph:
    """Return ResNet-101 with 10 classes, for square images."""
    return _resnet("resnet101", (3, 4, 23, 3), 4, side)

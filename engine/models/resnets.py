"""ResNet-18, -50 and -101 (He et al., arXiv 1512.03385), with torchvision's names and strides."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import fan_out_normal
from engine.models.layers import CLASSES, Layers

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # inner channels and first stride
PICTURE = (3, 224, 224)


class _ResNet(Layers):
    def normed(
        self, x: str, name: str, norm: str, ci: int, co: int, taps: int, stride: int = 1,
        relu: bool = True,
    ) -> str:  # fmt: skip
        """Add a convolution, a batch normalisation and, for most, a Relu."""
        y = self.convolution(x, name, ci, co, taps, stride, pad=taps // 2, rule=fan_out_normal)
        y = self.batch_norm(y, norm, co)
        return self.op("Relu", y) if relu else y

    def block(self, x: str, name: str, ci: int, inner: int, stride: int, expansion: int) -> str:
        """Return a residual block: two convolutions, or three whose middle one is narrower."""
        co = inner * expansion
        channels = [ci, inner, co] if expansion == 1 else [ci, inner, inner, co]
        taps, strides = ([3, 3], [stride, 1]) if expansion == 1 else ([1, 3, 1], [1, stride, 1])
        y = x
        for i, (n, step) in enumerate(zip(taps, strides, strict=True)):
            names = (f"{name}.conv{i + 1}", f"{name}.bn{i + 1}")
            relu = i + 1 < len(taps)
            y = self.normed(y, *names, channels[i], channels[i + 1], n, step, relu)
        if stride > 1 or ci != co:
            names = (f"{name}.downsample.0", f"{name}.downsample.1")
            x = self.normed(x, *names, ci, co, 1, stride, relu=False)
        return self.op("Relu", self.op("Add", y, x))


def _resnet(
    name: str, blocks: tuple[int, ...], expansion: int, shape: tuple[int, ...], outputs: int,
    seed: int,
) -> Graph:  # fmt: skip
    to = _ResNet(seed)
    y = to.normed("x", "conv1", "bn1", shape[0], 64, 7, 2)
    y = to.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, ((inner, stride), count) in enumerate(zip(STAGES, blocks, strict=True), 1):
        for i in range(count):
            step = 1 if i else stride
            y = to.block(y, f"layer{stage}.{i}", channels, inner, step, expansion)
            channels = inner * expansion
    to.scores(to.op("Flatten", to.op("GlobalAveragePool", y)), "fc", channels, outputs)
    return to.graph(name, TensorType("f32", ("batch", *shape)), ("batch", outputs))


def resnet18(shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0) -> Graph:
    """Return ResNet-18."""
    return _resnet("resnet18", (2, 2, 2, 2), 1, shape, outputs, seed)


def resnet50(shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0) -> Graph:
    """Return ResNet-50."""
    return _resnet("resnet50", (3, 4, 6, 3), 4, shape, outputs, seed)


def resnet101(shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0) -> Graph:
    """Return ResNet-101."""
    return _resnet("resnet101", (3, 4, 23, 3), 4, shape, outputs, seed)

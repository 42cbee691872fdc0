"""ResNet-18, -50 and -101 (He et al., arXiv 1512.03385), with torchvision's names and strides."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import draw_fan_out_normal
from engine.models.layers import CLASSES, Layers

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # inner channels and first stride
PICTURE = (3, 224, 224)


class _ResNet(Layers):
    def add_normed(
        self, x: str, name: str, norm: str, ci: int, co: int, taps: int, stride: int = 1,
        relu: bool = True,
    ) -> str:  # fmt: skip
        """Add a convolution, a batch normalisation and, for most, a Relu."""
        y = self.add_convolution(
            x, name, ci, co, taps, stride, pad=taps // 2, rule=draw_fan_out_normal
        )
        y = self.add_batch_norm(y, norm, co)
        return self.add_op("Relu", y) if relu else y

    def add_block(self, x: str, name: str, ci: int, inner: int, stride: int, expansion: int) -> str:
        """Return a residual block: two convolutions, or three whose middle one is narrower."""
        co = inner * expansion
        channels = [ci, inner, co] if expansion == 1 else [ci, inner, inner, co]
        taps, strides = ([3, 3], [stride, 1]) if expansion == 1 else ([1, 3, 1], [1, stride, 1])
        y = x
        for i, (n, step) in enumerate(zip(taps, strides, strict=True)):
            names = (f"{name}.conv{i + 1}", f"{name}.bn{i + 1}")
            relu = i + 1 < len(taps)
            y = self.add_normed(y, *names, channels[i], channels[i + 1], n, step, relu)
        if stride > 1 or ci != co:
            names = (f"{name}.downsample.0", f"{name}.downsample.1")
            x = self.add_normed(x, *names, ci, co, 1, stride, relu=False)
        return self.add_op("Relu", self.add_op("Add", y, x))


def _build_resnet(
    name: str, blocks: tuple[int, ...], expansion: int, shape: tuple[int, ...], outputs: int,
    seed: int,
) -> Graph:  # fmt: skip
    to = _ResNet(seed)
    y = to.add_normed("x", "conv1", "bn1", shape[0], 64, 7, 2)
    y = to.add_op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, ((inner, stride), count) in enumerate(zip(STAGES, blocks, strict=True), 1):
        for i in range(count):
            step = 1 if i else stride
            y = to.add_block(y, f"layer{stage}.{i}", channels, inner, step, expansion)
            channels = inner * expansion
    to.add_scores(to.add_op("Flatten", to.add_op("GlobalAveragePool", y)), "fc", channels, outputs)
    return to.make_graph(name, TensorType("f32", ("batch", *shape)), ("batch", outputs))


def build_resnet18(
    shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0
) -> Graph:
    """Return ResNet-18."""
    return _build_resnet("resnet18", (2, 2, 2, 2), 1, shape, outputs, seed)


def build_resnet50(
    shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0
) -> Graph:
    """Return ResNet-50."""
    return _build_resnet("resnet50", (3, 4, 6, 3), 4, shape, outputs, seed)


def build_resnet101(
    shape: tuple[int, ...] = PICTURE, outputs: int = CLASSES, *, seed: int = 0
) -> Graph:
    """Return ResNet-101."""
    return _build_resnet("resnet101", (3, 4, 23, 3), 4, shape, outputs, seed)

"""Deep networks, as forward-only graphs with random weights, for which budgets are planned.

They have the layers and sizes of known architectures; `MODELS` lists them with their batches.
"""

from __future__ import annotations

from functools import partial

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.layers import CLASSES, Layers
from engine.models.post_norm import BERT_WORDS, build_minilm
from engine.models.resnets import build_resnet101
from engine.models.unet import UNet
from engine.tools.benchmark.workload import Workload
from engine.tools.benchmark.workloads import WORKLOADS

# Expansion, channels, blocks, first stride and taps of the stages of EfficientNet-B3.
STAGES = (
    (1, 24, 2, 1, 3), (6, 32, 3, 2, 3), (6, 48, 3, 2, 5), (6, 96, 5, 2, 3), (6, 136, 5, 1, 5),
    (6, 232, 6, 2, 5), (6, 384, 2, 1, 3),
)  # fmt: skip


class _ConvNeXt(Layers):
    """ConvNeXt (Liu et al., arXiv 2201.03545), its norms and products over the last dimension."""

    def add_block(self, x: str, name: str, channels: int) -> str:
        """Add a depthwise convolution, a norm and two products, scaled and added to the input."""
        y = self.add_depthwise(x, f"{name}.dw", channels, 7)
        y = self.add_layer_norm(
            self.add_op("Transpose", y, perm=[0, 2, 3, 1]), f"{name}.n", channels
        )
        y = self.add_gelu(self.add_linear(y, f"{name}.up", channels, 4 * channels))
        y = self.add_linear(y, f"{name}.down", 4 * channels, channels)
        y = self.add_op("Mul", y, self.add_vector(f"{name}.scale", channels, 1e-6))
        return self.add_op("Add", x, self.add_op("Transpose", y, perm=[0, 3, 1, 2]))

    def add_depthwise(self, x: str, name: str, channels: int, taps: int) -> str:
        """Add a convolution of each channel alone, with a bias."""
        self.shapes |= {f"{name}.w": (channels, 1, taps, taps), f"{name}.b": (channels,)}
        weights, pads = (f"{name}.w", f"{name}.b"), [taps // 2] * 4
        return self.add_op("Conv", x, *weights, group=channels, pads=pads, strides=[1, 1])

    def add_norm(self, x: str, name: str, channels: int) -> str:
        """Add a layer norm of the channels of images."""
        y = self.add_layer_norm(self.add_op("Transpose", x, perm=[0, 2, 3, 1]), name, channels)
        return self.add_op("Transpose", y, perm=[0, 3, 1, 2])


def build_convnext(
    depths: tuple[int, ...] = (3, 3, 9, 3), width: int = 96, side: int = 224
) -> Graph:
    """Return a ConvNeXt with 10 classes, Tiny by default."""
    to = _ConvNeXt()
    y = to.add_norm(to.add_convolution("x", "stem", 3, width, 4, 4, bias=True), "stem.n", width)
    for stage, depth in enumerate(depths):
        if stage:
            y = to.add_norm(y, f"s{stage}.n", width)
            y = to.add_convolution(y, f"s{stage}.half", width, 2 * width, 2, 2, bias=True)
            width *= 2
        for n in range(depth):
            y = to.add_block(y, f"s{stage}.{n}", width)
    y = to.add_op("Flatten", to.add_op("GlobalAveragePool", y))
    to.classify(to.add_layer_norm(y, "end", width), width)
    return to.make_graph("convnext", TensorType("f32", ("batch", 3, side, side)))


class _EfficientNet(Layers):
    """EfficientNet (Tan, Le, arXiv 1905.11946)."""

    def add_normed(
        self, x: str, name: str, ci: int, co: int, taps: int, stride: int = 1, group: int = 1,
        swish: bool = True,
    ) -> str:  # fmt: skip
        """Add a convolution, a batch normalisation and, for most, x sigmoid(x)."""
        self.shapes[f"{name}.w"] = (co, ci // group, taps, taps)
        pads, strides = [taps // 2] * 4, [stride] * 2
        y = self.add_op("Conv", x, f"{name}.w", pads=pads, strides=strides, group=group)
        y = self.add_batch_norm(y, f"{name}.n", co)
        return self.add_op("Mul", y, self.add_op("Sigmoid", y)) if swish else y

    def add_excitation(self, x: str, name: str, channels: int, few: int) -> str:
        """Scale every channel by a number that two layers make of all means."""
        y = self.add_op("GlobalAveragePool", x)
        y = self.add_convolution(y, f"{name}.less", channels, few, 1, bias=True)
        y = self.add_op("Mul", y, self.add_op("Sigmoid", y))
        y = self.add_convolution(y, f"{name}.more", few, channels, 1, bias=True)
        return self.add_op("Mul", x, self.add_op("Sigmoid", y))

    def add_block(
        self, x: str, name: str, ci: int, co: int, expand: int, stride: int, k: int
    ) -> str:
        """Add an inverted residual of k x k taps."""
        wide = ci * expand
        y = self.add_normed(x, f"{name}.wide", ci, wide, 1) if expand > 1 else x
        y = self.add_normed(y, f"{name}.dw", wide, wide, k, stride, wide)
        y = self.add_excitation(y, name, wide, max(ci // 4, 1))
        y = self.add_normed(y, f"{name}.narrow", wide, co, 1, swish=False)
        return self.add_op("Add", y, x) if stride == 1 and ci == co else y


def build_efficientnet(side: int = 300) -> Graph:
    """Return EfficientNet-B3 with 10 classes."""
    to = _EfficientNet()
    y, channels = to.add_normed("x", "stem", 3, 40, 3, 2), 40
    for stage, (expand, co, depth, stride, taps) in enumerate(STAGES):
        for n in range(depth):
            step = 1 if n else stride
            y = to.add_block(y, f"s{stage}.{n}", channels, co, expand, step, taps)
            channels = co
    y = to.add_normed(y, "end", channels, 4 * channels, 1)
    to.classify(to.add_op("Flatten", to.add_op("GlobalAveragePool", y)), 4 * channels)
    return to.make_graph("efficientnet", TensorType("f32", ("batch", 3, side, side)))


def build_unet(levels: int = 4, width: int = 32, side: int = 128) -> Graph:
    """Return a U-Net: a class for every pixel of square images."""
    to = UNet()
    y = to.add_op("Transpose", to.add_body("x", 3, levels, width), perm=[0, 2, 3, 1])
    to.classify(to.add_op("Reshape", y, to.add_constant("pixels", [-1, width])), width)
    return to.make_graph("unet", TensorType("f32", ("batch", 3, side, side)), ("pixels", CLASSES))


def build_bilstm(layers: int = 2, steps: int = 100, features: int = 64, width: int = 128) -> Graph:
    """Return bidirectional LSTMs, the mean over time, and a linear layer to 10 classes."""
    to = Layers()
    y, n_in = to.add_op("Transpose", "x", perm=[1, 0, 2]), features
    for n in range(layers):
        shapes = {"w": (2, 4 * width, n_in), "r": (2, 4 * width, width), "b": (2, 8 * width)}
        to.shapes |= {f"l{n}.{end}": shape for end, shape in shapes.items()}
        names = [f"l{n}.{end}" for end in shapes]
        y = to.add_op("LSTM", y, *names, hidden_size=width, direction="bidirectional")
        y = to.add_op("Transpose", y, perm=[0, 2, 1, 3])
        y = to.add_op("Reshape", y, to.add_constant("join", [0, 0, 2 * width]))
        n_in = 2 * width
    to.classify(to.add_op("ReduceMean", y, axes=[0], keepdims=0), 2 * width)
    return to.make_graph("bilstm", TensorType("f32", ("batch", steps, features)))


_IMAGES = (8, 3, 224, 224)
MODELS = WORKLOADS | {
    work.name: work
    for work in (
        Workload("convnext", _IMAGES, build_convnext),
        Workload("encoder12", (8, 128), partial(build_minilm, layers=12), BERT_WORDS),
        Workload("encoder24", (8, 128), partial(build_minilm, layers=24), BERT_WORDS),
        Workload("resnet101", _IMAGES, build_resnet101),
        Workload("efficientnet", (8, 3, 300, 300), build_efficientnet),
        Workload("unet", (4, 3, 128, 128), build_unet, labels=128 * 128),
        Workload("bilstm", (32, 100, 64), build_bilstm),
    )
}

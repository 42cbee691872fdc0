"""MobileNetV2 and MobileNetV3-Small, with torchvision's names, numbers and initial values."""

from __future__ import annotations

from collections.abc import Mapping

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import draw_fan_out_normal, make_normal, make_zeros
from engine.models.layers import CLASSES, Layers

# Expansion, channels, blocks and first stride of MobileNetV2's stages.
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


# Taps, expanded channels, channels, squeeze-and-excitation, activation and stride of the blocks of
# MobileNetV3-Small.
SMALL = (
    (3, 16, 16, 1, "Relu", 2),
    (3, 72, 24, 0, "Relu", 2),
    (3, 88, 24, 0, "Relu", 1),
    (5, 96, 40, 1, "HardSwish", 2),
    (5, 240, 40, 1, "HardSwish", 1),
    (5, 240, 40, 1, "HardSwish", 1),
    (5, 120, 48, 1, "HardSwish", 1),
    (5, 144, 48, 1, "HardSwish", 1),
    (5, 288, 96, 1, "HardSwish", 2),
    (5, 576, 96, 1, "HardSwish", 1),
    (5, 576, 96, 1, "HardSwish", 1),
)


class MobileNet(Layers):
    """Layers of MobileNets.

    norms: attributes of the batch normalisations.
    """

    norms: Mapping[str, float] = {}

    def add_normed(
        self, x: str, name: str, norm: str, ci: int, co: int, taps: int, stride: int = 1,
        group: int = 1, activation: str = "",
    ) -> str:  # fmt: skip
        """Add a convolution, a batch normalisation and, for most, an activation; Clip is to 0 and
        6.
        """
        y = self.add_convolution(
            x, name, ci, co, taps, stride, pad=taps // 2, group=group, rule=draw_fan_out_normal
        )
        y = self.add_batch_norm(y, norm, co, **self.norms)
        bounds = (self.add_number(0), self.add_number(6)) if activation == "Clip" else ()
        return self.add_op(activation, y, *bounds) if activation else y

    def add_unit(
        self, x: str, name: str, ci: int, co: int, taps: int, stride: int = 1, group: int = 1,
        activation: str = "",
    ) -> str:  # fmt: skip
        """Add `add_normed` under the names of torchvision's Conv2dNormActivation."""
        names = (f"{name}.0", f"{name}.1")
        return self.add_normed(x, *names, ci, co, taps, stride, group, activation)

    def add_block(self, x: str, name: str, ci: int, co: int, expansion: int, stride: int) -> str:
        """Add an inverted residual (Sandler et al., arXiv 1801.04381)."""
        wide, at = ci * expansion, int(expansion > 1)
        y = self.add_unit(x, f"{name}.conv.0", ci, wide, 1, activation="Clip") if at else x
        y = self.add_unit(y, f"{name}.conv.{at}", wide, wide, 3, stride, wide, "Clip")
        y = self.add_normed(y, f"{name}.conv.{at + 1}", f"{name}.conv.{at + 2}", wide, co, 1)
        return self.add_op("Add", x, y) if stride == 1 and ci == co else y

    def add_block_v3(
        self, x: str, name: str, ci: int, co: int, taps: int, wide: int, squeeze: int, act: str,
        stride: int,
    ) -> str:  # fmt: skip
        """Add an inverted residual of MobileNetV3 (Howard et al., arXiv 1905.02244)."""
        y, at = x, 0
        if wide > ci:
            y, at = self.add_unit(y, f"{name}.block.0", ci, wide, 1, activation=act), 1
        y = self.add_unit(y, f"{name}.block.{at}", wide, wide, taps, stride, wide, act)
        at += 1
        if squeeze:
            y, at = self.add_excitation(y, f"{name}.block.{at}", wide), at + 1
        y = self.add_unit(y, f"{name}.block.{at}", wide, co, 1)
        return self.add_op("Add", x, y) if stride == 1 and ci == co else y

    def add_excitation(self, x: str, name: str, channels: int) -> str:
        """Scale every channel by a number in (0, 1) that two layers make of all means."""
        few = max(channels // 4 + 4, 8) // 8 * 8
        few += 8 * (few < 0.9 * (channels // 4))
        y = self.add_op("GlobalAveragePool", x)
        for layer, ci, co in (("fc1", channels, few), ("fc2", few, channels)):
            y = self.add_convolution(
                y,
                f"{name}.{layer}",
                ci,
                co,
                1,
                bias=True,
                rule=draw_fan_out_normal,
                bias_rule=make_zeros,
            )
            y = self.add_op("Relu", y) if layer == "fc1" else y
        return self.add_op("Mul", x, self.add_op("HardSigmoid", y, alpha=1 / 6))


def build_mobilenet_v2(
    shape: tuple[int, ...] = (3, 224, 224), outputs: int = CLASSES, *, dropout: float = 0.0,
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return MobileNetV2 (Sandler et al., arXiv 1801.04381)."""
    to = MobileNet(seed)
    y, channels = to.add_unit("x", "features.0", shape[0], 32, 3, 2, activation="Clip"), 32
    at = 1
    for expansion, co, blocks, stride in STAGES:
        for i in range(blocks):
            y = to.add_block(y, f"features.{at}", channels, co, expansion, 1 if i else stride)
            channels, at = co, at + 1
    y = to.add_unit(y, f"features.{at}", channels, 1280, 1, activation="Clip")
    y = to.add_dropout(to.add_op("ReduceMean", y, axes=[2, 3], keepdims=0), dropout)
    to.add_scores(y, "classifier.1", 1280, outputs, make_normal(0.01), make_zeros)
    return to.make_graph("mobilenet_v2", TensorType("f32", ("batch", *shape)), ("batch", outputs))


def build_mobilenet_v3_small(
    shape: tuple[int, ...] = (3, 224, 224), outputs: int = CLASSES, *, dropout: float = 0.0,
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return MobileNetV3-Small (Howard et al., arXiv 1905.02244).

    Running statistics move by 10 % a step, as in the other architectures.  The 1 % of torchvision
    suits trainings of 600 epochs: in shorter ones, evaluation would read the initial statistics.
    """
    to = MobileNet(seed)
    to.norms = {"epsilon": 1e-3}
    y, channels = to.add_unit("x", "features.0", shape[0], 16, 3, 2, activation="HardSwish"), 16
    for i, (taps, wide, co, squeeze, act, stride) in enumerate(SMALL, 1):
        y = to.add_block_v3(y, f"features.{i}", channels, co, taps, wide, squeeze, act, stride)
        channels = co
    y = to.add_unit(y, f"features.{len(SMALL) + 1}", channels, 576, 1, activation="HardSwish")
    y = to.add_op("Flatten", to.add_op("GlobalAveragePool", y))
    y = to.add_op(
        "HardSwish", to.add_dense(y, "classifier.0", 576, 1024, make_normal(0.01), make_zeros)
    )
    to.add_scores(
        to.add_dropout(y, dropout), "classifier.3", 1024, outputs, make_normal(0.01), make_zeros
    )
    return to.make_graph(
        "mobilenet_v3_small", TensorType("f32", ("batch", *shape)), ("batch", outputs)
    )

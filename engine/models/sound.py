"""Networks for sound."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import make_uniform
from engine.models.layers import CLASSES, Layers

RATE = 16000  # samples a second
TAPS = (10, 3, 3, 3, 3, 2, 2)
STRIDES = (5, 2, 2, 2, 2, 2, 2)


def build_wav2vec2(samples: int = RATE, width: int = 512) -> Graph:
    """Return the convolutional encoder of wav2vec 2.0 (Baevski et al., arXiv 2006.11477).

    Seven convolutions over time, each with layer normalisation over its channels and GELU, then
    the mean over time and a layer to 10 classes.  x: [batch, 1, samples].
    """
    to = Layers()
    y, channels = "x", 1
    for i, (taps, stride) in enumerate(zip(TAPS, STRIDES, strict=True)):
        y = to.add_convolution(y, f"c{i}", channels, width, taps, stride, rank=1, bias=True)
        y = to.add_layer_norm(to.add_op("Transpose", y, perm=[0, 2, 1]), f"c{i}.n", width)
        y = to.add_gelu(to.add_op("Transpose", y, perm=[0, 2, 1]))
        channels = width
    to.classify(to.add_op("ReduceMean", y, axes=[2], keepdims=0), width)
    return to.make_graph("wav2vec2", TensorType("f32", ("batch", 1, samples)))


def build_ds_cnn(
    shape: tuple[int, ...] = (1, 40, 98), outputs: int = CLASSES, *, channels: int = 64,
    blocks: int = 4, seed: int = 0,
) -> Graph:  # fmt: skip
    """Return DS-CNN-S (Zhang et al., arXiv 1711.07128): spectrograms of a second to keywords.

    A convolution of 4 bands and 10 frames with stride 2, then blocks of a depthwise 3x3 and a 1x1
    convolution.  x: [batch, 1, bands, frames].
    """
    to = Layers(seed)

    def add_normed(
        x: str, name: str, ci: int, taps: tuple[int, int], stride: int, group: int
    ) -> str:
        pad = (taps[0] // 2 - (taps[0] + 1) % 2, taps[1] // 2 - (taps[1] + 1) % 2)
        rule = make_uniform(ci // group * taps[0] * taps[1])
        y = to.add_convolution(
            x, f"{name}.conv", ci, channels, taps, stride, pad=pad, group=group, rule=rule
        )
        return to.add_op("Relu", to.add_batch_norm(y, f"{name}.norm", channels))

    y = add_normed("x", "stem", shape[0], (4, 10), 2, 1)
    for i in range(blocks):
        y = add_normed(y, f"blocks.{i}.depthwise", channels, (3, 3), 1, channels)
        y = add_normed(y, f"blocks.{i}.pointwise", channels, (1, 1), 1, 1)
    to.add_scores(
        to.add_op("Flatten", to.add_op("GlobalAveragePool", y)), "classifier", channels, outputs
    )
    return to.make_graph("ds_cnn", TensorType("f32", ("batch", *shape)), ("batch", outputs))

"""Networks for sound."""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.tools.benchmark.layers import Layers

RATE = 16000  # samples a second
TAPS = (10, 3, 3, 3, 3, 2, 2)
STRIDES = (5, 2, 2, 2, 2, 2, 2)


def wav2vec2(samples: int = RATE, width: int = 512) -> Graph:
    """Return the convolutional encoder of wav2vec 2.0 (Baevski et al., arXiv 2006.11477).

    Seven convolutions over time, each with layer normalisation over its channels and GELU, then
    the mean over time and a layer to 10 classes.  x: [batch, 1, samples].
    """
    to = Layers()
    y, channels = "x", 1
    for i, (taps, stride) in enumerate(zip(TAPS, STRIDES, strict=True)):
        y = to.convolution(y, f"c{i}", channels, width, taps, stride, rank=1, bias=True)
        y = to.layer_norm(to.op("Transpose", y, perm=[0, 2, 1]), f"c{i}.n", width)
        y = to.gelu(to.op("Transpose", y, perm=[0, 2, 1]))
        channels = width
    to.classify(to.op("ReduceMean", y, axes=[2], keepdims=0), width)
    return to.graph("wav2vec2", TensorType("f32", ("batch", 1, samples)))

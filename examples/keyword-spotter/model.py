"""The network: a DS-CNN, depthwise separable convolutions over a spectrogram (arXiv:1711.07128).

`python model.py` writes forward.onnx.  Its last layer has an output for each word of data.py;
train.py replaces it if the number of words differs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from data import WORDS

BANDS, FRAMES = 40, 98  # the features that `edgegrad.data.LogMel` makes from one second
# The channels and stride of each block.
BLOCKS = ((32, 2), (32, 1), (48, 2), (48, 1))


def network(classes: int, seed: int = 0) -> onnx.ModelProto:
    """Spectrograms [batch, 1, BANDS, FRAMES] to scores [batch, classes]; 10,000 parameters."""
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def node(op: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def convolution(x: str, name: str, into: int, out: int, kernel: int, stride: int = 1,
                    groups: int = 1) -> str:  # fmt: skip
        """A convolution without bias, batch normalisation, and ReLU."""
        shape = (out, into // groups, kernel, kernel)
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        form = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        filters = weight(f"{name}.weight", values)
        y = node("Conv", f"{name}.conv", x, filters, group=groups, **form)
        statistics = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
        parts = [weight(f"{name}.{part}", np.full(out, v)) for part, v in statistics.items()]
        return node("Relu", f"{name}.relu", node("BatchNormalization", f"{name}.norm", y, *parts))

    channels = BLOCKS[0][0]
    x = convolution("sound", "stem", 1, channels, kernel=5, stride=2)
    for number, (out, stride) in enumerate(BLOCKS):
        x = convolution(x, f"blocks.{number}.depth", channels, channels, 3, stride, groups=channels)
        x = convolution(x, f"blocks.{number}.point", channels, out, 1)
        channels = out
    x = node("Flatten", "features", node("GlobalAveragePool", "pool", x))
    values = rng.standard_normal((classes, channels)) * np.sqrt(1 / channels)
    head = (weight("head.weight", values), weight("head.bias", np.zeros(classes)))
    node("Gemm", "scores", x, *head, transB=1)

    float32 = TensorProto.FLOAT
    sound = helper.make_tensor_value_info("sound", float32, ["batch", 1, BANDS, FRAMES])
    scores = helper.make_tensor_value_info("scores", float32, ["batch", classes])
    graph = helper.make_graph(nodes, "keywords", [sound], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


if __name__ == "__main__":
    onnx.save(network(len(WORDS) + 1), "forward.onnx")
    print("wrote forward.onnx")

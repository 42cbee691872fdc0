"""The network: inverted residuals as in MobileNetV2 (arXiv:1801.04381), small enough for a board.

To use a network of your own, give its ONNX file, from `torch.onnx.export` or a model zoo.  If it
was made for another number of classes, its last layer is replaced.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 48  # height and width of the network's input

# For each block: output channels, the factor by which it widens them inside, and the stride.
BLOCKS = ((16, 1, 1), (24, 4, 2), (24, 4, 1), (32, 4, 2), (32, 4, 1), (64, 4, 2), (64, 4, 1))
STEM, LAST = 16, 128


def network(classes: int, seed: int = 0) -> onnx.ModelProto:
    """Pictures [batch, 3, SIZE, SIZE] to scores [batch, classes]; 90,000 parameters.

    Weights are random (He et al., arXiv:1502.01852), batch normalisations start as the identity.
    """
    rng = np.random.default_rng(seed)
    nodes, weights = [], []

    def node(op: str, name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(name: str, values: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def convolution(x: str, name: str, into: int, out: int, kernel: int = 1, stride: int = 1,
                    groups: int = 1, relu: bool = True) -> str:  # fmt: skip
        """A convolution without bias, batch normalisation, and ReLU6."""
        shape = (out, into // groups, kernel, kernel)
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        form = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        filters = weight(f"{name}.weight", values)
        y = node("Conv", f"{name}.conv", x, filters, group=groups, **form)
        statistics = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
        parts = [weight(f"{name}.{part}", np.full(out, v)) for part, v in statistics.items()]
        y = node("BatchNormalization", f"{name}.norm", y, *parts)
        if not relu:
            return y
        return node("Clip", f"{name}.relu", y, "zero", "six")

    weight("zero", np.array(0))
    weight("six", np.array(6))
    x = convolution("image", "stem", 3, STEM, kernel=3, stride=2)
    channels = STEM
    for number, (out, widening, stride) in enumerate(BLOCKS):
        name, wide, y = f"blocks.{number}", channels * widening, x
        if widening > 1:
            y = convolution(y, f"{name}.widen", channels, wide)
        y = convolution(y, f"{name}.depth", wide, wide, kernel=3, stride=stride, groups=wide)
        y = convolution(y, f"{name}.narrow", wide, out, relu=False)
        x = node("Add", f"{name}.add", x, y) if (channels, stride) == (out, 1) else y
        channels = out
    x = convolution(x, "last", channels, LAST)
    x = node("Flatten", "features", node("GlobalAveragePool", "pool", x))
    values = rng.standard_normal((classes, LAST)) * np.sqrt(1 / LAST)
    head = (weight("head.weight", values), weight("head.bias", np.zeros(classes)))
    node("Gemm", "scores", x, *head, transB=1)

    float32 = TensorProto.FLOAT
    image = helper.make_tensor_value_info("image", float32, ["batch", 3, SIZE, SIZE])
    scores = helper.make_tensor_value_info("scores", float32, ["batch", classes])
    graph = helper.make_graph(nodes, "classifier", [image], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model

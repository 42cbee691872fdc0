"""The network: an autoencoder of sensor readings.

`python model.py` writes forward.onnx, which contains the mean and deviation of sensors.csv.

The network compresses a reading to a few numbers and reconstructs the reading from them.  It can
reconstruct only what it was trained on, so a large error means that a reading is not normal.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgegrad.data import Csv

WIDE, NARROW = 48, 3  # the machine's state has few dimensions: how fast, how much, how warm


def network(mean: np.ndarray, deviation: np.ndarray, seed: int = 0) -> onnx.ModelProto:
    """Readings [batch, channels] in their own units to `error` [batch], and its mean, the loss.

    mean, deviation: statistics of normal readings, float32[channels].  They become constants of
        the model, so a program on the device does not need them.
    """
    rng = np.random.default_rng(seed)
    sizes = (len(mean), WIDE, NARROW, WIDE, len(mean))
    known = {"mean": mean, "deviation": deviation}
    weights = [numpy_helper.from_array(values, name) for name, values in known.items()]
    nodes = [
        helper.make_node("Sub", ["readings", "mean"], ["centered"]),
        helper.make_node("Div", ["centered", "deviation"], ["layer0"]),
    ]
    for number, (into, out) in enumerate(pairwise(sizes), 1):
        values = rng.standard_normal((out, into)) / np.sqrt(into)
        names = [f"layer{number}.weight", f"layer{number}.bias"]
        weights.append(numpy_helper.from_array(values.astype(np.float32), names[0]))
        weights.append(numpy_helper.from_array(np.zeros(out, np.float32), names[1]))
        linear = f"layer{number}.linear" if out == WIDE else f"layer{number}"
        nodes.append(helper.make_node("Gemm", [f"layer{number - 1}", *names], [linear], transB=1))
        if out == WIDE:
            nodes.append(helper.make_node("Tanh", [linear], [f"layer{number}"]))
    weights.append(numpy_helper.from_array(np.array([1]), "channels"))
    nodes += [
        helper.make_node("Sub", ["layer4", "layer0"], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "channels"], ["error"], keepdims=0),
        helper.make_node("ReduceMean", ["error"], ["loss"], keepdims=0),
    ]
    float32 = TensorProto.FLOAT
    outputs = [
        helper.make_tensor_value_info("loss", float32, []),
        helper.make_tensor_value_info("error", float32, ["batch"]),
    ]
    inputs = [helper.make_tensor_value_info("readings", float32, ["batch", len(mean)])]
    graph = helper.make_graph(nodes, "autoencoder", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Write forward.onnx."""
    readings = Csv("sensors.csv", target=None, normalize=False)
    (values,) = readings.take(np.arange(len(readings)))
    onnx.save(network(values.mean(0), values.std(0)), "forward.onnx")
    print("wrote forward.onnx")


if __name__ == "__main__":
    main()

"""A small classifier of pictures and pictures of it, for tests of whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 8
COLORS = {"blue": (40, 40, 220), "green": (40, 220, 40), "red": (220, 40, 40)}


def write_pictures(folder: Path, count: int = 10, seed: int = 0) -> Path:
    """Noisy squares of one colour a class, as PNG files `folder/<class>/<number>.png`."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for k in range(count):
            noise = rng.integers(-30, 31, (SIZE + 2, SIZE + 4, 3))
            pixels = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k:03d}.png")
    return folder


def write_classifier(
    path: Path, classes: int = 10, last: str = "", channels: int = 3, size: int | str = SIZE
) -> Path:
    """A convolution, a mean over the picture, and a last layer; `last` may be Softmax or Tanh."""
    rng = np.random.default_rng(1)
    weights = {
        "conv.weight": rng.standard_normal((4, channels, 3, 3)) * 0.3,
        "conv.bias": np.zeros(4),
        "classifier.weight": rng.standard_normal((classes, 4)),
        "classifier.bias": np.zeros(classes),
    }
    scores = "scores" if last else "y"
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node(
            "Gemm", ["f", "classifier.weight", "classifier.bias"], [scores], transB=1, name="fc"
        ),
    ]
    if last:
        nodes.append(helper.make_node(last, [scores], ["y"]))
    shape: list[str | int | None] = ["batch", channels, size, size]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path

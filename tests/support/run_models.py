"""Small models of pictures, sounds and tables, and data for them, for tests of whole runs."""

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
    path: Path,
    classes: int = 10,
    last: str = "",
    channels: int = 3,
    size: int = SIZE,
    pooled: bool = True,
) -> Path:
    """A convolution, a mean over the picture, and a last layer; `last` may be Softmax or Tanh.

    pooled: False leaves out the mean.
    """
    rng = np.random.default_rng(1)
    width = 4 if pooled else 4 * size * size
    weights = {
        "conv.weight": rng.standard_normal((4, channels, 3, 3)) * 0.3,
        "conv.bias": np.zeros(4),
        "classifier.weight": rng.standard_normal((classes, width)),
        "classifier.bias": np.zeros(classes),
    }
    scores = "scores" if last else "y"
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool" if pooled else "Identity", ["r"], ["p"]),
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


def write_sounds(folder: Path, count: int = 6, seed: int = 0) -> Path:
    """Tones of one pitch a class with noise, a fifth of a second, as `folder/<class>/*.wav`."""
    import soundfile

    rng, rate = np.random.default_rng(seed), 8000
    time = np.arange(rate // 5) / rate
    for name, pitch in {"high": 2000, "low": 300}.items():
        (folder / name).mkdir(parents=True)
        for k in range(count):
            sound = np.sin(2 * np.pi * pitch * time) / 2 + rng.normal(0, 0.02, time.size)
            soundfile.write(folder / name / f"{k}.wav", sound.astype(np.float32), rate)
    return folder


def write_table(path: Path, target: str, rows: int = 60, seed: int = 0) -> Path:
    """Rows of width, height and color; target "kind" (small, large), or "area" (a number)."""
    rng = np.random.default_rng(seed)
    lines = [f"width,height,color,{target}"]
    for _ in range(rows):
        width, height = rng.uniform(1, 5, 2)
        area = width * height
        value = f"{area:.4f}" if target == "area" else ("large" if area > 8 else "small")
        lines.append(f"{width:.3f},{height:.3f},{rng.choice(['red', 'blue'])},{value}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_regressor(path: Path, outputs: int = 1, features: int = 4) -> Path:
    """Two linear layers on a row of features."""
    rng = np.random.default_rng(2)
    weights = {
        "fc1.weight": rng.standard_normal((features, 16)) * 0.5,
        "fc1.bias": np.zeros(16),
        "fc2.weight": rng.standard_normal((16, outputs)) * 0.3,
        "fc2.bias": np.zeros(outputs),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], name="fc1"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "fc2.weight", "fc2.bias"], ["y"], name="fc2"),
    ]
    graph = helper.make_graph(
        nodes,
        "regressor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def write_autoencoder(path: Path) -> Path:
    """Two linear layers that rebuild a row of five features; outputs the loss and each error."""
    rng = np.random.default_rng(2)
    weights = {
        "fc1.weight": rng.standard_normal((5, 3)) * 0.5,
        "fc2.weight": rng.standard_normal((3, 5)) * 0.5,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["h"], name="fc1"),
        helper.make_node("MatMul", ["h", "fc2.weight"], ["y"], name="fc2"),
        helper.make_node("Sub", ["y", "x"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["error"], axes=[1], keepdims=0),
        helper.make_node("ReduceMean", ["error"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "autoencoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("error", TensorProto.FLOAT, ["batch"]),
        ],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def write_texts(folder: Path, count: int = 8) -> Path:
    """Texts of digits and of letters, as `folder/<class>/<number>.txt`."""
    rng = np.random.default_rng(0)
    for name, letters in {"digits": "0123456789", "letters": "abcdefgh"}.items():
        (folder / name).mkdir(parents=True)
        for k in range(count):
            text = "".join(rng.choice(list(letters), 30))
            (folder / name / f"{k}.txt").write_text(text)
    return folder


def write_text_model(path: Path, per_token: bool) -> Path:
    """An embedding of bytes and a linear layer, on the mean of a text or on every token."""
    rng = np.random.default_rng(3)
    outputs = 257 if per_token else 2
    weights = {
        "table": rng.standard_normal((257, 8)) * 0.5,
        "fc.weight": rng.standard_normal((8, outputs)) * 0.3,
        "fc.bias": np.zeros(outputs),
    }
    nodes = [helper.make_node("Gather", ["table", "tokens"], ["e"])]
    if per_token:
        nodes.append(helper.make_node("MatMul", ["e", "fc.weight"], ["m"], name="fc"))
        nodes.append(helper.make_node("Add", ["m", "fc.bias"], ["a"]))
        nodes.append(helper.make_node("Transpose", ["a"], ["y"], perm=[0, 2, 1]))
        shape: list[str | int | None] = ["batch", 257, "length"]
    else:
        nodes.append(helper.make_node("ReduceMean", ["e"], ["p"], axes=[1], keepdims=0))
        nodes.append(helper.make_node("Gemm", ["p", "fc.weight", "fc.bias"], ["y"], name="fc"))
        shape = ["batch", 2]
    graph = helper.make_graph(
        nodes,
        "texts",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path

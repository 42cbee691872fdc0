"""Files in the current folder that pages assume and their readers bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import soundfile
from onnx import helper, numpy_helper
from PIL import Image

from bench.decoders import DecoderSizes, build_gpt2_decoder
from engine import artifacts
from engine.graphs.io import onnx_io

FLOWERS = """length,colour,width,kind
1.0,red,10,rose
2.0,blue,,tulip
3.0,red,30,rose
4.0,blue,40,tulip
5.0,red,50,rose
6.0,blue,60,tulip
"""
REVIEWS = """text,label
"so so, I dare say",bad
"grand ..",good
"a fine film indeed!",good
"awful",bad
"""
PARAMETERS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def forward(path: str = "forward.onnx", features: int = 20, classes: int = 3) -> None:
    """Write two linear layers, as an exporter does: input `images`, output `output`."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (32, features), "fc1.bias": (32,), "fc2.weight": (classes, 32),
              "fc2.bias": (classes,)}  # fmt: skip
    values = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["images", *PARAMETERS[:2]], ["hidden"], "fc1", transB=1),
            helper.make_node("Relu", ["hidden"], ["active"], "relu"),
            helper.make_node("Gemm", ["active", *PARAMETERS[2:]], ["output"], "fc2", transB=1),
        ],
        "classifier",
        [_make_input("images", ["batch", features])],
        [_make_input("output", ["batch", classes])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def decoder(path: str = "decoder.onnx") -> None:
    """Write a small GPT-2 of 100 tokens with caches."""
    onnx_io.save(build_gpt2_decoder(DecoderSizes(2, 64, 4, 4, 128, 100, 64)), path)


def pictures(path: str, channels: int, side: int, classes: int) -> None:
    """Write a convolution, a pooling and a linear layer: input `input`, output `output`."""
    rng = np.random.default_rng(0)
    flat = 8 * (side // 2) ** 2
    values = {
        "0.weight": rng.standard_normal((8, channels, 3, 3)) / np.sqrt(9 * channels),
        "0.bias": np.zeros(8),
        "4.weight": rng.standard_normal((classes, flat)) / np.sqrt(flat),
        "4.bias": np.zeros(classes),
    }
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["input", "0.weight", "0.bias"], ["map"], "conv", pads=[1, 1, 1, 1]),
            node("Relu", ["map"], ["active"], "relu"),
            node("MaxPool", ["active"], ["small"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("Flatten", ["small"], ["flat"], "flatten"),
            node("Gemm", ["flat", "4.weight", "4.bias"], ["output"], "fc", transB=1),
        ],
        "pictures",
        [_make_input("input", ["batch", channels, side, side])],
        [_make_input("output", ["batch", classes])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def photos(folder: str, kinds: int = 3, each: int = 20, side: int = 32) -> None:
    """Write coloured squares on noise, a colour a class: `folder/<colour>/<number>.png`."""
    rng = np.random.default_rng(0)
    for kind, name in enumerate(("red", "green", "blue")[:kinds]):
        place = Path(folder) / name
        place.mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 120, (side, side, 3), np.uint8)
            top, left = rng.integers(0, side // 2, 2)
            pixels[top : top + side // 2, left : left + side // 2, kind] += 120
            Image.fromarray(pixels).save(place / f"{i:02}.png")


def masks(folder: str, each: int = 12, side: int = 48) -> None:
    """Write red discs on noise, and their masks: `images/<number>.png` and `masks/<number>.png`."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:side, :side]
    for what in ("images", "masks"):
        Path(folder, what).mkdir(parents=True)
    for i in range(each):
        row, column = rng.integers(side // 4, 3 * side // 4, 2)
        disc = np.hypot(rows - row, columns - column) < side / 5
        pixels = rng.integers(0, 80, (side, side, 3)) + disc[..., np.newaxis] * [160, 60, 40]
        Image.fromarray(pixels.astype(np.uint8)).save(Path(folder, "images", f"{i:02}.png"))
        Image.fromarray((disc * 255).astype(np.uint8)).save(Path(folder, "masks", f"{i:02}.png"))


def sentences(path: str, count: int = 60) -> None:
    """Write sentences of words with tags, in which some names are persons."""
    rng = np.random.default_rng(0)
    names, others = ["Ada", "Bob", "Max"], ["Rome", "and", "goes", "home", "sees"]
    lines = []
    for _ in range(count):
        words = rng.choice([*names, *others], rng.integers(3, 8))
        lines += [f"{word} {'PER' if word in names else 'O'}" for word in words] + [""]
    Path(path).write_text("\n".join(lines))


def digits(folder: str = "photos", count: int = 600) -> None:
    """Write scikit-learn's handwritten digits: `folder/<digit>/<number>.png`."""
    from sklearn.datasets import load_digits

    data = load_digits()
    for i, (image, label) in enumerate(zip(data.images[:count], data.target, strict=False)):
        place = Path(folder) / str(label)
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((image * 15.9).astype(np.uint8))
        picture.resize((32, 32), Image.Resampling.BICUBIC).save(place / f"{i}.png")


def _make_input(name: str, shape: Sequence[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def data() -> None:
    """Write what docs/data.md speaks of: pictures, sounds, tables, texts."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (80, 100, 3), np.uint8)
            Image.fromarray(pixels).save(Path("photos", name, f"{i}.jpg"))
    for name in ("no", "yes"):
        Path("words", name).mkdir(parents=True)
        for i in range(2):
            sound = rng.uniform(-0.5, 0.5, 8000)
            soundfile.write(Path("words", name, f"{i}.wav"), sound, 8000)
    Path("flowers.csv").write_text(FLOWERS)
    Path("reviews.csv").write_text(REVIEWS)
    Path("diary.txt").write_text("This morning it rained, and we stayed in. " * 3)


def made(folder: str = "artifacts") -> None:
    """Write `forward.onnx` and its artifacts for cross-entropy and AdamW."""
    forward()
    artifacts.generate_artifacts(
        "forward.onnx",
        requires_grad=PARAMETERS,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def batch(size: int = 8, features: int = 20, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels that the model can learn."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, size)
    means = rng.standard_normal((classes, features))
    return (means[labels] + rng.standard_normal((size, features))).astype(np.float32), labels

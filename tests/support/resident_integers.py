"""Networks of integers that tests train in place, and products of few bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from engine.artifacts import SGD, AdamW, SparseUpdate
from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.kernels.vocabulary.op import MS
from engine.models.catalog import find_architecture
from engine.models.named_model import make
from engine.quantization import Quantization, quantize
from engine.trainer.trainer import Trainer

SHAPE, CLASSES = (1, 20, 16), 4
KINDS = {"int4": (TensorProto.INT4, np.int8), "uint4": (TensorProto.UINT4, np.uint8)}
ALL = SparseUpdate(layers=["*"], integers=True)


def make_data(count: int = 96, seed: int = 0, shift: int = 0) -> tuple[Array, Array]:
    """Pictures of noise in which one of four bands is brighter; labels are moved by `shift`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    x = rng.standard_normal((count, *SHAPE)).astype(np.float32)
    for k, label in enumerate(labels):
        x[k, 0, 5 * label : 5 * label + 5] += 1.2
    return x, ((labels + shift) % CLASSES).astype(np.int64)


def train_network(path: Path) -> None:
    """Write a small network with depthwise convolutions that was trained in floats."""
    graph = make(find_architecture("ds_cnn"), classes=CLASSES, input_shape=SHAPE, seed=0).graph
    trainer = Trainer.from_onnx(
        onnx_io.to_bytes(graph), "cross_entropy", AdamW(lr=5e-3), threads=1, seed=0
    )
    trainer.fit(make_data(), epochs=20, progress=False)
    trainer.export(path)


def begin(model: Path | bytes, optimizer: Any = None, **options: Any) -> Trainer:
    chosen = optimizer or SGD(lr=0.05)
    options.setdefault("update", ALL)
    return Trainer.from_onnx(model, "cross_entropy", chosen, threads=1, seed=0, **options)


def fit(trainer: Trainer, epochs: int) -> None:
    x, y = make_data(192, seed=1, shift=1)
    trainer.fit((x, y), epochs=epochs, batch_size=16, progress=False)


def quantise_network(folder: Path, options: Quantization) -> Path:
    """Train a small network with depthwise convolutions in floats, and quantise it; its file."""
    train_network(folder / "float.onnx")
    quantize(folder / "float.onnx", make_data()[0], options).save(folder / "integers.onnx")
    return folder / "integers.onnx"


def check_learning(trainer: Trainer, folder: Path) -> onnx.ModelProto:
    """Check that a network learns other labels; return its export, which gives the same scores."""
    x, y = make_data(200, seed=9, shift=1)
    before = measure_accuracy(trainer, x, y)
    fit(trainer, epochs=12)
    trained = np.asarray(trainer.predict(x))
    assert before < 0.3 < 0.9 < float(np.mean(trained.argmax(1) == y))
    trainer.export(folder / "trained.onnx")
    model = onnx.load(folder / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    differences = np.abs(trained - run_unrounded(folder / "trained.onnx", x)).max(1)
    assert np.quantile(differences, 0.8) < 1e-3 * np.abs(trained).max()
    assert differences.max() < np.abs(trained).max() / 127
    return model


def check_checkpoint(model: Path, folder: Path) -> None:
    """Check that a training goes on from a checkpoint with the same bits."""
    first = begin(model)
    fit(first, epochs=1)
    first.save(folder)
    second = begin(model)
    second.load(folder)
    x, y = make_data(16, seed=3)
    assert first.step(x, y) == second.step(x, y)
    for name, p in first.state.parameters:
        np.testing.assert_array_equal(p.data, second.state.parameters[name].data, err_msg=name)


def measure_accuracy(trainer: Trainer, x: Array, y: Array) -> float:
    return float(np.mean(np.asarray(trainer.predict(x)).argmax(1) == y))


def run_unrounded(path: Path, x: Array) -> Array:
    """Run a model in onnxruntime, which then rounds no input of weights of 4 bits."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def make_nbits(bits: int, k: int = 80, zeros: bool = False, level: int = 0) -> onnx.ModelProto:
    """Return a product with 24 columns and a bias, with blocks of 32."""
    rng, n, blocks = np.random.default_rng(2), 24, -(-k // 32)
    tensors: dict[str, Array] = {
        "q": rng.integers(0, 256, (n, blocks, 32 * bits // 8)).astype(np.uint8),
        "s": rng.uniform(0.02, 0.1, n * blocks).astype(np.float32),
        "b": rng.standard_normal(n).astype(np.float32),
    }
    if zeros:
        tensors["z"] = rng.integers(0, 256, n * -(-blocks * bits // 8)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s", "z" if zeros else "", "", "b"], ["y"], "product", domain=MS,
        N=n, K=k, bits=bits, block_size=32, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "nbits", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", n])],
        [numpy_helper.from_array(a, name) for name, a in tensors.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make_layer(
    kind: str,
    weight: Array,
    units: tuple[Array, Array],
    reader: str,
    inputs: tuple[int | str, ...],
    attrs: dict[str, Any] | None = None,
    **block: Any,
) -> bytes:
    """Return a model of one layer with such weights.

    units: scales and zero points.  inputs: the shape of x.  block: axis and block_size.
    """
    code, dtype = KINDS[kind]
    scale, zero = units
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], **block),
        helper.make_node(reader, ["x", "w"], ["y"], **(attrs or {})),
    ]
    tensors = [
        helper.make_tensor(name, code, a.shape, a.astype(dtype).reshape(-1))
        for name, a in (("q", weight), ("z", zero))
    ]
    tensors.append(numpy_helper.from_array(scale, "s"))
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(inputs))], tensors,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())

"""Integers that are trained in place, without float masters."""

from __future__ import annotations

import json
import math
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.artifacts import SGD, AdamW, LossType, SparseUpdate, generate_artifacts
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import DTypeError, EngineError, InputError, StateError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.integer_training import list_resident
from engine.kernels.vocabulary.expression import philox
from engine.kernels.vocabulary.op import OURS, TensorType
from engine.quantization import Quantization
from engine.tools import cli
from engine.tools.trimmed.targets import resolve
from engine.trainer.trainer import Trainer
from tests.support.builds import load, needs_cc
from tests.support.harness import run
from tests.support.resident_integers import (
    begin,
    check_checkpoint,
    fit,
    make_data,
    measure_accuracy,
    quantise_network,
)


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with depthwise convolutions that was trained in floats, as int8."""
    return quantise_network(tmp_path_factory.mktemp("int8"), Quantization())


def run_peer(path: Path, x: Array) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


# --- what is trained


def test_a_network_of_integers_learns_other_labels_in_place(int8: Path, tmp_path: Path) -> None:
    """And its export is the integer model that was trained."""
    trainer = begin(int8)
    kinds = {p.data.dtype.name for _, p in trainer.state.parameters}
    assert kinds == {"int8", "int32"}
    assert all(p.requires_grad for _, p in trainer.state.parameters)
    x, y = make_data(200, seed=9, shift=1)
    before = measure_accuracy(trainer, x, y)
    fit(trainer, epochs=12)
    trained = np.asarray(trainer.predict(x))
    assert before < 0.3 < 0.9 < float(np.mean(trained.argmax(1) == y))
    trainer.export(tmp_path / "trained.onnx")
    model = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    given = {t.name: t for t in onnx.load(int8).graph.initializer}
    made = {t.name: t for t in model.graph.initializer}
    for name, _ in trainer.state.parameters:
        assert made[name].data_type == given[name].data_type
        assert made[name].dims == given[name].dims
        if made[name].data_type == TensorProto.INT8:
            assert np.abs(numpy_helper.to_array(made[name]).astype(int)).max() <= 127
    differences = np.abs(trained - run_peer(tmp_path / "trained.onnx", x)).max(1)
    assert np.quantile(differences, 0.8) < 1e-3 * np.abs(trained).max()
    assert differences.max() < np.abs(trained).max() / 127


def test_a_sparse_update_leaves_the_other_integers_as_they_are(int8: Path, tmp_path: Path) -> None:
    update = SparseUpdate(biases=True, last=2, integers=True)
    trainer = begin(int8, update=update)
    names = {name for name, _ in trainer.state.parameters}
    biases = {n for n in list_resident(onnx_io.load(int8)) if "bias" in n}
    weights = {"blocks.3.pointwise.conv.weight_quantized", "classifier.weight_quantized"}
    assert names == biases | weights
    fit(trainer, epochs=1)
    trainer.export(tmp_path / "trained.onnx")
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer}
        for p in (int8, tmp_path / "trained.onnx")
    )
    changed = {n for n in before if n in after and not np.array_equal(before[n], after[n])}
    assert changed <= names
    assert weights < changed


def test_a_checkpoint_goes_on_with_the_same_bits(int8: Path, tmp_path: Path) -> None:
    check_checkpoint(int8, tmp_path / "saved")


# --- gradients and rounding


def make_linear(weight: Array, scale: Array, bias: Array, unit: Array) -> bytes:
    """Return y = x w^T + b of quantised weights with a scale for each row, and of such a bias."""
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
            helper.make_node("DequantizeLinear", ["p", "t"], ["b"], axis=0),
            helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weight.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", weight.shape[0]])],
        [
            numpy_helper.from_array(array, name)
            for name, array in {
                "q": weight, "s": scale, "z": np.full(scale.shape, 3, weight.dtype), "p": bias,
                "t": unit,
            }.items()
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_a_step_is_that_of_gradient_descent_in_units_of_the_scales(kind: str) -> None:
    """Up to the rounding, which takes a step up or down and none on average."""
    rng, rows, columns, rate = np.random.default_rng(0), 8, 512, np.float32(0.125)
    dtype = {"i8": np.int8, "u8": np.uint8}[kind]
    weight = rng.integers(20, 100, (rows, columns)).astype(dtype)
    scale = rng.uniform(0.01, 0.2, rows).astype(np.float32)
    bias = rng.integers(-1000, 1000, rows).astype(np.int32)
    unit = (scale / 100).astype(np.float32)
    trainer = Trainer.from_onnx(
        make_linear(weight, scale, bias, unit), "mse", SGD(lr=float(rate)), train=["q", "p"],
        threads=1,
    )  # fmt: skip
    x = rng.standard_normal((4, columns)).astype(np.float32)
    y = rng.standard_normal((4, rows)).astype(np.float32)
    trainer.step(x, y)
    w = (weight.astype(np.float64) - 3) * scale[:, None]
    error = 2 * (x @ w.T + bias * unit.astype(np.float64) - y) / y.size
    parameters = trainer.state.parameters
    exact = weight - rate * (error.T @ x) / scale[:, None]
    inside = np.abs(exact - 64) < 60
    assert inside.mean() > 0.7
    off = (parameters["q"].data - exact)[inside]
    assert np.abs(off).max() < 1.001
    assert abs(off.mean()) < 4 * 0.5 / math.sqrt(off.size)
    np.testing.assert_allclose(
        parameters["p"].data, bias - rate * error.sum(0) / unit, atol=1.01, rtol=1e-5
    )


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("T", ["i8", "u8", "i32"])
def test_the_kernel_equals_its_formula(T: str, target: str) -> None:
    rng, n = np.random.default_rng(1), 200
    dtype: Any = NUMPY[T]
    low, high = max(np.iinfo(dtype).min, -np.iinfo(dtype).max), np.iinfo(dtype).max
    before = rng.integers(low, high, n, endpoint=True).astype(dtype)
    g = (rng.standard_normal(n) * 20).astype(np.float32)
    before[0], g[:5] = np.iinfo(dtype).min, [0, np.nan, np.inf, -np.inf, 0]
    rate, step = 0.375, 7
    name, attrs = "w/update", {"weight_decay": 0.125}
    inputs = {"lr": TensorType("f32", (1,)), "step": TensorType("i64", (1,))}
    inputs |= {"p": TensorType(T, (n,)), "g": TensorType("f32", (n,))}
    node = Node("SGDOptimizer", (*inputs,), ("done",), attrs, OURS, name)
    graph = Graph("update", inputs, ["done"], {}, [node], {"": 17, OURS: 1})
    given: dict[str, Array] = {
        "lr": np.array([rate], np.float32),
        "step": np.array([step]),
        "p": before,
        "g": g,
    }
    made = resolve(target).target
    after = run(graph, given, changes=True, target=made)["p"]
    words, _ = philox(np.arange(n), step, zlib.crc32(name.encode()))
    real: Any = np.float64 if T == "i32" else np.float32
    u = (words >> 8).astype(real) * real(2**-24)
    with np.errstate(invalid="ignore"):
        # With fused multiply-adds, decay q + g has one rounding: exact in double.
        d = rate * (g.astype(np.float64) + 0.125 * before.astype(np.float64))
        moved = before.astype(np.float64) + np.where(np.isnan(d), 0, np.floor(u - d))
    expected = np.maximum(np.minimum(moved, high), np.minimum(low, before.astype(np.float64)))
    differs = np.flatnonzero(after != expected.astype(dtype))
    assert differs.size <= 1  # where u - d is within a rounding of an integer
    assert after[1] == before[1]
    assert after[2] == min(low, int(before[2]))
    assert after[3] == high


# --- what is refused


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (AdamW(), "keeps floats for each value that it trains"),
        (SGD(momentum=0.9), "which SGD without momentum trains in place"),
        (SGD(clip_grad=1.0), "clip_grad=1.0: gradients of integers"),
    ],
)
def test_optimizers_that_keep_floats_are_refused(int8: Path, optimizer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        begin(int8, optimizer)


def test_gradients_of_integers_are_not_kept(int8: Path) -> None:
    trainer = begin(int8)
    x, y = make_data(8)
    with pytest.raises(StateError, match="trained in place: no gradient"):
        trainer.accumulate(x, y)
    trainer.step(x, y)
    with pytest.raises(StateError, match="is not kept: it is i8"):
        _ = trainer.state.parameters["classifier.weight_quantized"].grad
    with pytest.raises(InputError, match="proximal=True"):
        begin(int8, proximal=True)


def test_integers_that_something_else_reads_are_refused() -> None:
    model = onnx.load_from_string(
        make_linear(
            np.ones((2, 3), np.int8), np.ones(2, np.float32), np.ones(2, np.int32),
            np.ones(2, np.float32),
        )
    )  # fmt: skip
    model.graph.node.append(helper.make_node("Cast", ["q"], ["c"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [2, 3]))
    with pytest.raises(DTypeError, match=r"read by Cast .*DequantizeLinear alone"):
        generate_artifacts(
            model, ["q"], loss=LossType.MSELoss, optimizer=SGD(), loss_input_names=["y"],
            artifact_directory="unused",
        )  # fmt: skip


# --- commands and builds


@needs_cc
def test_a_build_trains_integers_like_the_engine(
    int8: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`artifacts --integers`, `check` and `build --joined`; another build is refused."""
    made, out = tmp_path / "artifacts", tmp_path / "out"
    options = ["--loss", "cross_entropy", "--optimizer", "SGD", "--lr", "0.2", "--biases"]
    options += ["--last", "2", "--integers", "-o", str(made)]
    assert cli.main(["artifacts", str(int8), *options]) == 0
    capsys.readouterr()
    assert cli.main(["check", str(made), "--batch", "16", "--brief", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "trains"
    build = ["build", str(made), "--batch", "16", "-o", str(out), "--name", "mnist"]
    assert cli.main(build) == 1
    assert "trained in place" in capsys.readouterr().err
    assert cli.main([*build, "--joined"]) == 0
    assert subprocess.run(out / "selftest").returncode == 0
    face, mine = load(out), Trainer(made, threads=1)
    twin = face.Trainer(made / "checkpoint")
    x, y = make_data(16, seed=1, shift=1)
    for _ in range(3):
        assert float(twin.step(x, y)) == mine.step(x, y)
    for name, p in mine.state.parameters:
        np.testing.assert_array_equal(twin.state.parameters[name].data, p.data, err_msg=name)
    with pytest.raises(EngineError):
        mine.accumulate(x, y)

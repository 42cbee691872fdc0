"""Integers of 4 bits that are trained in place, two to a byte."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from engine.artifacts import SGD, SparseUpdate
from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.graphs.io import onnx_io
from engine.graphs.io.messages import join_nibbles
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.packed_weights import split_nibbles
from engine.kernels.vocabulary.expression import philox
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.quantization import Quantization
from engine.tools import cli
from engine.tools.trimmed.targets import resolve
from engine.trainer.trainer import Trainer
from tests.support.builds import load, needs_cc
from tests.support.harness import run
from tests.support.resident_integers import (
    begin,
    check_checkpoint,
    check_learning,
    make_data,
    make_layer,
    make_nbits,
    quantise_network,
    run_unrounded,
)


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with depthwise convolutions that was trained in floats, with int4 weights."""
    return quantise_network(tmp_path_factory.mktemp("int4"), Quantization(weight_bits=4))


# --- networks


def test_a_network_of_4_bits_learns_other_labels_in_place(int4: Path, tmp_path: Path) -> None:
    """Two weights share a byte throughout, and the export is the model that was trained."""
    trainer = begin(int4)
    given = {t.name: t for t in onnx.load(int4).graph.initializer}
    for name, p in trainer.state.parameters:
        bits = 32 if p.data.dtype == np.int32 else 4
        assert p.data.nbytes == -(-math.prod(given[name].dims) * bits // 8), name
        assert p.data.tobytes() == given[name].raw_data
    x, y = make_data(4)
    values = [math.prod(given[name].dims) for name, _ in trainer.state.parameters]
    assert trainer.check(x, y, variants=False).trained == (len(values), sum(values))
    model = check_learning(trainer, tmp_path)
    made = {t.name: t for t in model.graph.initializer}
    for name, _ in trainer.state.parameters:
        assert (made[name].data_type, made[name].dims) == (given[name].data_type, given[name].dims)
        if made[name].data_type == TensorProto.INT4:
            assert np.abs(numpy_helper.to_array(made[name]).astype(int)).max() <= 7


def test_a_checkpoint_goes_on_with_the_same_bits(int4: Path, tmp_path: Path) -> None:
    check_checkpoint(int4, tmp_path / "saved")


@needs_cc
def test_a_build_trains_them_like_the_engine(int4: Path, tmp_path: Path) -> None:
    """`artifacts --integers` and `build --joined`, with weights that products and windows read."""
    made, out = tmp_path / "artifacts", tmp_path / "out"
    options = ["--loss", "cross_entropy", "--optimizer", "SGD", "--lr", "0.2", "--biases"]
    options += ["--last", "3", "--integers", "-o", str(made)]
    assert cli.main(["artifacts", str(int4), *options]) == 0
    assert cli.main(["check", str(made), "--batch", "16", "--brief"]) == 0
    build = ["build", str(made), "--batch", "16", "-o", str(out), "--name", "mnist", "--joined"]
    assert cli.main(build) == 0
    mine = Trainer(made, threads=1)
    twin = load(out).Trainer(made / "checkpoint")
    before = {name: p.data.copy() for name, p in mine.state.parameters}
    x, y = make_data(16, seed=1, shift=1)
    for _ in range(3):
        assert float(twin.step(x, y)) == mine.step(x, y)
    for name, p in mine.state.parameters:
        np.testing.assert_array_equal(twin.state.parameters[name].data, p.data, err_msg=name)
        assert not np.array_equal(before[name], p.data), name
    twin.module.export_model_for_inferencing(tmp_path / "device.onnx")
    mine.export(tmp_path / "engine.onnx")
    both = [onnx_io.load(tmp_path / f"{who}.onnx").initializers for who in ("device", "engine")]
    assert both[0].keys() == both[1].keys()
    for name, array in both[0].items():
        np.testing.assert_array_equal(array, both[1][name], err_msg=name)


# --- gradients and rounding


def check_step(trainer: Trainer, before: Array, gradient: Array, rate: float, low: int) -> None:
    """Check that integers moved by a step of gradient descent, rounded up or down by chance.

    gradient: dL/dw / s of each integer.
    """
    after = split_nibbles(trainer.state.parameters["q"].data, before.shape)
    exact = np.clip(before - rate * gradient, low, low + (15 if low == 0 else 14))
    off = after.astype(int) - exact
    moved = np.abs(rate * gradient) > 0
    assert np.abs(off).max() < 1.001
    assert moved.mean() > 0.9
    inside = (exact > low + 1) & (exact < 6)
    assert inside.sum() > 100
    assert abs(off[inside].mean()) < 4 * 0.5 / math.sqrt(inside.sum())


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize(
    ("block", "extent"),
    [
        ({"axis": 0}, (33,)),
        ({"axis": 1}, (47,)),
        ({"axis": 0}, ()),
        ({"axis": 0, "block_size": 16}, (3, 47)),
        ({"axis": 1, "block_size": 16}, (33, 3)),
        ({"axis": 1, "block_size": 32}, (33, 2)),
    ],
    ids=["rows", "columns", "one", "blocks down", "blocks across", "wide blocks"],
)
def test_a_step_is_that_of_gradient_descent(
    kind: str, block: dict[str, Any], extent: tuple[int, ...]
) -> None:
    """Of a matrix whose rows end in half a byte, whatever shares a scale."""
    rng, rate, low = np.random.default_rng(0), 0.125, 0 if kind == "uint4" else -7
    weight = rng.integers(low + 2, low + 12, (33, 47))
    scale: Array = np.asarray(rng.uniform(0.02, 0.2, extent), np.float32)
    zero = rng.integers(low + 4, low + 9, extent)
    model = make_layer(kind, weight, (scale, zero), "MatMul", ("n", 33), **block)
    trainer = Trainer.from_onnx(model, "mse", SGD(lr=rate), train=["q"], threads=1)
    x = rng.standard_normal((8, 33)).astype(np.float32)
    y = rng.standard_normal((8, 47)).astype(np.float32)

    def spread(values: Array) -> Array:
        if "block_size" in block:
            size, axis = block["block_size"], block["axis"]
            return np.repeat(values, size, axis)[:33, :47]
        return values[:, None] if values.ndim and block["axis"] == 0 else values

    s, z = spread(scale).astype(np.float64), spread(zero)
    w = (weight - z) * s
    np.testing.assert_allclose(trainer.predict(x), x @ w, rtol=1e-4, atol=1e-4)
    assert trainer.state.parameters["q"].data.shape == (-(-33 * 47 // 2),)
    trainer.step(x, y)
    gradient = x.T @ (2 * (x @ w - y) / y.size)
    check_step(trainer, weight, gradient / s, rate, low)
    assert trainer.state.parameters["q"].data.view(np.uint8)[-1] < 16  # the last half is empty


@pytest.mark.parametrize(("groups", "axis"), [(1, 0), (1, 1), (4, 0)])
def test_a_step_of_windows_is_that_of_gradient_descent(groups: int, axis: int) -> None:
    """Convolutions read their weights as floats, which are made for as long as they are read."""
    rng, rate = np.random.default_rng(1), 0.25
    weight = rng.integers(-5, 6, (8, 8 // groups, 3, 3))
    scale: Array = np.asarray(rng.uniform(0.02, 0.2, weight.shape[axis]), np.float32)
    units = scale, np.zeros(scale.shape, np.int8)
    attrs = {"pads": [1, 1, 1, 1], "group": groups}
    model = make_layer("int4", weight, units, "Conv", ("n", 8, 6, 6), attrs, axis=axis)
    trainer = Trainer.from_onnx(model, "mse", SGD(lr=rate), train=["q"], threads=1)
    x = rng.standard_normal((4, 8, 6, 6)).astype(np.float32)
    y = rng.standard_normal((4, 8, 6, 6)).astype(np.float32)
    s = scale.reshape([-1 if k == axis else 1 for k in range(4)]).astype(np.float64)
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows: Array = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    windows = windows.reshape(4, groups, 8 // groups, 6, 6, 3, 3)
    w = (weight * s).reshape(groups, 8 // groups, 8 // groups, 3, 3)
    answer = np.einsum("ngchwij,gocij->ngohw", windows, w).reshape(y.shape)
    np.testing.assert_allclose(trainer.predict(x), answer, rtol=1e-4, atol=1e-4)
    trainer.step(x, y)
    error = (2 * (answer - y) / y.size).reshape(4, groups, 8 // groups, 6, 6)
    gradient = np.einsum("ngohw,ngchwij->gocij", error, windows).reshape(weight.shape)
    check_step(trainer, weight, gradient / s, rate, -7)


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("T", ["i8", "u8"])
def test_the_kernel_equals_its_formula(T: str, target: str) -> None:
    rng, n, rate, step = np.random.default_rng(1), 1000, 0.375, 7
    dtype: Any = {"i8": np.int8, "u8": np.uint8}[T]
    low, high = {"i8": (-7, 7), "u8": (0, 15)}[T]
    before = rng.integers(low, high, n, endpoint=True).astype(dtype)
    g = (rng.standard_normal(n) * 4).astype(np.float32)
    before[0] = -8 if T == "i8" else 0
    g[:5] = [0, np.nan, np.inf, -np.inf, 0]
    name, attrs = "w/update", {"weight_decay": 0.125}
    inputs = {"lr": TensorType("f32", (1,)), "step": TensorType("i64", (1,))}
    inputs |= {"p": TensorType(T, (n // 2,)), "g": TensorType("f32", (n,))}
    node = Node("SGDOptimizer", (*inputs,), ("done",), attrs, OURS, name)
    graph = Graph("update", inputs, ["done"], {}, [node], {"": 17, OURS: 1})
    given: dict[str, Array] = {
        "lr": np.array([rate], np.float32),
        "step": np.array([step]),
        "p": join_nibbles(before.view(np.uint8)).view(dtype),
        "g": g,
    }
    made = run(graph, given, changes=True, target=resolve(target).target)["p"]
    after = split_nibbles(made, [n]).astype(int)
    words, _ = philox(np.arange(n), step, zlib.crc32(name.encode()))
    u = (words >> 8).astype(np.float32) * np.float32(2**-24)
    old = before.astype(np.float64)
    with np.errstate(invalid="ignore"):
        d = rate * (g.astype(np.float64) + 0.125 * old)
        moved = old + np.where(np.isnan(d), 0, np.floor(u - d))
    expected = np.maximum(np.minimum(moved, high), np.minimum(low, old))
    assert np.flatnonzero(after != expected).size <= 1  # u - d within a rounding of an integer
    assert after[1] == before[1]
    assert (after[2], after[3]) == (min(low, int(before[2])), high)


# --- MatMulNBits


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, False), (8, True)])
def test_weights_of_a_language_model_are_trained_in_place(
    bits: int, zeros: bool, tmp_path: Path
) -> None:
    """Blocks of a MatMulNBits take the step of their formula, and the export has the operator."""
    model, rate, rng = make_nbits(bits, zeros=zeros, level=4), 0.125, np.random.default_rng(3)
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    trainer = Trainer.from_onnx(
        model.SerializeToString(), "mse", SGD(lr=rate),
        update=SparseUpdate(layers=["*"], integers=True), threads=1,
    )  # fmt: skip
    assert {name for name, _ in trainer.state.parameters if _.requires_grad} == {"q", "b"}
    x = rng.standard_normal((8, 80)).astype(np.float32)
    y = rng.standard_normal((8, 24)).astype(np.float32)
    trainer.step(x, y)

    def split(packed: Array) -> Array:
        pairs = np.stack([packed & 15, packed >> 4], -1) if bits == 4 else packed
        return pairs.reshape(24, -1).astype(np.float64)

    levels, point = split(given["q"]), np.full((24, 3), 2.0 ** (bits - 1))
    if zeros:
        point = split(given["z"])[:, :3]
    s = np.repeat(given["s"].reshape(24, 3), 32, 1).astype(np.float64)
    w = ((levels - np.repeat(point, 32, 1)) * s)[:, :80]
    error = 2 * (x @ w.T + given["b"] - y) / y.size
    exact = np.clip(levels[:, :80] - rate * (error.T @ x) / s[:, :80], 0, 2**bits - 1)
    after = split(trainer.state.parameters["q"].data)
    assert np.abs(after[:, :80] - exact).max() < 1.001
    np.testing.assert_array_equal(after[:, 80:], levels[:, 80:])  # what fills the last block up
    assert np.abs(after - levels).max() > 0
    trainer.export(tmp_path / "trained.onnx")
    made = onnx.load(tmp_path / "trained.onnx")
    (node,) = made.graph.node
    assert (node.op_type, node.domain) == ("MatMulNBits", MS)
    assert {a.name: a.i for a in node.attribute}["accuracy_level"] == 4
    got = trainer.predict(x)
    assert (
        np.abs(got - run_unrounded(tmp_path / "trained.onnx", x)).max() < 1e-5 * np.abs(got).max()
    )


# --- limits


def test_what_is_not_trained_is_refused() -> None:
    """2 bits, and a decay to an integer that does not stand for 0."""
    model = make_nbits(2)
    with pytest.raises(Exception, match=r"MatMulNBits of 4 or 8 bits"):
        Trainer.from_onnx(model.SerializeToString(), "mse", SGD(lr=0.1), train=["q"], threads=1)
    decay = SGD(lr=0.1, weight_decay=0.01)
    model = make_nbits(4)
    with pytest.raises(InputError, match=r"weight_decay=0.01 of 'q': its zero points, such as 8,"):
        Trainer.from_onnx(model.SerializeToString(), "mse", decay, train=["q"], threads=1)

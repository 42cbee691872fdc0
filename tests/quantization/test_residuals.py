"""Integers of 4 bits that keep in training what rounding leaves of them, in 4 more bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from engine.artifacts import SGD, SparseUpdate
from engine.base.errors import InputError, ModelWarning
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Node
from engine.graphs.offline.residuals import keep_residuals
from engine.quantization import Quantization
from engine.tools import cli
from engine.trainer.trainer import Trainer
from tests.support.resident_integers import (
    KINDS,
    begin,
    check_checkpoint,
    check_learning,
    make_layer,
    make_nbits,
    quantise_network,
    run_unrounded,
)

KEPT = SparseUpdate(layers=["*"], integers=True, residuals=True)


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with depthwise convolutions that was trained in floats, with int4 weights."""
    return quantise_network(tmp_path_factory.mktemp("int4"), Quantization(weight_bits=4))


def test_a_network_learns_and_its_export_has_4_bits(int4: Path, tmp_path: Path) -> None:
    """Evaluation rounds as the exported model does, so both give the same scores."""
    trainer = begin(int4, update=KEPT)
    given = {t.name: t for t in onnx.load(int4).graph.initializer}
    trainer.export(tmp_path / "same.onnx")
    same = {t.name: t for t in onnx.load(tmp_path / "same.onnx").graph.initializer}
    for name, p in trainer.state.parameters:
        np.testing.assert_array_equal(
            numpy_helper.to_array(same[name]), numpy_helper.to_array(given[name]), err_msg=name
        )
        assert p.data.dtype in (np.int8, np.int32)
    model = check_learning(trainer, tmp_path)
    made = {t.name: t for t in model.graph.initializer}
    assert made.keys() == given.keys()
    for name, tensor in made.items():
        assert (tensor.data_type, tensor.dims) == (given[name].data_type, given[name].dims)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in onnx.load(int4).graph.node]


def test_a_checkpoint_goes_on_with_the_same_bits(int4: Path, tmp_path: Path) -> None:
    check_checkpoint(int4, tmp_path / "saved")


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("lowest", [-8, -7])
@pytest.mark.parametrize("has_zero", [False, True])
@pytest.mark.parametrize(
    ("block", "extent"),
    [
        ({"axis": 0}, (33,)),
        ({"axis": 1}, (47,)),
        ({"axis": 0}, ()),
        ({"axis": 0, "block_size": 16}, (3, 47)),
        ({"axis": 1, "block_size": 32}, (33, 2)),
    ],
    ids=["rows", "columns", "one", "blocks down", "blocks across"],
)
def test_small_updates_add_up(
    kind: str, lowest: int, has_zero: bool, block: dict[str, Any], extent: tuple[int, ...],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Each integer begins as it is; small updates add up with less noise than by chance."""
    rng, rate = np.random.default_rng(0), 0.2
    low = 0 if kind == "uint4" else lowest
    weight = rng.integers(low, 16 if kind == "uint4" else 8, (33, 47))
    scale = np.asarray(rng.uniform(0.02, 0.2, extent), np.float32)
    zero = rng.integers(low + 4, low + 9, extent) if has_zero else np.full(extent, 0)
    model = make_layer(kind, weight, (scale, zero), "MatMul", ("n", 33), **block)
    kept = SparseUpdate(layers=["q"], integers=True, residuals=True)
    x = rng.standard_normal((8, 33)).astype(np.float32)
    plain = Trainer.from_onnx(model, "mse", SGD(lr=rate), train=["q"], threads=1)
    trainer = Trainer.from_onnx(model, "mse", SGD(lr=rate), update=kept, threads=1)
    start = np.asarray(plain.predict(x))
    np.testing.assert_array_equal(trainer.predict(x), start)
    # Goals of noise, whose gradients hardly depend on the weights: descent in floats is a sum.
    moved = np.zeros((33, 47))
    for _ in range(60):
        goal = start + 5 * rng.standard_normal((8, 47)).astype(np.float32)
        moved -= rate * 2 / goal.size * x.T @ (start - goal)
        trainer.step(x, goal)
        plain.step(x, goal)
    exact = x @ moved + start
    mine, other = (np.std(np.asarray(t.predict(x)) - exact) for t in (trainer, plain))
    assert mine < 0.9 * other
    trainer.export(tmp_path / "trained.onnx")
    made = {t.name: t for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    assert made["q"].data_type == KINDS[kind][0]
    np.testing.assert_allclose(
        trainer.predict(x), run_unrounded(tmp_path / "trained.onnx", x), rtol=1e-4, atol=1e-4
    )


def test_integers_that_other_nodes_read_stay_with_a_warning() -> None:
    scale, zero = np.asarray(0.1, np.float32), np.asarray(0)
    proto = make_layer("int4", np.ones((3, 5), np.int64), (scale, zero), "MatMul", ("n", 3))
    graph = onnx_io.load(proto)
    graph.initializers["r"] = graph.initializers["q"].copy()
    graph.nibbles |= {"r"}
    (reader,) = graph.find_consumers()["q"]
    graph.nodes.append(Node("DequantizeLinear", ("r", *reader.inputs[1:]), ("float_r",)))
    graph.nodes.append(Node("Cast", ("r",), ("cast_r",), {"to": TensorProto.FLOAT}))
    with pytest.warns(ModelWarning, match="'r': trained without residuals"):
        keep_residuals(graph, ["q", "r"])
    assert graph.nibbles.intersection("qr") == {"r"}


def test_residuals_need_integers_of_4_bits(int4: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is for integers; add integers=True"):
        SparseUpdate(layers=["*"], residuals=True)
    with pytest.raises(InputError, match=r"none of the 2 trained .* has integers of 4 bits"):
        begin(make_nbits(4).SerializeToString(), update=KEPT)
    options = ["--loss", "cross_entropy", "--optimizer", "SGD", "--layers", "*"]
    options += ["--integers", "--residuals"]
    assert cli.main(["artifacts", str(int4), *options, "-o", str(tmp_path / "made")]) == 0
    kinds = {p.data.dtype for _, p in Trainer(tmp_path / "made").state.parameters}
    assert np.dtype(np.int8) in kinds
    assert TensorProto.INT4 not in kinds

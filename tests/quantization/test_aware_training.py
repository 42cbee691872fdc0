"""Quantisation-aware training: what is trained is what is exported, and what it gains."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import edgegrad
from engine.artifacts import SGD, AdamW
from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline import training
from engine.graphs.passes.batchnorm import set_training_form
from engine.models.catalog import find_architecture
from engine.models.named_model import make
from engine.quantization import Qat, Quantization, prepare_qat, quantize
from engine.trainer.trainer import Trainer

SHAPE = (1, 20, 16)
CLASSES = 4


def make_data(count: int = 96, seed: int = 0) -> tuple[Array, Array]:
    """Pictures of noise in which one of four bands is brighter."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    x = rng.standard_normal((count, *SHAPE)).astype(np.float32)
    for k, label in enumerate(labels):
        x[k, 0, 5 * label : 5 * label + 5] += 1.2
    return x, labels.astype(np.int64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with batch norms and depthwise convolutions, trained in float."""
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    graph = make(find_architecture("ds_cnn"), classes=CLASSES, input_shape=SHAPE, seed=0).graph
    trainer = Trainer.from_onnx(
        onnx_io.to_bytes(graph), "cross_entropy", AdamW(lr=5e-3), threads=1, seed=0
    )
    trainer.fit(make_data(), epochs=20, progress=False)
    trainer.export(path)
    return path


def run_peer(path: Path, x: Array) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def begin(model: Path, optimizer: Any, **options: Any) -> Trainer:
    return Trainer.from_onnx(
        model, "cross_entropy", optimizer, qat=Qat(threads=1, **options), data=make_data(),
        threads=1, seed=0,
    )  # fmt: skip


KINDS: dict[str, dict[str, Any]] = {
    "8 bits": {},
    "4 bits": {"weight_bits": 4, "per_channel": False},
    "symmetric": {"symmetric": True, "activations": "int8"},
    "still": {"ranges": "fixed"},
    "trained norms": {"norms": "trained"},
    "learned": {"ranges": "learned", "weight_ranges": "learned", "weight_bits": 4},
    "learned of tensors": {
        "ranges": "learned", "weight_ranges": "learned", "per_channel": False, "symmetric": True,
        "norms": "trained",
    },
}  # fmt: skip


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_an_export_is_the_model_that_was_trained(
    trained: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    trainer = begin(trained, AdamW(lr=1e-3), **options)
    trainer.fit(make_data(), epochs=1, progress=False)
    trainer.export(tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain for opset in model.opset_import} == {""}
    matrices = [t for t in model.graph.initializer if len(t.dims) > 1]
    weights = "INT4" if options.get("weight_bits") == 4 else "INT8"
    assert {t.data_type for t in matrices} == {TensorProto.DataType.Value(weights)}
    kinds = {TensorProto.DataType.Name(t.data_type) for t in model.graph.initializer}
    activations = str(options.get("activations", "uint8")).upper()
    assert sorted(kinds) == sorted(dict.fromkeys(["FLOAT", "INT32", weights, activations]))
    x, _ = make_data(32, seed=5)
    ours, peer = trainer.predict(x), run_peer(tmp_path / "int8.onnx", x)
    session = edgegrad.Session(tmp_path / "int8.onnx", threads=1)
    # Training rounds floats; the file is computed in integers, where sums near a half may differ
    # by a step of one activation.
    (integers,) = session.run(None, {session.get_inputs()[0].name: x})
    for scores in (ours, integers):
        differences = np.abs(scores - peer).max(1) / np.abs(ours).max()
        assert np.quantile(differences, 0.8) < 1e-5
        assert differences.max() < 1 / 127


@pytest.mark.parametrize(
    ("kind", "moves"),
    [
        ("8 bits", ("range",)),
        ("still", ()),
        ("trained norms", ("range", "mean", "var")),
        ("learned", ()),
        ("learned of tensors", ("mean", "var")),
    ],
)
def test_all_weights_and_biases_are_trained(
    trained: Path, kind: str, moves: tuple[str, ...]
) -> None:
    """And the statistics of normalisations and the ranges move, are trained or are constants."""
    options = KINDS[kind]
    made = prepare_qat(trained, make_data(), Qat(threads=1, **options))
    names = {name for name, array in onnx_io.load(made.to_bytes()).initializers.items()
             if array.ndim}  # fmt: skip
    # Folding leaves the names of the weights as they were.
    source = {t.name for t in onnx.load(trained).graph.initializer}
    weights = {name for name in names if name.endswith("weight")}
    assert weights <= source
    steps = {name for name in names if name.endswith("_step")}
    assert len(steps) == (len(made.scheme.products) + len(made.ranges)) * ("learned" in kind)
    trainer = begin(trained, AdamW(lr=1e-3), **options)
    assert {name for name, _ in trainer.state.parameters} == names
    moving = {name for name in names if name.endswith(tuple(f"_{end}" for end in moves))}
    assert {n for n, p in trainer.state.parameters if not p.requires_grad} == moving
    assert bool(moving) == bool(moves)
    assert all(not parameter.data.any() for name, parameter in trainer.state.parameters
               if name in steps)  # fmt: skip
    before = {name: np.array(p.data) for name, p in trainer.state.parameters}
    trainer.fit(make_data(), epochs=1, progress=False)
    for name, parameter in trainer.state.parameters:
        assert not np.array_equal(parameter.data, before[name]), name


def take_roundings_out(graph: Graph, trained: Sequence[Node]) -> Graph:
    """Give normalisations their training form, and let all roundings return what they get."""
    set_training_form(graph, trained)
    sources = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op == "QuantizeLinear"}
    for node in graph.nodes:
        if node.op in ("RoundWeights", "DequantizeLinear"):
            source = sources.get(node.inputs[0], node.inputs[0])
            node.op, node.domain, node.inputs, node.attrs = "Identity", "", (source,), {}
    return graph


def test_without_roundings_a_step_is_one_of_floats(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folding a normalisation for the rounding, and undoing it, changes no gradient."""
    floats = Trainer.from_onnx(trained, "cross_entropy", SGD(lr=0.01), threads=1, seed=0)
    monkeypatch.setattr(training, "set_training_form", take_roundings_out)
    trainer = begin(trained, SGD(lr=0.01), norms="trained")
    before = {name: np.array(p.data) for name, p in floats.state.parameters}
    batch = make_data(32, seed=4)
    assert trainer.step(*batch) == pytest.approx(floats.step(*batch), rel=1e-5)
    for name, parameter in floats.state.parameters:
        assert name in trainer.state.parameters
        want, got = (p.data - before[name] for p in (parameter, trainer.state.parameters[name]))
        np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max(), err_msg=name)


def test_learned_scales_are_saved_and_exported(trained: Path, tmp_path: Path) -> None:
    """An export has the scales that a parameter has moved; a checkpoint continues with them."""
    options = KINDS["learned"]
    trainer = begin(trained, AdamW(lr=1e-2), **options)
    trainer.export(tmp_path / "before.onnx")
    trainer.fit(make_data(), epochs=1, progress=False)
    trainer.export(tmp_path / "after.onnx")
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / name).graph.initializer}
        for name in ("before.onnx", "after.onnx")
    )
    moved = [name for name, _ in trainer.state.parameters if name.endswith("_step")]
    for name in moved:
        scale = name.replace("_step", "_scale")
        step = np.asarray(trainer.state.parameters[name].data)
        want = before[scale] * np.exp(step.reshape(before[scale].shape))
        np.testing.assert_allclose(after[scale], want, rtol=1e-6, err_msg=name)
    trainer.save(tmp_path / "kept")
    again = begin(trained, AdamW(lr=1e-2), **options)
    again.load(tmp_path / "kept")
    batch = make_data(32, seed=4)
    assert again.step(*batch) == trainer.step(*batch)
    for name in moved:
        assert np.array_equal(
            again.state.parameters[name].data, trainer.state.parameters[name].data
        )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_range_moves_towards_the_range_of_each_batch(trained: Path, accumulate: int) -> None:
    """In a step that updates, and in one that only accumulates gradients."""
    trainer = begin(trained, SGD(lr=0.0), momentum=0.75)
    data = make_data(64, seed=3)
    bounds = np.array(trainer.state.parameters["x_range"].data)
    trainer.fit(data, epochs=1, batch_size=16, accumulate=accumulate, shuffle=False, progress=False)
    for batch in np.split(data[0], 4):
        bounds = 0.75 * bounds + 0.25 * np.array([batch.min(), batch.max()])
    np.testing.assert_allclose(trainer.state.parameters["x_range"].data, bounds, rtol=1e-5)


def test_frozen_statistics_keep_ranges_too(trained: Path) -> None:
    trainer = Trainer.from_onnx(
        trained, "cross_entropy", qat=Qat(norms="trained", threads=1), data=make_data(),
        frozen_batch_norm=True, threads=1, seed=0,
    )  # fmt: skip
    assert all(parameter.requires_grad for _, parameter in trainer.state.parameters)
    # Normalisations are part of their convolutions in the training step, too.
    graph = trainer.learner.session.training.graph
    assert not [node for node in graph.nodes if "BatchNorm" in node.op]


def test_a_step_that_does_not_count_moves_no_range(trained: Path) -> None:
    trainer = begin(trained, SGD(lr=0.0))
    x, labels = make_data(16)
    x[3] = np.nan
    before = {name: np.array(p.data) for name, p in trainer.state.parameters}
    with pytest.raises(edgegrad.EngineError):
        trainer.fit((x, labels), epochs=1, progress=False)
    for name, parameter in trainer.state.parameters:
        assert np.array_equal(parameter.data, before[name]), name


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no data": ({"qat": True}, "qat: give data="),
    "only data": ({"data": make_data(8)}, "give qat=True as well"),
    "adapters": ({"qat": True, "data": make_data(8), "lora": "."}, "qat and lora"),
    "constants": (
        {"qat": True, "data": np.zeros((8, *SHAPE), np.float32)},
        "every element of the input 'x' is 0",
    ),
    "pattern": (
        {"qat": Qat(keep_float=["clasifier"]), "data": make_data(8)},
        "keep_float: 'clasifier' matches none of 10 products; nearest: 'classifier'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_roundings_that_make_no_sense_are_refused(case: str, trained: Path) -> None:
    options, told = REFUSED[case]
    with pytest.raises(InputError, match=re.escape(told)):
        Trainer.from_onnx(trained, "cross_entropy", **options)


def test_a_float_head_is_trained_on_integers(trained: Path, tmp_path: Path) -> None:
    options = Quantization(threads=1, keep_float=["classifier"])
    quantize(trained, make_data(), options).save(tmp_path / "backbone.onnx")
    trainer = Trainer.from_onnx(
        tmp_path / "backbone.onnx", "cross_entropy", AdamW(lr=1e-2), threads=1, seed=0
    )
    assert {name for name, _ in trainer.state.parameters} == {
        "classifier.weight", "classifier.bias",
    }  # fmt: skip
    # What is in front of the head computes in integers, and no weight of it becomes a float.
    plan = trainer.plan_of(*make_data(8)).plan
    steps = {step.kernel for step in plan.steps}
    assert any("integer_conv" in k for k in steps)
    assert any("integer_depthwise" in k for k in steps)
    constants = [b for b in plan.buffers if b.region == "const" and b.dtype == "f32"]
    assert max(math.prod(b.shape) for b in constants) <= 128
    before = trainer.evaluate(make_data())["loss"]
    trainer.fit(make_data(), epochs=4, progress=False)
    assert trainer.evaluate(make_data())["loss"] < before
    trainer.export(tmp_path / "head.onnx")
    x, _ = make_data(16, seed=5)
    ours, peer = trainer.predict(x), run_peer(tmp_path / "head.onnx", x)
    assert np.abs(ours - peer).max() < 0.02 * np.abs(ours).max()


def test_the_head_of_an_integer_model_becomes_floats(trained: Path, tmp_path: Path) -> None:
    """The same layer as in the float model, to half a step; all others stay integers."""
    quantize(trained, make_data(), Quantization(threads=1)).save(tmp_path / "int8.onnx")
    trainer = Trainer.from_onnx(
        tmp_path / "int8.onnx", "cross_entropy", AdamW(lr=1e-2), train="head", threads=1, seed=0
    )
    names = {"classifier.weight", "classifier.bias"}
    assert {name for name, _ in trainer.state.parameters} == names
    source = {t.name: numpy_helper.to_array(t) for t in onnx.load(trained).graph.initializer}
    weight = np.asarray(trainer.state.parameters["classifier.weight"].data)
    step = np.abs(source["classifier.weight"]).max() / 127
    np.testing.assert_allclose(weight, source["classifier.weight"], atol=step / 2 * 1.001)
    before = trainer.evaluate(make_data())["loss"]
    trainer.fit(make_data(), epochs=4, progress=False)
    assert trainer.evaluate(make_data())["loss"] < before
    trainer.export(tmp_path / "head.onnx")
    kinds = [t.data_type for t in onnx.load(tmp_path / "head.onnx").graph.initializer
             if len(t.dims) > 1]  # fmt: skip
    assert kinds.count(TensorProto.FLOAT) == 1
    assert kinds.count(TensorProto.INT8) == len(kinds) - 1
    x, _ = make_data(16, seed=5)
    ours, peer = trainer.predict(x), run_peer(tmp_path / "head.onnx", x)
    assert np.abs(ours - peer).max() < 0.02 * np.abs(ours).max()


def test_an_integer_model_gets_a_head_for_other_classes(trained: Path) -> None:
    int8 = quantize(trained, make_data(), Quantization(threads=1)).to_bytes()
    trainer = Trainer.from_onnx(int8, "cross_entropy", classes=2, train="head", threads=1, seed=0)
    assert np.shape(trainer.predict(make_data(8)[0])) == (8, 2)
    assert {p.data.shape[0] for _, p in trainer.state.parameters} == {2}


@pytest.mark.parametrize("ranges", ["moving", "learned"])
def test_before_training_it_computes_what_quantisation_alone_gives(
    ranges: str, trained: Path, tmp_path: Path
) -> None:
    trainer = begin(trained, SGD(lr=0.0), ranges=ranges)
    trainer.export(tmp_path / "aware.onnx")
    quantize(trained, make_data(), Quantization(threads=1)).save(tmp_path / "after.onnx")
    x, _ = make_data(16, seed=7)
    aware, after = run_peer(tmp_path / "aware.onnx", x), run_peer(tmp_path / "after.onnx", x)
    assert np.array_equal(aware, after)


def test_training_regains_what_four_bits_lose(trained: Path, tmp_path: Path) -> None:
    x, labels = make_data(200, seed=9)

    def measure(path: Path) -> float:
        scores = run_peer(path, x).astype(np.float64)
        shifted = scores - scores.max(1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return float(-logs[np.arange(len(x)), labels].mean())

    options: dict[str, Any] = {"weight_bits": 4, "per_channel": False}
    after, more, aware = (tmp_path / f"{name}.onnx" for name in ("after", "more", "aware"))
    rounded = Quantization(threads=1, **options)
    quantize(trained, make_data(), rounded).save(after)
    # Floats are trained as long, so that no gain is one of more epochs, and rounded then.
    control = Trainer.from_onnx(trained, "cross_entropy", AdamW(lr=1e-3), threads=1, seed=0)
    trainer = begin(trained, AdamW(lr=1e-3), **options)
    for each, path in ((control, more), (trainer, aware)):
        each.fit(make_data(), epochs=12, progress=False)
        each.export(path)
    floats = measure(more)
    quantize(more, make_data(), rounded).save(more)
    loss = {path.stem: measure(path) for path in (trained, after, more, aware)}
    assert loss["after"] > loss["float"]
    assert loss["more"] > floats
    # At least half of what rounding loses comes back, and training in floats brings none back.
    assert loss["aware"] < loss["after"] - 0.5 * (loss["after"] - loss["float"]), (loss, floats)
    assert loss["aware"] - floats < 0.5 * (loss["more"] - floats), (loss, floats)

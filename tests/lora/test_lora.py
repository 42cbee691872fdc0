"""LoRA: what is adapted and how, trainings as PyTorch's, merging, adapters, their files.

tests/data/lora is written by tests/torch/lora_twin.py: language models, and how PyTorch trains
hand-written adapters of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.qwen2 import Sizes, build_qwen2
from engine import lora
from engine.artifacts import SGD, AdamW, CrossEntropyLoss, MSELoss
from engine.base.aliases import Array
from engine.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    ShapeError,
    UnsupportedOpError,
)
from engine.graphs.io.note import METADATA
from engine.lora import Adapter, Adapters, Lora
from engine.trainer.trainer import Trainer
from tests.support.lora_models import FORMS, draw, make_node, write
from tests.support.places import DATA

LORA = DATA / "lora"
LAYERS = {"gpt2": ["c_attn", "c_fc"], "qwen2": ["self_attn.*(q|v)_proj"]}

onnxruntime.set_default_logger_severity(3)  # inputs with default values are what is wanted


def run(path: Path, feeds: Mapping[str, Array]) -> Array:
    """The first output by onnxruntime, which optimised would round products with integers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feeds))[0])


def with_values(path: Path, out: Path, scale: float = 1.0) -> dict[str, Array]:
    """Give the matrices B of a model random values; returns all parameters of its adapters."""
    model, actual = onnx.load(path), {}
    for tensor in model.graph.initializer:
        if ".lora_B." in tensor.name:
            shape = tuple(tensor.dims)
            tensor.CopyFrom(numpy_helper.from_array(scale * draw(*shape, seed=7), tensor.name))
        if ".lora_" in tensor.name:
            actual[tensor.name] = numpy_helper.to_array(tensor)
    onnx.save(model, out)
    return actual


# --- as PyTorch trains


@pytest.mark.parametrize("name", LAYERS)
def test_a_language_model_learns_as_in_torch(name: str, tmp_path: Path) -> None:
    """Ten steps; then the adapter is merged, left open for onnxruntime's adapters, and saved."""
    with np.load(LORA / f"{name}.npz") as data:
        words, labels, losses = (data[key] for key in ("words", "labels", "losses"))
    trainer = Trainer.from_onnx(
        LORA / f"{name}.onnx", CrossEntropyLoss(),
        AdamW(1e-2, eps=1e-8, weight_decay=0.01, adam_mode=0),
        lora=Lora(LAYERS[name], rank=4, alpha=8), threads=1,
    )  # fmt: skip
    first, last = (Adapter.load(LORA / f"{name}-{when}") for when in ("first", "last"))
    first.put(trainer)
    results = [trainer.step(words, labels) for _ in range(10)]
    assert results == pytest.approx(losses.tolist(), abs=1e-4)
    mine = Adapter.of(trainer)
    assert mine.tensors.keys() == last.tensors.keys()
    for key, value in last.tensors.items():
        np.testing.assert_allclose(mine.tensors[key], value, atol=2e-3)

    contiguous = trainer.module.get_contiguous_parameters(trainable_only=True)
    sizes = sum(value.size for value in mine.tensors.values())
    assert contiguous.size == sizes == trainer.state.region_bytes("param") // 4
    assert sorted(contiguous.tolist()) == sorted(
        v for tensor in mine.tensors.values() for v in tensor.reshape(-1).tolist()
    )

    trained, merged, opened, file = (
        tmp_path / n for n in ("trained.onnx", "merged.onnx", "open.onnx", "last.onnx_adapter")
    )
    trainer.export(trained)
    expected = trainer.predict_batch(words)["scores"]
    assert lora.merge(trained, merged) == []
    names = {t.name for t in onnx.load(merged).graph.initializer}
    assert not any("lora" in n for n in names)
    np.testing.assert_allclose(run(merged, {"words": words}), expected, atol=1e-5)

    mine.save(file)
    first.put(trainer)
    trainer.export(trained)
    assert lora.open_inputs(trained, opened) == lora.parameters(trained)
    session = onnxruntime.InferenceSession(opened, providers=["CPUExecutionProvider"])
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(file))
    options.add_active_adapter(adapter)
    np.testing.assert_allclose(session.run(None, {"words": words}, options)[0], expected, atol=1e-5)
    base = run(LORA / f"{name}.onnx", {"words": words})
    np.testing.assert_allclose(session.run(None, {"words": words})[0], base, atol=1e-5)


def test_a_model_of_4_bits_learns_through_its_weights(tmp_path: Path) -> None:
    """That of bench/lora.py, small: a table of words that is the last layer, too, never floats."""
    losses = []
    rng = np.random.default_rng(0)
    words, labels = rng.integers(0, 384, (1, 16)), rng.integers(0, 384, 16)
    for pieces in (1, 4):
        graph = build_qwen2(
            Sizes(layers=2, width=128, heads=2, keys=1, wide=256, words=384), 16, pieces
        )
        made = lora.adapt(graph, Lora("self_attn.(q|v)_proj", rank=2))
        assert [row.ops for row in made.summary.layers] == [("MatMulNBits",)] * 4
        made.save(tmp_path / "forward.onnx")
        trainer = Trainer.from_onnx(tmp_path / "forward.onnx", None, AdamW(1e-2), threads=1)
        losses.append([trainer.step(words, labels) for _ in range(4)])
        assert trainer.state.region_bytes("param") == 4 * made.summary.added
        sizes = [a.nbytes for a in graph.initializers.values() if a.dtype == np.uint8]
        assert trainer.learner.session.memory.frozen.nbytes < 1.3 * sum(sizes)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][-1] < losses[0][0]


# --- forms of layers


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_gets_the_sum_with_its_adapter(form: str, tmp_path: Path) -> None:
    """At first nothing changes; with values the merged model computes what the adapted one does."""
    nodes, values, shape = FORMS[form]
    plain = write(tmp_path / "plain.onnx", nodes, values, shape)
    x = {"x": draw(*(2 if isinstance(d, str) else d for d in shape), seed=9)}
    made = lora.adapt(plain, Lora("^fc", rank=2, alpha=3))
    (row,) = made.summary.layers
    assert row.name == "fc"
    adapted, valued, merged = (tmp_path / n for n in ("adapted.onnx", "valued.onnx", "merged.onnx"))
    made.save(adapted)
    np.testing.assert_allclose(run(adapted, x), run(plain, x), rtol=1e-5, atol=1e-5)
    parameters = with_values(adapted, valued)
    assert sum(a.size for a in parameters.values()) == row.added
    expected = run(valued, x)
    assert np.abs(expected - run(plain, x)).max() > 0.1
    is_quantised = "bits" in form or "int8" in form
    assert lora.merge(valued, merged) == (["fc"] if is_quantised else [])
    np.testing.assert_allclose(run(merged, x), expected, rtol=1e-5, atol=1e-4)
    lora.merge(valued, merged, dequantise=True)
    np.testing.assert_allclose(run(merged, x), expected, rtol=1e-5, atol=1e-4)
    names = {t.name: t for t in onnx.load(merged).graph.initializer}
    assert not any("lora" in n for n in names)
    if not is_quantised:
        assert list(names["fc.weight"].dims) == list(values["fc.weight"].shape)
    trainer = Trainer.from_onnx(valued, MSELoss(), SGD(1e-3), threads=1)
    assert sorted(n for n, _ in trainer.state.parameters) == [
        "fc.lora_A.weight",
        "fc.lora_B.weight",
    ]
    np.testing.assert_allclose(trainer.predict_batch(x["x"])["y"], expected, rtol=1e-4, atol=1e-4)
    loss = trainer.step(x["x"], np.zeros_like(expected))
    assert trainer.step(x["x"], np.zeros_like(expected)) < loss
    Adapter.of(trainer).save(tmp_path / "adapter")
    assert Adapter.load(tmp_path / "adapter").rank == 2


def test_the_scale_and_the_first_values_are_pefts(tmp_path: Path) -> None:
    """y = W x + alpha / r B (A x), or alpha / sqrt(r); A uniform in +-1 / sqrt(in)."""
    nodes, values, shape = FORMS["transposed"]
    plain = write(tmp_path / "plain.onnx", nodes, values, shape)
    x = draw(3, 6)
    for stable, scale in ((False, 3 / 4), (True, 3 / 2)):
        lora.adapt(plain, Lora("fc", rank=4, alpha=3, rank_stabilised=stable, seed=5)).save(
            tmp_path / "a.onnx"
        )
        actual_with_values = with_values(tmp_path / "a.onnx", tmp_path / "b.onnx")
        a, b = (actual_with_values[f"fc.lora_{part}.weight"] for part in "AB")
        assert (a.shape, b.shape) == ((4, 6), (5, 4))
        assert np.abs(a).max() <= 6**-0.5
        assert np.abs(a).max() > 0.8 * 6**-0.5
        expected = x @ (values["fc.weight"] + scale * b @ a).T
        np.testing.assert_allclose(run(tmp_path / "b.onnx", {"x": x}), expected, atol=1e-5)


def test_a_tied_weight_is_adapted_where_it_is_multiplied(tmp_path: Path) -> None:
    """The embedding keeps the weight; merged, the last layer has one of its own."""
    nodes = [
        make_node("Cast", "x", out="i", to=TensorProto.INT64),
        make_node("Gather", "words", "i", out="e"),
        make_node("Transpose", "words", out="t", perm=[1, 0]), make_node("MatMul", "e", "t"),
    ]  # fmt: skip
    table = draw(7, 4)
    plain = write(tmp_path / "plain.onnx", nodes, {"words": table}, ("b",))
    made = lora.adapt(plain, "words")
    assert [row.op for row in made.summary.left] == ["Gather"]
    assert "words  Gather, left unchanged: an embedding, whose rows are looked up" in str(made)
    made.save(tmp_path / "a.onnx")
    actual_with_values = with_values(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert lora.merge(tmp_path / "b.onnx", tmp_path / "c.onnx") == []
    delta = (
        2 * actual_with_values["words.lora_B.weight"] @ actual_with_values["words.lora_A.weight"]
    )
    expected = table[[3, 1]] @ (table + delta).T
    got = run(tmp_path / "c.onnx", {"x": np.array([3, 1], np.float32)})
    np.testing.assert_allclose(got, expected, atol=1e-5)


# --- what is chosen, and what is refused


def tower(path: Path, layers: int = 3) -> Path:
    """Return linear layers of 6 values, each followed by a Relu except the last."""
    nodes, values, x = [], {}, "x"
    for i in range(layers):
        out = "y" if i == layers - 1 else f"h{i}"
        weight = f"block.{i}.fc.weight"
        values[weight] = draw(6, 6, seed=i)
        nodes.append(helper.make_node("MatMul", [x, weight], [out], f"/block.{i}/fc/MatMul"))
        if out != "y":
            nodes.append(helper.make_node("Relu", [out], [f"a{i}"], f"/block.{i}/act/Relu"))
        x = f"a{i}"
    return write(path, nodes, values)


def test_errors_name_what_there_is(tmp_path: Path) -> None:
    model = tower(tmp_path / "m.onnx")
    with pytest.raises(NameNotFoundError, match=r"'atn' matches none of the 3 layers with") as e:
        lora.adapt(model, ["fc", "atn"])
    assert "'block.0.fc', 'block.1.fc', 'block.2.fc'" in str(e.value)
    with pytest.raises(InputError, match="'\\(' is not a valid regular expression"):
        lora.adapt(model, "(")
    with pytest.raises(InputError, match="rank=0"):
        Lora("fc", rank=0)
    with pytest.raises(InputError, match="already has adapters"):
        lora.adapt(lora.adapt(model, "fc").to_bytes(), "fc")
    with pytest.raises(InputError, match=r"has no adapters; lora\.adapt gives it some"):
        lora.merge(model, tmp_path / "out.onnx")
    deep = {"w": draw(6, 1, 3, 3), "v": draw(6, 4, 3, 3)}
    nodes = [make_node("Conv", "x", "w", out="h", group=6), make_node("ConvTranspose", "h", "v")]
    write(tmp_path / "c.onnx", nodes, deep, ("b", 6, 9, 9))
    with pytest.raises(UnsupportedOpError, match="can have an adapter") as f:
        lora.adapt(tmp_path / "c.onnx", "made")
    assert "Conv 'w': a depthwise convolution, whose weights are smaller than" in str(f.value)
    assert "ConvTranspose 'v': the operator ConvTranspose; supported: MatMul" in str(f.value)
    damaged = onnx.load_from_string(lora.adapt(model, "fc").to_bytes())
    (note,) = [entry for entry in damaged.metadata_props if entry.key == METADATA]
    note.value = "{"
    with pytest.raises(ModelError, match="the note of its adapters is damaged"):
        lora.parameters(damaged)


def test_nothing_below_the_first_adapter_is_kept_or_differentiated(tmp_path: Path) -> None:
    """The base are constants; the backward pass ends at the lowest adapter."""
    trainer = Trainer.from_onnx(
        tower(tmp_path / "m.onnx", 4), MSELoss(), SGD(1e-2), lora="block.[23].fc", threads=1
    )
    assert trainer.state.region_bytes("param") == 4 * 64 * 3  # 4 matrices of 48 values
    trainer.step(draw(2, 6), draw(2, 6))
    programs = trainer.learner.session.memory.programs.values()
    (program,) = [p for p in programs if "training" in p.plan.name]
    backward = {step.source for step in program.plan.steps if step.phase == "bwd"}
    assert any("block.2" in source for source in backward)
    assert not any(f"block.{i}" in source for i in (0, 1) for source in backward)
    base = [s for s in backward if "/fc/MatMul_Grad" in s and "lora" not in s]
    assert [s.split("_Grad")[0] for s in base] == ["/block.3/fc/MatMul"]


def test_dropout_is_for_training_alone(tmp_path: Path) -> None:
    model = tower(tmp_path / "m.onnx", 1)
    lora.adapt(model, Lora("fc", rank=2, dropout=0.5)).save(tmp_path / "a.onnx")
    with_values(tmp_path / "a.onnx", tmp_path / "b.onnx")
    trainer = Trainer.from_onnx(tmp_path / "b.onnx", MSELoss(), SGD(0.0), threads=1, seed=1)
    x, y = draw(8, 6), np.zeros((8, 6), np.float32)
    whole = float(np.square(trainer.predict_batch(x)["y"]).mean())
    losses = {trainer.step(x, y) for _ in range(3)}
    assert len(losses) == 3
    assert trainer.evaluate([(x, y)])["loss"] == pytest.approx(whole, rel=1e-5)
    assert min(abs(loss - whole) for loss in losses) > 1e-3
    lora.merge(tmp_path / "b.onnx", tmp_path / "c.onnx")
    merged = run(tmp_path / "c.onnx", {"x": x})
    np.testing.assert_allclose(merged, trainer.predict_batch(x)["y"], rtol=1e-4, atol=1e-5)


def test_a_new_last_layer_is_trained_whole(tmp_path: Path) -> None:
    model = tower(tmp_path / "m.onnx", 2)
    trainer = Trainer.from_onnx(
        model, CrossEntropyLoss(), lora="block.0", classes=3, threads=1, seed=0
    )
    assert sorted(n for n, _ in trainer.state.parameters) == [
        "block.0.fc.lora_A.weight", "block.0.fc.lora_B.weight", "block.1.fc.weight",
    ]  # fmt: skip
    adapter = Adapter.of(trainer)
    assert adapter.whole == ("block.1.fc.weight",)
    adapter.save(tmp_path / "a")
    assert Adapter.load(tmp_path / "a").tensors.keys() == adapter.tensors.keys()


# --- adapters


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    model = tower(tmp_path / "m.onnx", 2)
    return Trainer.from_onnx(model, MSELoss(), AdamW(1e-2), lora=Lora("fc", rank=2), threads=1)


def test_adapters_of_one_base_are_trained_apart(trainer: Trainer) -> None:
    """In turns, each as if it were alone, to the last bit; plans stay."""
    x, y, z = draw(4, 6), draw(4, 6, seed=1), draw(4, 6, seed=2)
    first = Adapter.of(trainer)
    alone = {}
    for name, target in (("a", y), ("b", z)):
        first.put(trainer)
        trainer.optimizer.restore(type(trainer.state).from_bytes(trainer.state.to_bytes()))  # type: ignore[union-attr]  # it has one
        alone[name] = [trainer.step(x, target) for _ in range(4)]
        if name == "a":
            values = Adapter.of(trainer)
    first.put(trainer)
    trainer.optimizer.restore(type(trainer.state).from_bytes(trainer.state.to_bytes()))  # type: ignore[union-attr]  # it has one
    adapters = Adapters(trainer, "a")
    adapters.add("b")
    programs = dict(trainer.learner.session.memory.programs)
    turns: dict[str, list[float]] = {"a": [], "b": []}
    for _ in range(2):
        for name, target in (("a", y), ("b", z)):
            adapters.use(name)
            turns[name] += [trainer.step(x, target) for _ in range(2)]
    assert turns == alone
    assert trainer.learner.session.memory.programs == programs
    assert [*adapters] == ["b", "a"]
    for key, value in values.tensors.items():
        np.testing.assert_array_equal(adapters["a"].tensors[key], value)
    with pytest.raises(NameNotFoundError, match="no adapter 'c'"):
        adapters.use("c")
    with pytest.raises(InputError, match="an adapter 'a' already exists"):
        adapters.add("a")


@pytest.mark.parametrize("form", ["folder", "file.onnx_adapter"])
def test_an_adapter_comes_back_from_its_file(trainer: Trainer, form: str, tmp_path: Path) -> None:
    trainer.step(draw(4, 6), draw(4, 6, seed=1))
    saved = Adapter.of(trainer)
    saved.save(tmp_path / form)
    loaded = Adapter.load(tmp_path / form)
    assert loaded.rank == 2
    assert loaded.alpha == (4 if form == "folder" else None)
    trainer.step(draw(4, 6), draw(4, 6, seed=1))
    loaded.put(trainer)
    for key, value in saved.tensors.items():
        np.testing.assert_array_equal(trainer.state.parameters[key].data, value)
    file = tmp_path / form
    file = file / "adapter_model.safetensors" if file.is_dir() else file
    data = file.read_bytes()
    for size in range(0, len(data) - 1, 7):
        file.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            Adapter.load(tmp_path / form)
    rng = np.random.default_rng(0)
    for _ in range(200):  # whatever a file holds, what is read is an adapter or refused
        wrong = bytearray(data)
        wrong[rng.integers(len(wrong))] = rng.integers(256)
        file.write_bytes(wrong)
        with contextlib.suppress(CheckpointError, DTypeError):
            Adapter.load(tmp_path / form)


def test_an_adapter_of_another_scale_computes_the_same(trainer: Trainer, tmp_path: Path) -> None:
    """Of another rank it is refused; its names may have scopes more in front."""
    adapter = Adapter.of(trainer)
    values = {f"module.{n}": draw(*a.shape, seed=3) for n, a in adapter.tensors.items()}
    Adapter(values, 2, alpha=8.0).put(trainer)
    b = "block.0.fc.lora_B.weight"
    np.testing.assert_allclose(
        trainer.state.parameters[b].data, 2 * values[f"module.{b}"], rtol=1e-6
    )
    wide = {n: draw(*(3 if d == 2 else d for d in a.shape)) for n, a in adapter.tensors.items()}
    with pytest.raises(ShapeError, match="whose adapters are of rank 2"):
        Adapter(wide, 3, alpha=8.0).put(trainer)
    with pytest.raises(NameNotFoundError, match="it has no parameter"):
        Adapter({}, 2).put(trainer)

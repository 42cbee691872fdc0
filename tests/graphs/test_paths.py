"""Paths: patterns by the module's names, whichever exporter has named the weights.

tests/data/exports/layers-*.onnx are one module of PyTorch by both exporters, with weights under
their own names and as those make them, transposed ahead: `val_13`, `onnx::MatMul_43`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
from engine import lora
from engine.api import CheckpointState
from engine.artifacts import SGD, AdamW, CrossEntropyLoss
from engine.base.sparse_update import SparseUpdate
from engine.errors import ModelError, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline import sparse
from engine.graphs.offline.normalize import name_nodes
from engine.graphs.offline.optim_types import Group
from engine.graphs.offline.parameters import match_parameters
from engine.lora import Adapter
from engine.system.paths import METADATA, Paths
from engine.tools import cli
from engine.trainer.trainer import Trainer
from tests.support.harness import copy_parameters
from tests.support.places import EXPORTS

FORMS = ("new", "new_folded", "old", "old_folded")
LAYERS = ["layers.0.mlp.0", "layers.0.mlp.2", "layers.0.q"]
X = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
LABELS = np.arange(5) % 3


def model(form: str) -> Path:
    return EXPORTS / f"layers-{form}.onnx"


def paths_of(form: str) -> Paths:
    return Paths.of(onnx_io.load(model(form)).metadata)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_weights_have_the_modules_names(form: str) -> None:
    """All except the module's own names; a layer that is used twice has a weight twice."""
    actual_paths, graph = paths_of(form), onnx_io.load(model(form))
    names = {actual_paths.name_value(name) for name, a in graph.initializers.items() if a.ndim == 2}
    layers = [f"layers.{i}.{part}.weight" for i in range(2) for part in ("mlp.0", "mlp.2", "q")]
    assert names == {*layers, "twice.weight", "head.weight"}
    assert bool(actual_paths.values) == form.endswith("folded")
    modules = {actual_paths.find_module(node.name) for node in graph.nodes if node.op == "MatMul"}
    assert modules >= {name.removesuffix(".weight") for name in layers}


def test_lora_names_layers_as_the_module_does(form: str) -> None:
    adapted = lora.adapt(model(form), ["layers.0.*(q|mlp)"])
    assert sorted(row.name for row in adapted.summary.layers) == LAYERS
    assert sorted(lora.parameters(adapted.to_bytes())) == [
        f"{name}.lora_{part}.weight" for name in LAYERS for part in "AB"
    ]
    one = lora.adapt(model(form), r"^layers\.1\.mlp\.0\.weight$")
    assert [row.name for row in one.summary.layers] == ["layers.1.mlp.0"]


def test_an_adapter_of_one_export_is_that_of_another(tmp_path: Path) -> None:
    """Its files have the module's names, which peft reads."""
    one, two = (
        Trainer.from_onnx(model(form), CrossEntropyLoss(), SGD(0.5), lora="layers.0.q", threads=1)
        for form in ("new_folded", "old")
    )
    one.step(X, LABELS)
    Adapter.of(one).save(tmp_path / "adapter")
    Adapter.load(tmp_path / "adapter").put(two)
    assert two.evaluate_batch(X, LABELS)[0] == pytest.approx(one.evaluate_batch(X, LABELS)[0], 1e-5)


def test_patterns_of_what_is_trained(form: str) -> None:
    graph, actual_paths = onnx_io.load(model(form)), paths_of(form)

    def trained(*patterns: str) -> list[str]:
        return sorted({actual_paths.name_value(name) for name in match_parameters(graph, patterns)})

    assert trained("layers.0.q.*", "head.weight") == ["head.weight", "layers.0.q.weight"]
    assert trained("*.mlp.*", "!*.bias", "!layers.1.*") == [
        "layers.0.mlp.0.weight", "layers.0.mlp.2.weight",
    ]  # fmt: skip
    assert len(match_parameters(graph, ["twice.weight"])) == 1
    own = next(iter(actual_paths.values), "head.weight")
    assert match_parameters(graph, [own]) == [own]
    with pytest.raises(NameNotFoundError, match=r"nearest: 'layers\.0\.q\.weight'"):
        match_parameters(graph, ["layers.0.q.wait"])
    with pytest.raises(NameNotFoundError, match=r"parameters; they are 'layers\.0\."):
        match_parameters(graph, ["?"])


def test_sparse_updates(form: str) -> None:
    graph, actual_paths = name_nodes(onnx_io.load(model(form))), paths_of(form)
    update = SparseUpdate(layers=["layers.1.mlp.*"], channels={"layers.0.mlp.2.weight": 0.5})
    made = sparse.choose(graph, update)
    assert sorted(map(actual_paths.name_value, made.trained)) == [
        "layers.0.mlp.2.weight", "layers.1.mlp.0.bias", "layers.1.mlp.0.weight",
        "layers.1.mlp.2.bias", "layers.1.mlp.2.weight",
    ]  # fmt: skip
    assert [(actual_paths.name_value(n), count) for n, (_, count) in made.parts.items()] == [
        ("layers.0.mlp.2.weight", 4)
    ]


@pytest.mark.parametrize("form", ["new_folded", "old_folded"])
def test_trainings_by_paths_keep_the_names_of_the_file(form: str, tmp_path: Path) -> None:
    """Groups of the optimizer and what is unfrozen go by paths; checkpoints and exported models
    have the names that the model has, and get the paths again."""
    actual_paths = paths_of(form)
    groups = [Group(["layers.0.mlp.0.*"], lr_scale=0.0)]
    trainer = Trainer.from_onnx(
        model(form), CrossEntropyLoss(), AdamW(0.05, groups=groups), folder=tmp_path / "run",
        train=["layers.*"], threads=1, tie=[],
    )  # fmt: skip
    graph = onnx_io.load(model(form))
    names = trainer.state.trainable_names()
    assert names == sorted(match_parameters(graph, ["layers.*"]))
    before = copy_parameters(trainer)
    trainer.step(X, LABELS)
    moved = {n for n, p in trainer.state.parameters if not np.array_equal(p.data, before[n])}
    still = {n for n in names if actual_paths.name_value(n).startswith("layers.0.mlp.0.")}
    assert moved == {*names} - still
    assert any(actual_paths.name_value(name) != name for name in still)
    trainer.export(tmp_path / "out.onnx")
    out = onnx_io.load(tmp_path / "out.onnx")
    assert {*names} <= {*out.initializers}
    assert Paths.of(out.metadata).values == actual_paths.values
    schedule = {"layers.1.q.weight": 0, "layers.*": 1}
    history = trainer.fit((X, LABELS), epochs=2, batch_size=5, unfreeze=schedule, folder=None)
    assert len(history.rows) == 2


def test_names_of_artifacts_may_be_paths(tmp_path: Path) -> None:
    engine.artifacts.generate_artifacts(
        model("old_folded"), requires_grad=["layers.0.q.weight"], frozen_params=["twice.weight"],
        loss=CrossEntropyLoss(), artifact_directory=tmp_path, tie=[],
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    values = paths_of("old_folded").values
    assert [values[name] for name in state.trainable_names()] == ["layers.0.q.weight"]
    assert len([name for name, _ in state.parameters]) == 2


def test_tables_and_refusals_name_the_submodule() -> None:
    table = engine.supported(model("new_folded"))
    assert {row.module for row in table if row.op == "MatMul"} >= {"layers.0.q", "twice"}
    assert "layers.1.mlp.0" in str(table)
    paths = paths_of("new")
    name = next(n for n, module in paths.nodes.items() if module == "layers.0.q")
    assert paths.title_node(f"{name}/lora_A") == paths.title_node(f"{name}_Grad/MatMul").replace(
        f"{name}_Grad/MatMul", f"{name}/lora_A"
    )
    assert paths.title_node(name) == f"{name!r} of layers.0.q"


def keras(tmp_path: Path) -> Path:
    """Return a model with tf2onnx's names: a dense layer after one with a transposed constant."""
    place = "StatefulPartitionedCall/sequential/dense"
    values = {
        f"{place}/Cast/ReadVariableOp:0": np.ones((4, 3), np.float32),
        f"{place}/BiasAdd/ReadVariableOp:0": np.ones(3, np.float32),
        "const_fold_opt__17": np.ones((3, 2), np.float32),
    }
    first, bias, last = values
    nodes = [
        helper.make_node("MatMul", ["x", first], ["a"], f"{place}/MatMul"),
        helper.make_node("Add", ["a", bias], ["b"], f"{place}/BiasAdd"),
        helper.make_node("MatMul", ["b", last], ["y"], f"{place}_1/MatMul"),
    ]
    floats = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "made", [floats("x", TensorProto.FLOAT, ["n", 4])],
        [floats("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, producer_name="tf2onnx", ir_version=8)
    onnx.save(proto, tmp_path / "keras.onnx")
    return tmp_path / "keras.onnx"


def test_names_of_tf2onnx(tmp_path: Path) -> None:
    graph = onnx_io.load(keras(tmp_path))
    actual = Paths.of(graph.metadata)
    assert [actual.name_value(name) for name in graph.initializers] == [
        "sequential.dense.kernel", "sequential.dense.bias", "sequential.dense_1.kernel",
    ]  # fmt: skip
    adapted = lora.adapt(keras(tmp_path), "dense_1$")
    assert [row.name for row in adapted.summary.layers] == ["sequential.dense_1"]


def test_a_weight_of_a_layer_that_is_called_twice(tmp_path: Path) -> None:
    """Two copies of one weight have one path, which names both; others with such names do not."""
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    values = {f"onnx::MatMul_{k}": w for k, w in enumerate((weight, weight, weight + 1))}
    places, flow = ("/fc/MatMul", "/fc_1/MatMul", "/fc_2/MatMul"), ("x", "a", "b", "y")
    nodes = [
        helper.make_node("MatMul", [flow[k], name], [flow[k + 1]], places[k])
        for k, name in enumerate(values)
    ]
    floats = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "made", [floats("x", TensorProto.FLOAT, ["n", 4])],
        [floats("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )  # fmt: skip
    made = onnx_io.load(helper.make_model(graph, producer_name="pytorch", ir_version=8))
    actual = Paths.of(made.metadata)
    assert [actual.name_value(name) for name in values] == ["fc.weight", "fc.weight", "fc_2.weight"]
    assert match_parameters(made, ["fc.weight"]) == ["onnx::MatMul_0", "onnx::MatMul_1"]
    assert actual.find_module("/fc_1/MatMul") == "fc"


@pytest.mark.parametrize("text", ["{", "[1, 2]", '[{"a": 1}]', "7", '[{}, {"a": 3}]'])
def test_a_damaged_note_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="the note of the paths of its module is damaged"):
        Paths.of({METADATA: text})


def test_notes_are_read_as_they_are_written() -> None:
    made = Paths({"val_1": "a.weight"}, {"node_1": "a", "node_2": "a", "node_3": "b"})
    assert Paths.of({METADATA: made.write()}) == made
    names: Any = ["val_1", "c.weight"]
    assert made.spell_patterns(["a.*", "c.*", "z"], names) == ["val_1", "c.*", "z"]
    assert made.resolve(["a.weight", "val_1", "z"], names) == ["val_1", "z"]


@pytest.mark.parametrize("form", ["new_folded", "old"])
def test_what_is_printed_of_nodes_names_their_submodules(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside names that exporters have made up; names of the tracing one say it themselves."""
    trainer = Trainer.from_onnx(
        model(form), CrossEntropyLoss(), SGD(0.5), threads=1, folder=tmp_path
    )
    node = next(
        n.name
        for n in onnx_io.load(tmp_path / "training_model.onnx").nodes
        if n.op in ("MatMul", "Gemm")
        and trainer.learner.session.training.paths.find_module(n.name) == "layers.0.q"
    )
    shown = node if form == "old" else f"layers.0.q: {node}"
    profile = trainer.module.profile(X, LABELS, optimizer=trainer.optimizer, repeats=1)
    assert shown in {total.name for total in profile.by_node}
    assert node in {step.node for step in profile.steps}
    assert shown in profile.table("node", most=0)
    picture = tmp_path / "plan.html"
    for words in ([], ["--picture", str(picture)]):
        assert cli.main(["plan", str(tmp_path), "--batch", "5", *words]) == 0
    assert f"# {shown}\n" in capsys.readouterr().out
    assert shown in picture.read_text()
    for _, parameter in trainer.state.parameters:
        parameter.data[...] = 3e38
    told = str(trainer.find_nonfinite(X, LABELS))
    assert "from finite values by the node" in told
    assert "' of layers.0" in told


def test_no_module_is_said_twice() -> None:
    paths = Paths({}, {"n19_2": "encoder.0.fc", "/encoder/0/fc/MatMul": "encoder.0.fc"})
    assert paths.label_node("n19_2_Grad/n13_2") == "encoder.0.fc: n19_2_Grad/n13_2"
    assert paths.label_node("/encoder/0/fc/MatMul") == "/encoder/0/fc/MatMul"
    assert paths.label_node("n7") == "n7"

"""Parameters that exporters have copied: they are found, reported, and trained as one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from engine import Trainer
from engine.artifacts import SGD, AdamW, CrossEntropyLoss
from engine.errors import InputError, ModelWarning, NameNotFoundError, ShapeError
from engine.graphs.io import onnx_io
from engine.graphs.offline import ties
from tests.support.places import EXPORTS

WORDS, WIDTH = 19, 8
# As GPT-2: a table that is read forward, and transposed as the last layer; and once more as it is.
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (int64[N,5] ids) => (KIND[N,19,5] scores) {
    e = Gather(wte, ids)
    h = MatMul(e, mix)
    t = Tanh(h)
    again = Gather(other, ids)
    s = Add(t, again)
    TRANSPOSED
    flat = MatMul(s, head)
    scores = Transpose<perm = [0, 2, 1]>(flat)
}"""
COPIES, SHARED = ("wte", "other", "head"), "head = Transpose<perm = [1, 0]>(wte)"
IDS = np.random.default_rng(0).integers(0, WORDS, (4, 5))
NEXT = np.roll(IDS, -1, 1)


def model(kind: type[np.floating[Any]] = np.float32, *, shared: bool = False) -> onnx.ModelProto:
    """The model with its copies, or with one table that is read three times."""
    text = TEXT.replace("KIND", "float" if kind is np.float32 else "double")
    text = text.replace("TRANSPOSED", SHARED if shared else "")
    if shared:
        text = text.replace("Gather(other, ids)", "Gather(wte, ids)")
    proto = parser.parse_model(text)
    rng = np.random.default_rng(1)
    table, mix = (rng.standard_normal((n, WIDTH)).astype(kind) / 2 for n in (WORDS, WIDTH))
    held = {"wte": table, "mix": mix}
    if not shared:
        held |= {"other": table, "head": np.ascontiguousarray(table.T)}
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    return proto


def trainer(proto: onnx.ModelProto, **more: Any) -> Trainer:
    options = {"optimizer": AdamW(0.05, weight_decay=0.1), "threads": 1, "seed": 3, **more}
    return Trainer.from_onnx(proto, CrossEntropyLoss(), **options)


def test_parameters_without_elements_are_no_copies() -> None:
    proto = model(shared=True)
    empty = np.zeros((0, WORDS), np.float32)
    proto.graph.initializer.extend(
        numpy_helper.from_array(empty, name) for name in ("none", "neither")
    )
    joined = helper.make_node("Concat", ["flat", "none", "neither"], ["all"], axis=1)
    proto.graph.node[-1].input[0] = "all"
    proto.graph.node.insert(len(proto.graph.node) - 1, joined)
    assert ties.find(onnx_io.load(proto), ["wte", "none", "neither"], []) == []


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("given", ["auto", [["wte", "head", "other"]]], ids=["found", "given"])
def test_copies_train_as_the_shared_parameter_does(given: Any, threads: int) -> None:
    tied = trainer(model(), tie=given, threads=threads)
    twin = trainer(model(shared=True), threads=threads)
    assert [n for n, _ in tied.state.parameters] == ["mix", "wte"]
    for _ in range(3):
        assert tied.step(IDS, NEXT) == pytest.approx(twin.step(IDS, NEXT), rel=1e-6)
    for name, parameter in tied.state.parameters:
        expected = twin.state.parameters[name].data
        np.testing.assert_allclose(parameter.data, expected, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_the_sum_of_those_of_all_copies() -> None:
    """In double precision, and by a difference quotient along a random direction."""
    options: dict[str, Any] = {"optimizer": SGD(0.1)}
    tied = trainer(model(np.float64), tie="auto", **options)
    alone = trainer(model(np.float64), tie=[], **options)
    for each in (tied, alone):
        each.accumulate(IDS, NEXT)
    grads = {n: np.array(p.grad) for n, p in alone.state.parameters}
    array = np.array(tied.state.parameters["wte"].grad)
    np.testing.assert_allclose(array, grads["wte"] + grads["other"] + grads["head"].T, rtol=1e-12)
    direction = np.random.default_rng(2).standard_normal(array.shape)
    value, step, losses = tied.state.parameters["wte"].data, 1e-6, []
    start = value.copy()
    for sign in (1, -1):
        value[...] = start + sign * step * direction
        losses.append(tied.evaluate_batch(IDS, NEXT)[0])
    slope = (losses[0] - losses[1]) / (2 * step)
    assert np.vdot(array, direction) == pytest.approx(slope, rel=1e-6)


def test_an_export_has_the_copies_apart_and_equal(tmp_path: Path) -> None:
    tied = trainer(model(), tie="auto")
    tied.step(IDS, NEXT)
    tied.export(tmp_path / "out.onnx")
    graph = onnx.load(tmp_path / "out.onnx").graph
    to_arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    table = tied.state.parameters["wte"].data
    assert {*to_arrays} == {"wte", "other", "head", "mix"}
    assert (to_arrays["other"] == table).all()
    assert (to_arrays["head"] == table.T).all()
    assert [n.op_type for n in graph.node].count("Transpose") == 1  # of the scores
    assert "Identity" not in [n.op_type for n in graph.node]


def test_copies_are_told_of_unless_somebody_has_decided() -> None:
    text = r"'other' is equal to 'wte'.*are now trained separately.* tie='auto'"
    with pytest.warns(ModelWarning, match=text):
        trainer(model())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(model(), tie=[])
        trainer(model(shared=True))
        trainer(model(), train="mix")


def test_what_only_looks_alike_is_no_copy() -> None:
    graph = onnx_io.load(model())
    names = list(graph.initializers)
    assert ties.find(graph, names, ()) == [list(COPIES)]
    graph.parameters = tuple(names)  # the exporter says that the module has them all
    assert ties.find(graph, names, ()) == []
    graph.parameters, graph.producer = (), "pytorch"  # layers that begin as copies of one
    assert ties.find(graph, names, ()) == []
    graph.initializers["onnx::MatMul_7"] = graph.initializers["head"]
    assert ties.find(graph, names, ["other", "head"]) == [["wte", "onnx::MatMul_7"]]
    graph.producer = ""
    graph.initializers |= {"i": np.eye(30, dtype=np.float32), "j": np.eye(30, dtype=np.float32)}
    assert ties.find(graph, ["i", "j"], COPIES) == []


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([["wte", "mix"]], ShapeError, r"'mix' float32\[8, 8\] is neither equal to 'wte'"),
        ([["wte", "hed"]], NameNotFoundError, "no initializer 'hed'; nearest: 'head'"),
        ([["wte"]], InputError, "fewer than two names"),
        ([["wte", "head"], ["head", "other"]], InputError, "'head' appears twice"),
        ("all", InputError, "expected 'auto', or groups of names"),
        (
            3,
            InputError,
            r"tie=3; expected a list \(each a list of names\), text, True or False or None",
        ),
    ],
)
def test_ties_that_cannot_be_are_refused(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        trainer(model(), tie=given)


def test_one_parameter_cannot_be_trained_in_part() -> None:
    with pytest.raises(InputError, match=r"trained: \['wte'\], frozen: \['head'\]"):
        trainer(model(), tie=[["wte", "head"]], train=["wte", "mix"])


@pytest.mark.parametrize("name", ["tied-new_folded", "tied-old_folded"])
def test_what_pytorch_folds_of_a_tied_layer_is_found(name: str) -> None:
    """Its exporters transpose the shared table ahead, under a name of their own."""
    graph = onnx_io.load(EXPORTS / f"{name}.onnx")
    (group,) = ties.find(graph, list(graph.initializers)[:1], ())
    assert len(group) == 2
    trained, frozen = ties.tie(graph, "auto", group, [])
    assert (trained, frozen) == (group[:1], [])
    assert graph.nodes[0].op == "Transpose"

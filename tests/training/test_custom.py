"""Operators from outside the package: the documentation's example trains, and what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import artifacts, custom
from engine.api import CheckpointState, Module, Optimizer
from engine.custom import Op, parse, register, same_as, unregister
from engine.errors import DTypeError, EngineError, InputError, UnsupportedOpError
from engine.kernels.binaries.fingerprint import digest_origin
from engine.kernels.binaries.load import get_object
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops, list_templates
from engine.plan.plan import KernelSpec
from engine.tools import cli
from engine.tools.dev.case_graphs import OneNode, backward_of
from engine.tools.dev.cases.case import Case, f32
from engine.tools.trimmed import opset
from engine.tools.trimmed.kernel_set import find_kernel_set
from tests.support import builds
from tests.support.harness import run
from tests.support.places import DOCS

DOC = DOCS / "custom-ops.md"
RNG = np.random.default_rng(0)


@pytest.fixture
def my_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The documentation's module, imported from a file of its own."""
    match = re.search(r"```python\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    assert match
    (tmp_path / "my_ops.py").write_text(match[1])
    monkeypatch.syspath_prepend(tmp_path)
    import my_ops as module  # type: ignore[import-not-found]  # written just now

    yield module
    forget(module)


def forget(module: Any) -> None:
    """Undo the import of the documentation's module."""
    custom.unregister(
        *(op for key, op in list_ops().items() if key[0] == "my.ops"), kernels=[module.squared_relu]
    )
    del sys.modules["my_ops"]


@pytest.mark.parametrize(("op", "attrs"), [("SquaredRelu", {}), ("Softclip", {"limit": 1.5})])
def test_forward_and_gradient(my_ops: Any, op: str, attrs: dict[str, float]) -> None:
    one = OneNode(Case(op, (f32(3, 5),), attrs, grad=(0,), domain="my.ops"), double=True)
    x = one.inputs["x0"]
    tanh = np.tanh(x / 1.5)
    y, slope = {
        "SquaredRelu": (np.maximum(x, 0) ** 2, 2 * np.maximum(x, 0)),
        "Softclip": (1.5 * tanh, 1 - tanh**2),
    }[op]
    np.testing.assert_allclose(run(one.graph, one.inputs, threads=2)["y0"], y, rtol=1e-12)
    backward, names = backward_of(one, {"y0": np.ones_like(x)})
    np.testing.assert_allclose(run(backward, one.inputs)[names["x0"]], slope, rtol=1e-12)


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
        helper.make_node("SquaredRelu", ["h"], ["a"], domain="my.ops", name="sq"),
        helper.make_node("Softclip", ["a"], ["y"], domain="my.ops", name="clip", limit=3.0),
    ]
    w = numpy_helper.from_array(RNG.standard_normal((4, 3)).astype(np.float32), "w")
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", d])
        for n, d in (("x", 4), ("y", 3))
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [w])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_model_with_such_ops_trains(my_ops: Any, tmp_path: Path) -> None:
    artifacts.generate_artifacts(
        model(), requires_grad=["w"], loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    x, target = (RNG.standard_normal((8, n)).astype(np.float32) for n in (4, 3))
    losses = []
    for _ in range(20):
        losses.append(float(module(x, np.abs(target))))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.8 * losses[0]


@pytest.fixture
def trained(my_ops: Any, tmp_path: Path) -> Path:
    """Artifacts of a model with both ops, beside the file that registers them."""
    artifacts.generate_artifacts(
        model(), requires_grad=["w"], loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    return tmp_path / "artifacts"


def assert_trains_like_the_engine(trainer: Any, folder: Path, closed: bool) -> None:
    """Three steps of a build's trainer and of the engine, from one checkpoint, bit by bit."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    for part in (module.session.training, optimizer.model):
        part.closed = closed
    for _ in range(3):
        x, target = (RNG.standard_normal((4, n)).astype(np.float32) for n in (4, 3))
        expected = module(x, target)
        optimizer.step()
        module.lazy_reset_grad()
        assert trainer.step(x, target) == expected
    assert trainer.state.to_bytes(True) == state.to_bytes(True)


@builds.needs_cc
def test_a_build_of_a_model_with_such_ops_trains(trained: Path, tmp_path: Path) -> None:
    words = [str(trained), "--batch", "4", "--name", "mnist", "-o", str(tmp_path / "out")]
    assert cli.main(["build", *words]) == 0
    assert "passed" in builds.run(tmp_path / "out" / "selftest")
    trainer = builds.load(tmp_path / "out").Trainer(trained / "checkpoint")
    assert_trains_like_the_engine(trainer, trained, closed=False)


@builds.needs_cc
def test_a_library_for_such_ops_runs_plans_of_them(
    trained: Path, my_ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands, which import the file themselves."""
    forget(my_ops)
    config, plan = tmp_path / "required_operators.config", tmp_path / "p.plan"
    own = ["--import", my_ops.__file__]
    assert cli.main(["ops", str(trained), "-o", str(config), *own]) == 0
    assert "my.ops;1;Softclip,SquaredRelu" in config.read_text()
    words = ["--ops", str(config), "--name", "mnist", "-o", str(tmp_path / "out")]
    assert cli.main(["build", *words, *own]) == 0
    words = [str(trained), "--batch", "4", "--ops", str(config), "-o", str(plan)]
    assert cli.main(["plan", *words, *own]) == 0
    trainer = builds.load(tmp_path / "out").Trainer(trained / "checkpoint", plan)
    assert_trains_like_the_engine(trainer, trained, closed=True)


def test_commands_say_what_they_could_not_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong_ops.py"
    for text, message in (
        (None, r"wrong_ops\.py: not a Python file"),
        ("1 / 0", r"wrong_ops\.py: ZeroDivisionError: division by zero"),
    ):
        if text is not None:
            wrong.write_text(text, "utf-8")
        assert cli.main(["ops", str(tmp_path), "--import", str(wrong)]) == 1
        assert re.search(message, capsys.readouterr().err)
    (tmp_path / "json.py").touch()
    assert cli.main(["ops", str(tmp_path), "--import", str(tmp_path / "json.py")]) == 1
    assert "another module 'json'" in capsys.readouterr().err


def test_an_op_that_calls_what_it_does_not_declare_is_refused(my_ops: Any) -> None:
    shy = replace(list_ops()["my.ops", "SquaredRelu"], calls=())
    register(shy)
    one = OneNode(Case("SquaredRelu", (f32(3, 5),), domain="my.ops"))
    message = r"my\.ops::SquaredRelu calls the kernel 'squared_relu', which its declaration `calls`"
    with pytest.raises(EngineError, match=message):
        run(one.graph, one.inputs)


def test_an_op_that_becomes_what_it_does_not_declare_is_refused() -> None:
    def declare(becomes: str | None) -> Op:
        return Op(
            name="Twice", domain="my.ops", infer=same_as(0), becomes=becomes,
            expand=lambda n: (n.op("Add", n.x(0), n.x(0)),),
        )  # fmt: skip

    one = OneNode(Case("Twice", (f32(3),), domain="my.ops"))
    config = opset.parse("my.ops;1;Twice\n")
    register(declare("Mul"))
    with pytest.raises(
        EngineError, match=r"my\.ops::Twice expands into Add, which its declaration"
    ):
        run(one.graph.copy(), one.inputs)
    for becomes in ("Add", None):
        register(declare(becomes))
        np.testing.assert_array_equal(run(one.graph.copy(), one.inputs)["y0"], 2 * one.inputs["x0"])
    with pytest.raises(UnsupportedOpError, match=r"'my\.ops::Twice': its declaration has no 'bec"):
        find_kernel_set(config)
    register(declare("Gather"))
    assert {"gather", "formula"} == {spec.template for spec in find_kernel_set(config)}
    custom.unregister(declare(None))


def test_the_cache_knows_the_file_a_kernel_is_written_in(
    my_ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    spec = KernelSpec("squared_relu", ("f32",))
    assert digest_origin(list_templates()["squared_relu"].build) != digest_origin(
        list_templates()["map"].build
    )
    made = {get_object(spec, detect_host()) for _ in range(2)}
    assert len(made) == 1
    assert len([*(tmp_path / "cache").rglob("*.o")]) == 1


def test_what_cannot_be_registered() -> None:
    with pytest.raises(InputError, match="domain '' is not yours"):
        register(Op(name="Mine", infer=same_as(0), is_view=True))
    with pytest.raises(InputError, match=r"my\.ops::Mine: an op needs lower, expr"):
        register(Op(name="Mine", domain="my.ops", infer=same_as(0)))
    taken = list_templates()["map"]
    with pytest.raises(InputError, match="kernel 'map': the package has one"):
        register(Op(name="Mine", domain="my.ops", infer=same_as(0), is_view=True), kernels=[taken])
    assert ("my.ops", "Mine") not in list_ops()


def test_a_kernel_can_be_registered_again_but_not_changed() -> None:
    def declare(factor: int) -> custom.Template:
        @custom.kernel("x: update T[...]  y: update T[...]")
        def scaled(target: custom.Target, T: str) -> custom.Body:
            return (lambda x, y: None) if factor == 1 else (lambda y, x: None)

        @custom.kernel("x: update T[...]  y: update T[...]")
        def other(target: custom.Target, T: str) -> custom.Body:
            return lambda x, y: None

        return scaled if factor == 1 else replace(other, name="scaled")

    register(kernels=[declare(1)])
    register(kernels=[declare(1)])
    with pytest.raises(InputError, match="kernel 'scaled' is registered with other code"):
        register(kernels=[declare(2)])
    custom.unregister(kernels=[declare(1)])
    assert "scaled" not in list_templates()


def test_a_lowering_may_call_the_kernels_it_is_registered_with(my_ops: Any) -> None:
    plain = replace(list_ops()["my.ops", "SquaredRelu"], calls=None)
    register(plain, kernels=[my_ops.squared_relu])
    assert list_ops()["my.ops", "SquaredRelu"].calls == (my_ops.squared_relu,)
    register(plain)
    with pytest.raises(UnsupportedOpError, match=r"'my\.ops::SquaredRelu': .* no 'calls'"):
        find_kernel_set(opset.parse("my.ops;1;SquaredRelu\n"))
    one = OneNode(Case("SquaredRelu", (f32(3, 5),), domain="my.ops"))
    run(one.graph, one.inputs)


def test_an_op_nobody_registered_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=r"my\.ops::SquaredRelu 'sq'"):
        artifacts.generate_artifacts(model(), requires_grad=["w"], artifact_directory=tmp_path)


def test_what_was_registered_can_be_forgotten() -> None:
    mine = Op(name="Mine", domain="my.ops", infer=same_as(0), is_view=True)
    register(mine)
    assert list_ops()["my.ops", "Mine"] is mine
    custom.unregister(mine)
    assert ("my.ops", "Mine") not in list_ops()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 3}, "op 3 name: expected text, got 3"),
        ({"domain": "\ud800"}, "op 'Cube' domain .* cannot be written as UTF-8"),
        ({"since": "13"}, "op 'Cube' since: expected a whole number, got '13'"),
        ({"grad": "rule"}, "op 'Cube' grad: expected a function or None"),
        ({"attrs": ["alpha"]}, "op 'Cube' attrs: expected a mapping"),
        ({"calls": (3,)}, r"op 'Cube' calls\[0\]: expected a Template, got 3"),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(changes: dict[str, Any], words: str) -> None:
    cube = Op(name="Cube", infer=same_as(0), domain="my.ops", expr=lambda _: parse("x*x*x", ("x",)))
    with pytest.raises(EngineError, match=words):
        register(replace(cube, **changes))
    assert ("my.ops", "Cube") not in list_ops()


@pytest.mark.parametrize("call", [register, unregister])
def test_what_is_no_op_is_refused(call: Any) -> None:
    with pytest.raises(DTypeError, match="declared: expected an Op, got 3"):
        call(3)
    with pytest.raises(EngineError, match=r"kernels: expected a list.*, got 'x'"):
        call(kernels="x")

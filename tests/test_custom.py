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
from engine.custom import Op, register, same_as
from engine.errors import InputError, UnsupportedOpError
from engine.kernels.compiler.fingerprint import origin
from engine.kernels.compiler.load import object_code
from engine.kernels.registry import ops, templates
from engine.kernels.target import host
from engine.runtime.plan import KernelSpec
from tests.cases.case import Case, f32
from tests.harness import OneNode, backward_of, run

DOC = Path(__file__).parents[1] / "docs/custom-ops.md"
RNG = np.random.default_rng(0)


@pytest.fixture
def my_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The documentation's module, imported from a file of its own."""
    found = re.search(r"```python\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    assert found
    (tmp_path / "my_ops.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    before = set(ops()), set(templates())
    import my_ops as module  # type: ignore[import-not-found]  # written just now

    yield module
    for key in set(ops()) - before[0]:
        del ops()[key]
    for name in set(templates()) - before[1]:
        del templates()[name]
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


def test_the_cache_knows_the_file_a_kernel_is_written_in(
    my_ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEGRAD_CACHE_DIR", str(tmp_path / "cache"))
    spec = KernelSpec("squared_relu", ("f32",))
    assert origin(templates()["squared_relu"].build) != origin(templates()["map"].build)
    made = {object_code(spec, host()) for _ in range(2)}
    assert len(made) == 1
    assert len([*(tmp_path / "cache").rglob("*.o")]) == 1


def test_what_cannot_be_registered() -> None:
    with pytest.raises(InputError, match="domain '' is not yours"):
        register(Op(name="Mine", infer=same_as(0), view=True))
    with pytest.raises(InputError, match=r"my\.ops::Mine: an op needs lower, expr"):
        register(Op(name="Mine", domain="my.ops", infer=same_as(0)))
    taken = templates()["map"]
    with pytest.raises(InputError, match="kernel 'map': the package has one"):
        register(Op(name="Mine", domain="my.ops", infer=same_as(0), view=True), kernels=[taken])
    assert ("my.ops", "Mine") not in ops()


def test_a_kernel_can_be_registered_again_but_not_changed() -> None:
    def declare(factor: int) -> custom.Template:
        @custom.kernel("x:T* y:T*")
        def scaled(target: custom.Target, T: str) -> custom.Body:
            return (lambda x, y: None) if factor == 1 else (lambda y, x: None)

        @custom.kernel("x:T* y:T*")
        def other(target: custom.Target, T: str) -> custom.Body:
            return lambda x, y: None

        return scaled if factor == 1 else replace(other, name="scaled")

    register(kernels=[declare(1)])
    register(kernels=[declare(1)])
    with pytest.raises(InputError, match="kernel 'scaled' is registered with other code"):
        register(kernels=[declare(2)])
    custom.unregister(kernels=[declare(1)])
    assert "scaled" not in templates()


def test_an_op_nobody_registered_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=r"my\.ops::SquaredRelu 'sq'"):
        artifacts.generate_artifacts(model(), requires_grad=["w"], artifact_directory=tmp_path)


def test_what_was_registered_can_be_forgotten() -> None:
    mine = Op(name="Mine", domain="my.ops", infer=same_as(0), view=True)
    register(mine)
    assert ops()["my.ops", "Mine"] is mine
    custom.unregister(mine)
    assert ("my.ops", "Mine") not in ops()

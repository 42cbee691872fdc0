"""The backend: ONNX's interface, inputs by order and name, values that decide shapes."""

from __future__ import annotations

import inspect
import unittest
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend as Interface

from engine import backend
from engine.errors import (
    DTypeError,
    EngineError,
    InputError,
    ShapeError,
    UnknownValueError,
    UnsupportedOpError,
)
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from tests.support.harness import drop_type


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str]
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, code, dims) for n, (code, dims) in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(n) for n in outputs]
    graph = helper.make_graph(nodes, "m", infos, outs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def reshape() -> onnx.ModelProto:
    """y = Reshape(-x, Concat(a, [-1]))."""
    nodes = [
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Concat", ["a", "rest"], ["shape"], axis=0),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Reshape", ["n", "shape"], ["y"]),
    ]
    return model(nodes, {"x": (1, ["n", 4]), "a": (7, [1])}, ["y"])


@pytest.mark.parametrize(
    "name", ["is_compatible", "prepare", "run_model", "run_node", "supports_device"]
)
def test_the_interface_is_that_of_onnx(name: str) -> None:
    theirs = inspect.signature(getattr(Interface, name))
    for owner in (backend, backend.Backend):
        assert list(inspect.signature(getattr(owner, name)).parameters) == list(theirs.parameters)


def test_values_that_decide_shapes_become_part_of_the_plan() -> None:
    rep = backend.prepare(reshape(), threads=1)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for rows in (2, 6, 2):
        (y,) = rep.run([x, np.array([rows])])
        np.testing.assert_array_equal(y, -x.reshape(rows, -1))
    assert [n.op_type for n in reshape().graph.node].count("Neg") == 1
    (plan,) = {p.plan.inputs for p in rep._session._calls.model.memory.programs.values()}
    assert [p.name for p in plan] == ["x"], "the data stays an input"


def test_a_plan_names_the_inputs_whose_values_it_needs() -> None:
    graph = onnx_io.load(reshape())
    with pytest.raises(UnknownValueError, match=r"Reshape.*depends on the values of") as failure:
        make_plan(graph, {"x": (3, 4), "a": (1,)}, target=detect_host(), threads=1)
    assert failure.value.inputs == ("a",)


def test_inputs_by_name_and_what_is_wrong_with_them() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    rep = backend.prepare(reshape(), "CPU:0", threads=1)
    (y,) = rep.run({"a": np.array([4]), "x": x})
    np.testing.assert_array_equal(y, -x.reshape(4, 1))
    for given, error, text in (
        ([x], InputError, "takes 2 inputs"),
        ({"x": x}, InputError, "also takes the inputs .'a'"),
        ({"x": x, "a": [1], "b": [1]}, InputError, "no input 'b'"),
        ([x.astype(np.float64), [1]], DTypeError, "expected float32"),
        ([x[0], [1]], ShapeError, "expected 2 dimensions"),
        ([x, [3]], ShapeError, "cannot be divided"),
    ):
        with pytest.raises(error, match=text):
            rep.run(given)


def test_one_node_runs_with_absent_inputs_and_without_elements() -> None:
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = backend.run_node(clip, [x, np.float32(1)])
    np.testing.assert_array_equal(y, np.minimum(x, 1))
    relu = helper.make_node("Relu", ["x"], ["y"])
    (y,) = backend.run_node(relu, [x[:0]], opset_version=14)
    assert y.shape == (0,)
    assert y.dtype == np.float32
    with pytest.raises(InputError, match="the node takes"):
        backend.run_node(relu, [])


def test_only_cpus() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:1")
    with pytest.raises(EngineError, match="device 'CUDA'"):
        backend.prepare(reshape(), "CUDA")
    strings = model(
        [helper.make_node("Identity", ["s"], ["y"])], {"s": (TensorProto.STRING, [1])}, ["y"]
    )
    assert backend.is_compatible(reshape())
    assert not backend.is_compatible(strings)


def test_what_is_unknown_is_refused_by_name() -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"])
    with pytest.raises(UnsupportedOpError, match="StringNormalizer"):
        backend.run_node(node, [np.zeros(2, np.float32)])


def test_models_with_weights_plan_for_values_too() -> None:
    w = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("TopK", ["m", "k"], ["y", "i"]),
        helper.make_node("Tile", ["y", "n"], ["z"]),
    ]
    proto = model(nodes, {"x": (1, ["b", 40]), "k": (7, [1]), "n": (7, [2])}, ["z"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = np.random.default_rng(1).standard_normal((2, 40)).astype(np.float32)
    rep = backend.prepare(proto, threads=1)
    for k in (3, 5):
        (z,) = rep.run([x, np.array([k]), np.array([1, 2])])
        expected = -np.sort(-(x @ w), axis=1)[:, :k]
        np.testing.assert_allclose(z, np.tile(expected, (1, 2)), rtol=1e-5, atol=1e-5)


def test_the_module_is_a_backend_for_the_suite_of_onnx() -> None:
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows on purpose, while cases are made
        suite = (
            BackendTest(drop_type(backend), __name__).include("test_relu_(cpu|cuda)$").test_cases
        )
    result = unittest.TestResult()
    for name in ("test_relu_cpu", "test_relu_cuda"):
        suite["OnnxBackendNodeModelTest"](name).run(result)
    assert not result.errors + result.failures
    assert [case.id().rpartition(".")[2] for case, _ in result.skipped] == ["test_relu_cuda"]


def test_only_what_decides_a_shape_is_bound() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    rep = backend.prepare(model([node], {"x": (1, [1, 1, 2, 2]), "scales": (1, [4])}, ["y"]))
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    for sign in (1, -1):
        (y,) = rep.run([sign * x, np.array([1, 1, 2, 1], np.float32)])
        np.testing.assert_array_equal(y[0, 0], sign * np.repeat(x[0, 0], 2, axis=0))
    assert len(rep._session._calls.model.memory.programs) == 1

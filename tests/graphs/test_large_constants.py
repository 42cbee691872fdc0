"""Large constants lie in memory that all plans share; those that decide shapes are known, too.

An initializer of `FROZEN_BYTES` or more is an input of the plan, whose value planning cannot see.
Nodes that need it, for the sizes of a Split or the mask of a Compress, get it nevertheless: in the
backend, in a `Module`, in its eval model and in builds.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import artifacts as offline
from engine import backend
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError, UnsupportedOpError
from engine.kernels.machine.target import detect_host
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.training import model_file
from engine.training.joined import JoinedStep
from engine.training.model_file import FROZEN_BYTES

N = 600


def split(sizes: np.ndarray, made: bool) -> onnx.ModelProto:
    """y = w * x0 + x1 of the first two parts of x; `made`: an Identity makes the sizes."""
    names = [f"x{i}" for i in range(len(sizes))]
    nodes = [helper.make_node("Identity", ["sizes"], ["s"])] if made else []
    nodes += [
        helper.make_node("Split", ["x", "s" if made else "sizes"], names, axis=1),
        helper.make_node("Mul", ["x0", "w"], ["scaled"]),
        helper.make_node("Add", ["scaled", "x1"], ["y"]),
    ]
    values = {"sizes": sizes, "w": np.full((1, 1), 3, np.float32)}
    graph = helper.make_graph(
        nodes, "split",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", N])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("made", [False, True])
def test_a_split_of_many_sizes_runs_and_trains_everywhere(made: bool, tmp_path: Path) -> None:
    sizes = np.ones(N, np.int64)
    assert sizes.nbytes >= FROZEN_BYTES
    model = split(sizes, made)
    x = np.arange(2 * N, dtype=np.float32).reshape(2, N)
    expected = 3 * x[:, :1] + x[:, 1:2]
    rep = backend.prepare(model, threads=1)
    for rows in (2, 1):
        np.testing.assert_array_equal(rep.run([x[:rows]])[0], expected[:rows])
    onnx.save(model, tmp_path / "forward.onnx")
    offline.generate_artifacts(
        tmp_path / "forward.onnx", ["w"], loss=offline.LossType.MSELoss,
        optimizer=offline.OptimType.SGD, artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    for mode in (True, False):
        assert module.train(mode)(x, expected) == 0
    module.train()(x, np.zeros_like(expected))
    slope = np.mean(2 * expected * x[:, :1])
    gradient = state.parameters["w"].grad
    assert gradient is not None
    np.testing.assert_allclose(gradient, [[slope]], rtol=1e-6)
    inference = module.inference_model_to_bytes(["y"])
    np.testing.assert_array_equal(backend.prepare(inference).run([x])[0], expected)
    planned = make_plans(list_artifacts(tmp_path), detect_host(), PlanRequest([2]))
    assert set(planned.plans) == {"train", "eval", "infer", "optimizer"}


def test_a_constant_that_decides_no_shape_stays_shared(tmp_path: Path) -> None:
    table = np.arange(2 * FROZEN_BYTES, dtype=np.float32).reshape(-1, 4)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])], "table",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    rep = backend.prepare(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    np.testing.assert_array_equal(rep.run([np.array([5, 1])])[0], table[[5, 1]])
    (program,) = rep._session._calls.model.memory.programs.values()
    assert program.plan.compute_region_bytes("const") < table.nbytes
    assert rep._session._calls.model.deciding == set()


def test_large_half_floats_run_as_small_ones_do() -> None:
    """Half floats become single ones in planning, after the constants of a model are folded."""
    rng = np.random.default_rng(0)
    for n in (8, 96):  # 128 bytes and 18432
        w = rng.standard_normal((n, n)).astype(np.float16)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "half",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, n])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, n])],
            [numpy_helper.from_array(w, "w")],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        x = rng.standard_normal((2, n)).astype(np.float16)
        (y,) = backend.prepare(model, threads=1).run([x])
        assert y.dtype == np.float16
        exact = x.astype(np.float64) @ w.astype(np.float64)
        np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2e-3, atol=1e-3 * n)


@functools.cache
def cases() -> list[Any]:
    """ONNX's own node tests of numeric tensors with two inputs or more."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, from how onnx makes its data
        everything = collect_testcases(None)
    actual = []
    for case in everything:
        inputs = case.data_sets[0][0] if case.data_sets else []
        arrays = [a for a in inputs if getattr(getattr(a, "dtype", None), "kind", "O") in "fiub"]
        if len(inputs) > 1 and len(arrays) == len(inputs):
            actual.append(case)
    return actual


def with_constants(model: onnx.ModelProto, inputs: list[np.ndarray]) -> onnx.ModelProto:
    """The model with all of its inputs but the first as initializers."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    rest = out.graph.input[1:]
    out.graph.initializer.extend(
        numpy_helper.from_array(a, i.name) for i, a in zip(rest, inputs[1:], strict=True)
    )
    del out.graph.input[1:]
    return out


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(k, marks=pytest.mark.whole) for k in range(1, 30))]
)
def test_whatever_is_constant_may_be_large(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every constant were large: all node tests run that run with small constants."""
    ran = 0
    for case in cases()[start::30]:
        inputs = case.data_sets[0][0]
        model = with_constants(case.model, inputs)
        actual = []
        for limit in (1 << 40, 1):
            monkeypatch.setattr(model_file, "FROZEN_BYTES", limit)
            try:
                actual.append(backend.prepare(model, threads=1).run(inputs[:1]))
            except EngineError:
                if limit == 1:
                    raise
                break  # not supported with small constants either
        if len(actual) == 2:
            ran += 1
            for small, large in zip(*actual, strict=True):
                np.testing.assert_allclose(
                    large.astype(np.float64), small.astype(np.float64), rtol=1e-5, atol=1e-5,
                    err_msg=case.name,
                )  # fmt: skip
    assert ran > 20


def artifacts_with_constants(folder: Path, channels: int, names: list[str]) -> None:
    """Artifacts of two batch norms, whose training model reads constants in the place of `names`,
    as another program may write it.
    """
    values = {"s": 1.5, "b": 3, "m": 2, "v": 5}
    vectors = {f"{n}{k}": np.full(channels, values[n], np.float32) for k in "01" for n in values}
    nodes = [helper.make_node("Mul", ["x", "w"], ["h0"])]
    for k in range(2):
        inputs = [f"h{k}", *(f"{n}{k}" for n in "sbmv")]
        nodes.append(helper.make_node("BatchNormalization", inputs, [f"h{k + 1}"], name=f"bn{k}"))
    shape: list[str | int | None] = ["batch", channels]
    graph = helper.make_graph(
        nodes, "norms",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("h2", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(a, n) for n, a in {**vectors, "w": vectors["s0"]}.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    offline.generate_artifacts(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), ["w", "s0", "b0", "s1", "b1"],
        loss=offline.LossType.MSELoss, optimizer=offline.OptimType.SGD, artifact_directory=folder,
    )  # fmt: skip
    model = onnx.load(folder / "training_model.onnx")
    for node in model.graph.node:
        renamed = [f"constant {n}" if n in names else n for n in node.input]
        node.input[:] = renamed
    held = {f"constant {n}": vectors.get(n, vectors["s0"]) for n in names}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    onnx.save(model, folder / "training_model.onnx")


@pytest.mark.parametrize("channels", [8, FROZEN_BYTES // 4], ids=["small", "large"])
@pytest.mark.parametrize("is_joined", [False, True], ids=["two calls", "joined"])
def test_batch_norms_leave_constant_statistics_as_they_are(
    channels: int, is_joined: bool, tmp_path: Path
) -> None:
    """The first norm has constant statistics, the second has statistics that move."""
    artifacts_with_constants(tmp_path, channels, ["m0", "v0"])
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    before = {n: p.data.copy() for n, p in state.parameters}
    x = np.random.default_rng(0).normal(2, 3, (4, channels)).astype(np.float32)
    if is_joined:
        JoinedStep(module, optimizer).run([x, x], check_finite=True)
    else:
        module(x, x)
        optimizer.step()
    moved = {n for n in before if (state.parameters[n].data != before[n]).any()}
    assert moved & {"m0", "v0", "m1", "v1", "b1"} == {"m1", "v1", "b1"}


@pytest.mark.parametrize("channels", [8, FROZEN_BYTES // 4], ids=["small", "large"])
def test_a_node_that_would_update_a_constant_is_refused(channels: int, tmp_path: Path) -> None:
    buffer = "b1_grad.accumulation.buffer"
    artifacts_with_constants(tmp_path, channels, [buffer])
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    x = np.ones((4, channels), np.float32)
    with pytest.raises(UnsupportedOpError, match=f"would update 'constant {buffer}', a constant"):
        Module(tmp_path / "training_model.onnx", state)(x, x)

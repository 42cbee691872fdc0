"""Optimizer steps over one flat region, against their formulas in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_addresses
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.optimizer.update import Formula
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram

RATE = 0.01
SIZES = (1, 64, 1000, 20011)


def step(
    op: str, inputs: Mapping[str, np.ndarray], attrs: Mapping[str, Any], threads: int
) -> dict[str, np.ndarray]:
    """Run one optimizer node; returns all its inputs as they are afterwards, and its output."""
    node = Node(op, tuple(inputs), ("done",), dict(attrs), "com.microsoft", op.lower())
    types = {n: find_type(a) for n, a in inputs.items()}
    graph = Graph(op, types, ["done"], {}, [node], {"": 17, "com.microsoft": 1})
    shapes = {n: a.shape for n, a in inputs.items()}
    plan = make_plan(graph, shapes, target=detect_host(), threads=threads)
    work = allocate(plan.compute_region_bytes("work"), zero=False)
    program = BoundProgram(plan, get_addresses, {"work": work})
    for name, array in inputs.items():
        np.copyto(program.inputs[name], array)
    program.run()
    return {n: a.copy() for n, a in (program.inputs | program.outputs).items()}


def tensors(n: int) -> dict[str, np.ndarray]:
    """Parameters, gradients and moments; the second moment is not negative."""
    rng = np.random.default_rng(n)
    p, g, m, v = rng.standard_normal((4, n)).astype(np.float32)
    return {"p": p, "g": g, "m": m, "v": np.abs(v)}


def adamw(
    t: int, p: Any, g: Any, m: Any, v: Any, mode: int, unbias: int, attrs: Mapping[str, float]
) -> tuple[Any, Any, Any]:
    """The formulas of onnxruntime's AdamWOptimizer, as in its source."""
    a, b, eps, decay = (attrs[k] for k in ("alpha", "beta", "epsilon", "weight_decay"))
    if mode == 0:
        p = p - RATE * decay * p
    m, v = a * m + (1 - a) * g, b * v + (1 - b) * g * g
    if mode == 0:
        p = p - RATE * m / ((1 - a**t) * (np.sqrt(v / (1 - b**t)) + eps))
    else:
        rate = RATE * np.sqrt(1 - b**t) / (1 - a**t) if unbias else RATE
        p = p - rate * m / (np.sqrt(v) + eps)
        p = p - RATE * decay * p
    return p, m, v


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("mode", "unbias"), [(0, 1), (1, 1), (1, 0)])
@pytest.mark.parametrize("t", [1, 7, 100_000])
def test_adamw(n: int, threads: int, mode: int, unbias: int, t: int) -> None:
    attrs = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "weight_decay": 0.05}
    given = tensors(n)
    scalars = {"lr": np.array([RATE], np.float32), "step": np.array([t])}
    result = step(
        "AdamWOptimizer", scalars | given, attrs | {"adam_mode": mode, "correct_bias": unbias},
        threads,
    )  # fmt: skip
    wide = {k: a.astype(np.float64) for k, a in given.items()}
    for name, expected in zip(
        "pmv", adamw(t, **wide, mode=mode, unbias=unbias, attrs=attrs), strict=True
    ):
        np.testing.assert_allclose(result[name], expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(result["g"], given["g"])
    assert result["done"] == [True]


@pytest.mark.parametrize("threads", [1, 3])
def test_adamw_leaves_zero_padding_zero(threads: int) -> None:
    zero = {k: np.zeros(64, np.float32) for k in "pgmv"}
    scalars = {"lr": np.array([RATE], np.float32), "step": np.array([1])}
    result = step("AdamWOptimizer", scalars | zero, {}, threads)
    assert not any(result[k].any() for k in "pgmv")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_do_not_stay_subnormal(dtype: Any) -> None:
    least = np.finfo(dtype).smallest_normal
    zero = {k: np.zeros(70, dtype) for k in "pgmv"}
    m = np.full(70, least, dtype)  # times 0.9: subnormal
    m[:3] = 2 * least, -2 * least, np.nan
    scalars = {"lr": np.array([RATE], np.float32), "step": np.array([1])}
    result = step("AdamWOptimizer", scalars | zero | {"m": m}, {}, 1)
    np.testing.assert_array_equal(result["m"][:3], [1.8 * least, -1.8 * least, np.nan])
    assert not result["m"][3:].any()
    assert np.all(result["p"][3:] < 0)  # the update itself is made of the number


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("signal", [None, True, False])
def test_sgd(n: int, threads: int, signal: bool | None) -> None:
    given = {k: tensors(n)[k] for k in "pg"}
    inputs = {"lr": np.array([RATE], np.float32)} | given
    if signal is not None:
        inputs["signal"] = np.array([signal])
    result = step("SGDOptimizerV2", inputs, {}, threads)
    moved = given["p"].astype(np.float64) - RATE * given["g"]
    expected = given["p"] if signal is False else moved
    np.testing.assert_allclose(result["p"], expected, rtol=1e-6, atol=1e-7)
    assert result["done"] == [signal is not False]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping(n: int, threads: int, max_norm: float) -> None:
    g = tensors(n)["g"]
    result = step("InplaceClipGradNorm", {"g": g}, {"max_norm": max_norm}, threads)
    norm = np.linalg.norm(g.astype(np.float64))
    np.testing.assert_allclose(result["g"], g * min(max_norm / (norm + 1e-6), 1), rtol=1e-6)


def test_clipping_lets_nan_through() -> None:
    g = tensors(100)["g"]
    g[17] = np.nan
    assert np.isnan(step("InplaceClipGradNorm", {"g": g}, {}, 2)["g"]).all()


def test_adam_modes_are_checked() -> None:
    from engine.errors import UnsupportedOpError

    scalars = {"lr": np.array([RATE], np.float32), "step": np.array([1])}
    with pytest.raises(UnsupportedOpError, match="adam_mode is 0 and correct_bias 0"):
        step("AdamWOptimizer", scalars | tensors(4), {"adam_mode": 0, "correct_bias": 0}, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m = mu * m + g; q = p - rate * m", "'m = mu .* rate . m' does not assign p"),
        ("p = p - rate * g", "does not assign m"),
        ("m = mu * m + h; p = p - rate * m", "'h'"),
        ("fresh -> m = mu * m + fresh * g; p = p - rate * m", "'rate'"),
    ],
)
def test_a_formula_assigns_all_and_reads_what_there_is(text: str, message: str) -> None:
    run = Formula("m = mu * m + g; p = p - rate * m").rows("f32", ("m",), ("mu",))
    assert run.name == "update_rows"
    with pytest.raises(ValueError, match=message):
        Formula(text).rows("f32", ("m",), ("mu",))

"""Activations that convolutions apply to their own sums, beside the maps that they replace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from engine.inference import Session
from tests.support.harness import evaluate

# Windows, with the channels, filters, groups and strides that have kernels of their own.
WINDOWS = {
    "pointwise": (19, 37, 1, 1, 1),
    "strided": (3, 20, 1, 3, 2),
    "depthwise": (37, 37, 37, 3, 1),
    "depthwise, strided": (16, 16, 16, 5, 2),
    "depthwise, any window": (16, 16, 16, 4, 1),
    "groups": (16, 24, 2, 3, 1),
}
OTHERS = {"Winograd": (64, 64, 1, 3, 1), "few filters": (16, 2, 1, 1, 1)}
CURVES = {"ReLU6": "Clip(a, low, high)", "HardSwish": "HardSwish(a)"}


def make_model(window: tuple[int, ...], curve: str, high: float = 6.0) -> onnx.ModelProto:
    channels, filters, groups, taps, stride = window
    pad = taps // 2
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,{channels},9,11] x) => (float[N,{filters},P,Q] y)
    <float low = {{0.0}}, float high = {{{high}}}> {{
        a = Conv<group = {groups}, strides = [{stride}, {stride}],
                 pads = [{pad}, {pad}, {pad}, {pad}]>(x, w, b)
        y = {curve}
    }}""")
    rng = np.random.default_rng(1)
    shape = filters, channels // groups, taps, taps
    for name, dims in (("w", shape), ("b", (filters,))):
        values = rng.standard_normal(dims).astype(np.float32) * 2
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


def answer(model: onnx.ModelProto, x: np.ndarray, threads: int) -> tuple[np.ndarray, list[str]]:
    """Return the answer of a session, and the kinds of the kernels that made it."""
    session = Session(model, threads=threads)
    (y,) = session.run(None, {"x": x})
    (program,) = session._calls.model.memory.programs.values()
    steps = program.plan.steps[program.plan.once :]
    return y, [step.kernel.split("_")[0] for step in steps]


def make_images(window: tuple[int, ...]) -> np.ndarray:
    """Make images; the last one has a NaN, which would spread in Winograd's algorithm."""
    x = np.random.default_rng(2).standard_normal((2, window[0], 9, 11)).astype(np.float32)
    if window != OTHERS["Winograd"]:
        x[1, 0, 4, 4] = np.nan
    return x


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("window", [*WINDOWS, *OTHERS])
def test_sums_are_bent_where_they_are_stored(window: str, curve: str) -> None:
    sizes = {**WINDOWS, **OTHERS}[window]
    model, x = make_model(sizes, CURVES[curve]), make_images(sizes)
    y, kernels = answer(model, x, threads=2)
    (expected,) = evaluate(model, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert ("map" in kernels) == (window in OTHERS)


def test_other_bounds_stay_maps() -> None:
    window = WINDOWS["pointwise"]
    model, x = make_model(window, CURVES["ReLU6"], high=5.0), make_images(window)
    y, kernels = answer(model, x, threads=1)
    np.testing.assert_allclose(y, evaluate(model, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert "map" in kernels


def test_sums_that_others_read_are_not_bent() -> None:
    window = WINDOWS["pointwise"]
    model, x = make_model(window, CURVES["HardSwish"]), make_images(window)
    model.graph.output.append(onnx.helper.make_tensor_value_info("a", 1, ["N", 37, "P", "Q"]))
    session = Session(model, threads=1)
    for actual, expected in zip(
        session.run(None, {"x": x}), evaluate(model, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)

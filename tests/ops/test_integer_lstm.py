"""DynamicQuantizeLSTM of large weights: R in integers, states in 8 bits, on every kind of walk."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.tools.dev.cases.recurrent import recurrence, round_to_bytes
from engine.tools.trimmed.targets import resolve
from tests.support.harness import run
from tests.support.integer_targets import find_target

RNG = np.random.default_rng(0)
MS = "com.microsoft"


def draw(*shape: int, scale: float = 1.0) -> Array:
    made: Array = (RNG.standard_normal(shape) * scale).astype(np.float32)
    return made


def make_layer(
    hidden: int, batch: int, direction: str, *, full: bool = False, kind: str = "int8"
) -> tuple[onnx.ModelProto, dict[str, Array], list[Array]]:
    """Return a layer of 4 steps, its inputs, and y, h and c by its definition.

    full: with biases, lengths, states and peepholes.  kind: the type of the weights.
    """
    d, i, n = (2 if direction == "bidirectional" else 1), 40, hidden
    low, high, middle = (-127, 128, 0) if kind == "int8" else (1, 256, 128)
    w, r = (RNG.integers(low, high, (d, k, 4 * n)).astype(kind) for k in (i, n))
    scales = [np.full((d, 4 * n), s, np.float32) * (1 + RNG.random((d, 4 * n)).astype(np.float32))
              for s in (0.002, 0.0005)]  # fmt: skip
    zero = np.full((d, 4 * n), middle, kind)
    x = draw(4, batch, i)
    given: list[Array | None] = [None] * 5
    if full:
        lens = np.array([4, 1, 3, 2] * batch, np.int32)[:batch]
        given = [draw(d, 8 * n, scale=0.1), lens, draw(d, batch, n), draw(d, batch, n),
                 draw(d, 3 * n, scale=0.1)]  # fmt: skip
    names = ["b", "lens", "h0", "c0", "p"]
    rest = {k: v for k, v in zip(names, given, strict=True) if v is not None}
    constants = {"w": w, "r": r, "ws": scales[0], "wz": zero, "rs": scales[1], "rz": zero, **rest}
    ins = ["x", "w", "r", *(k if k in rest else "" for k in names), "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", ins, ["y", "h", "c"], domain=MS,
                            direction=direction, hidden_size=n)  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in "yhc"],
        [numpy_helper.from_array(a, k) for k, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    # X is rounded in one range, the states of each sample in one of their own.
    rounded = round_to_bytes(x)
    real = [(q.astype(float) - middle).swapaxes(1, 2) * s[:, :, None]
            for q, s in zip((w, r), scales, strict=True)]  # fmt: skip
    wanted = recurrence("LSTM", rounded, *real, *given, direction=direction, hidden_size=n,
                        read=round_to_bytes)[:3]  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), {"x": x}, list(wanted)


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "evex", "x86-64-v2"])
@pytest.mark.parametrize(
    ("hidden", "batch", "direction", "full", "kind"),
    [
        (256, 1, "forward", False, "int8"),
        (256, 2, "bidirectional", True, "uint8"),
        (250, 3, "reverse", True, "int8"),
    ],
)
def test_it_computes_what_its_weights_say(
    hidden: int, batch: int, direction: str, full: bool, kind: str, target: str
) -> None:
    model, feeds, wanted = make_layer(hidden, batch, direction, full=full, kind=kind)
    graph, own = onnx_io.load(model), find_target(target)
    first: dict[str, Array] | None = None
    for threads in (1, 2):
        made = run(graph, feeds, threads=threads, target=own)
        for name, value in zip("yhc", wanted, strict=True):
            # A state in the middle of two integers may round to the other one.
            np.testing.assert_allclose(made[name], value, atol=3e-3)
            assert np.abs(made[name] - value).mean() < 1e-4
        first = first or made
        for name in "yhc":
            np.testing.assert_array_equal(made[name], first[name])


def test_few_rows_share_units_and_large_weights_stay_integers() -> None:
    model, feeds, _ = make_layer(256, 1, "forward")
    shapes = {"x": feeds["x"].shape}
    plans = [
        make_plan(onnx_io.load(model), shapes, target=detect_host(), threads=threads)
        for threads in (1, 2)
    ]
    names = [[step.kernel for step in plan.steps] for plan in plans]
    # All steps in one call, or a call for each.
    assert [sum(k.startswith("lstm_integers") for k in each) for each in names] == [1, 4]
    floats = [b for b in plans[0].buffers if b.region == "const" and b.dtype == "f32"]
    assert sum(int(np.prod(b.shape)) for b in floats) < 4096


def test_a_state_that_is_not_a_number_stays_one() -> None:
    model, feeds, _ = make_layer(256, 1, "forward")
    feeds["x"][1, 0, 0] = np.nan
    made = run(onnx_io.load(model), feeds, threads=1, target=resolve("native").target)
    assert np.isnan(made["y"][1:]).all()


def test_weights_of_nine_bits_stay_floats() -> None:
    """Less its zero point a weight may need 9 bits; such a layer computes in float32."""
    model, feeds, _ = make_layer(256, 1, "forward", kind="uint8")
    for tensor in model.graph.initializer:
        if tensor.name == "rz":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((1, 1024), np.uint8), "rz"))
    plan = make_plan(onnx_io.load(model), {"x": feeds["x"].shape}, target=detect_host(), threads=1)
    assert not any(step.kernel.startswith("lstm_integers") for step in plan.steps)

"""Scales and zero points that do not fit: refused by node and input, by every op that reads any."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgegrad import Session, Trainer, quantize
from engine.base.aliases import Array
from engine.errors import EngineError, InternalError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Units
from engine.tools.dev.cases import quantised_weights, quantization
from engine.tools.dev.cases.case import Case
from tests.support.corrupted_units import KINDS, OPS, make_wrong_units
from tests.support.integer_models import draw_samples, make_float, run_peer, write

NAME = "/layer3/the_node"
CASES = (*quantization.CASES, *quantised_weights.CASES)


def make_arrays(case: Case) -> list[Any]:
    rng = np.random.default_rng(0)
    given = [t.make(rng) if hasattr(t, "make") else t for t in case.ins]
    return [None if a is None else np.asarray(a) for a in given]


def choose_cases() -> Iterator[tuple[Case, list[Units]]]:
    """Yield cases of every op, such that each of its scales and zero points is in one of them."""
    for key, op in OPS.items():
        left = {u for row in op.units for u in (row.scale, row.zero) if u is not None}
        for case in CASES:
            if (case.domain, case.op) != key or case.id == "dequantize-int32":
                continue
            present = {i for i, t in enumerate(case.ins) if t is not None}
            rows = [u for row in op.units for u in row.list_all(len(case.ins))]
            if left & present:
                left -= present
                yield case, rows
        assert not left, f"no case of {op.title} has inputs {left}"


def build(case: Case, arrays: list[Any]) -> onnx.ModelProto:
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(arrays)]
    outputs = case.outs if isinstance(case.outs, int) else len(case.outs)
    node = helper.make_node(
        case.op, names, [f"o{k}" for k in range(outputs)], name=NAME, domain=case.domain,
        **case.attrs,
    )  # fmt: skip
    outs = [helper.make_empty_tensor_value_info(o) for o in node.output]
    constants = [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True) if n]
    graph = helper.make_graph([node], "g", [], outs, constants)
    opsets = [helper.make_opsetid("", max(case.opset, 17)), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def plan(model: onnx.ModelProto) -> None:
    make_plan(onnx_io.load(model), {}, target=detect_host(), threads=1)


def test_every_op_on_integers_says_what_their_units_are() -> None:
    """An op that reads or makes integers with scales, and stands in models, declares them."""
    own = {"DynamicQuantizeLinear"}  # it measures them
    for op in list_ops().values():
        is_product = op.product is not None and op.product.factors.value != "floats"
        if (op.is_of_integers or op.scaling or is_product) and not op.internal:
            assert op.units or op.name in own or op.domain == "engine", op.title


ROWS = [
    pytest.param(case, units, id=f"{case.op}-{units.scale}-{units.zero}-{k}")
    for k, (case, rows) in enumerate(choose_cases())
    for units in rows
]


@pytest.mark.parametrize(("case", "units"), ROWS)
def test_what_does_not_fit_is_refused_by_node_and_input(case: Case, units: Units) -> None:
    arrays = make_arrays(case)
    plan(build(case, arrays))
    for what, i, value in make_wrong_units(units, arrays):
        changed = [*arrays]
        changed[i] = value
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                plan(build(case, changed))
            except InternalError as error:
                pytest.fail(f"{case.id}, {what}: {error}")
            except EngineError as error:
                text = str(error)
            else:
                pytest.fail(f"{case.id}: {what} of input {i} is not refused")
        assert f"{NAME}'" in text, f"{what}: {text}"
        assert f"input {i}" in text, f"{what} of input {i}: {text}"


def change_attributes(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with other numbers in each of its integer attributes."""
    kinds = OPS[case.domain, case.op].attributes()
    for name, kind in kinds.items():
        for value in (-99, -1, 0, 1, 3, 99, 1 << 40):
            if kind == "int":
                attrs = {**case.attrs, name: value}
                yield f"{name}={value}", dataclasses.replace(case, attrs=attrs)


def change_integers(units: Units, arrays: list[Any]) -> Iterator[tuple[str, int, Array]]:
    """Yield integers of other types and shapes."""
    assert units.of is not None
    integers = arrays[units.of]
    for kind in KINDS:
        if kind != integers.dtype:
            yield f"{np.dtype(kind)}", units.of, integers.astype(kind)
    yield "empty", units.of, integers[:0]
    yield "short", units.of, integers[..., :-1]
    yield "a number", units.of, integers.reshape(-1)[0]
    yield "of two more axes", units.of, integers[None, None]


@pytest.mark.parametrize("case", [row.values[0] for row in ROWS], ids=[row.id for row in ROWS])
def test_other_integers_and_attributes_are_planned_or_refused_by_node(case: Case) -> None:
    """Nothing else: no assertion, division by zero or warning of NumPy, and no huge constant."""
    arrays, changed = make_arrays(case), list[tuple[str, onnx.ModelProto]]()
    for units in OPS[case.domain, case.op].units:
        if units.of is not None:
            for what, i, value in change_integers(units, arrays):
                given = [*arrays[:i], np.asarray(value), *arrays[i + 1 :]]
                changed.append((f"input {i} is {what}", build(case, given)))
    changed += [(what, build(other, arrays)) for what, other in change_attributes(case)]
    for what, model in changed:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                plan(model)
            except InternalError as error:
                pytest.fail(f"{case.id}, {what}: {error}")
            except EngineError as error:
                if NAME not in str(error):
                    pytest.fail(f"{case.id}, {what}: {error}")


def replace_scale(model: onnx.ModelProto, node: onnx.NodeProto, place: int) -> onnx.ModelProto:
    """Return the model with NaN instead of a scale of a node."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    (tensor,) = (t for t in out.graph.initializer if t.name == node.input[place])
    wrong = np.full_like(numpy_helper.to_array(tensor), np.nan)
    tensor.CopyFrom(numpy_helper.from_array(wrong, tensor.name))
    return out


@pytest.mark.parametrize("how", ["QOperator", "QDQ", "dynamic", "dynamic optimised"])
def test_every_way_in_names_the_node_before_work(how: str, tmp_path: Path) -> None:
    x, labels = draw_samples("Gemm", 8), np.zeros(8, np.int64)
    file, bad = write(make_float("Gemm"), how, x, tmp_path), tmp_path / "bad.onnx"
    model = onnx.load(file)
    for node in model.graph.node:
        declared = OPS.get((node.domain, node.op_type))
        scales = [u.scale for u in declared.units if u.scale is not None] if declared else []
        for place in scales:
            onnx.save(replace_scale(model, node, place), bad)
            ways: dict[str, Any] = {
                "session": lambda: Session(bad, threads=1).run(None, {"x": x}),
                "head": lambda: Trainer.from_onnx(
                    bad, "cross_entropy", train="head", threads=1
                ).step(x, labels),
                "lora": lambda: Trainer.from_onnx(bad, "cross_entropy", lora=".", threads=1).step(
                    x, labels
                ),
            }
            for way, call in ways.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    try:
                        call()
                    except EngineError as error:
                        text = str(error)
                    else:
                        pytest.fail(f"{way}: {node.name}, input {place}")
                # Scales are often shared: any of their nodes may be the one that is named.
                assert re.search(r"scale \(input \d\) is nan", text), f"{way}: {text}"


def test_quantize_takes_one_sample() -> None:
    model, x = make_float("Gemm"), draw_samples("Gemm", 1)
    made = quantize(model.SerializeToString(), x)
    ours = np.asarray(Session(made.to_bytes(), threads=1).run(None, {"x": x})[0])
    assert np.abs(ours - run_peer(made.to_bytes(), x)).max() < 0.02 * np.abs(ours).max()


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_scales_of_a_model_in_float16_are_float16(value: float) -> None:
    """In a model of float32, such a scale is refused; see `test_what_does_not_fit...`."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    m (float16[n,3] x) => (float16[n,2] y) {
        q = QuantizeLinear(x, s, z)
        a = DequantizeLinear(q, s, z)
        b = DequantizeLinear(w, s)
        y = MatMul(a, b)
    }"""
    model = onnx.parser.parse_model(text)
    constants: dict[str, Any] = {
        "s": np.array(value, np.float16),
        "z": np.array(0, np.int8),
        "w": np.array([[1, 2], [-3, 4], [5, -6]], np.int8),
    }
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = np.array([[1, -2, 0.5]], np.float16)
    if np.isnan(value):
        with pytest.raises(UnsupportedOpError, match=r"scale \(input 1\) is nan"):
            Session(model, threads=1).run(None, {"x": x})
    else:
        (y,) = Session(model, threads=1).run(None, {"x": x})
        np.testing.assert_array_equal(y, np.array([[4.75, -4.5]], np.float16))

"""Scales and zero points that do not fit their integers: of ops, and of whole models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from engine.base.aliases import Array
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Each, Units

OPS = {key: op for key, op in list_ops().items() if op.units}
KINDS: tuple[Any, ...] = (
    np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_
)  # fmt: skip


def make_wrong_units(units: Units, arrays: list[Any]) -> Iterator[tuple[str, int, Array]]:
    """Yield what is wrong, the input that has it, and its value."""
    scale = arrays[units.scale] if units.scale is not None and units.scale < len(arrays) else None
    if scale is not None:
        assert units.scale is not None
        bad = [np.nan, np.inf, -np.inf]
        if units.of is None:
            bad += [0.0, -0.5, 1e-45]
        for value in bad:
            changed = scale.copy()
            changed.flat[-1] = value
            yield f"scale {value}", units.scale, changed
        if scale.size == 1:
            yield "scale 0", units.scale, np.zeros_like(scale)
    zero = arrays[units.zero] if units.zero is not None and units.zero < len(arrays) else None
    for what, i, array in (("scale", units.scale, scale), ("zero point", units.zero, zero)):
        if array is None or i is None:
            continue
        shapes = [(0,), (array.size + 1,), (7, 7), (1,) * 6]
        if units.each.is_of_rule:  # of packed integers, the number alone counts
            shapes = [(0,), (array.size + 1,)]
        for shape in shapes:
            yield f"{what} of shape {shape}", i, np.ones(shape, array.dtype)
        for kind in KINDS:
            is_fit = kind == array.dtype or takes(units, what, kind)
            if not is_fit:
                yield f"{what} of {np.dtype(kind)}", i, np.ones(array.shape, kind)


def takes(units: Units, what: str, kind: Any) -> bool:
    """Return whether a scale or a zero point may have this type as well as its own."""
    is_float = np.dtype(kind).kind == "f"
    if what == "scale":
        return units.each.is_of_rule and is_float
    if units.of is None:
        return kind in (np.int8, np.uint8, np.int16)
    return units.each is Each.BLOCKS and is_float


def make_wrong_models(model: onnx.ModelProto) -> Iterator[tuple[str, str, int, onnx.ModelProto]]:
    """Yield models with one wrong constant: what is wrong, its node, its input, and the model."""
    tensors = {t.name: t for t in model.graph.initializer}
    for k, node in enumerate(model.graph.node):
        op = OPS.get((node.domain, node.op_type))
        arrays = [numpy_helper.to_array(tensors[n]) if n in tensors else None for n in node.input]
        changed: list[tuple[str, int, Array]] = []
        for row in op.units if op is not None else ():
            for units in row.list_all(len(arrays)):
                changed += make_wrong_units(units, arrays)
        if node.op_type == "Mul":  # of sums, with a scale of the weights
            names = enumerate(node.input)  # of adapters are scales, too, which are as they may be
            scales = [i for i, n in names if n.endswith("_scale") and "lora" not in n]
            scales = [i for i in scales if node.input[i] in tensors]
            for i in scales:
                scale = numpy_helper.to_array(tensors[node.input[i]])
                bad = [np.full_like(scale, v) for v in (np.nan, np.inf, -np.inf)]
                bad += [np.zeros_like(scale)] * (scale.size == 1)
                changed += [(f"scale {v.flat[0]}", i, v) for v in bad]
        for what, i, value in changed:
            yield what, node.name, i, replace_input(model, k, i, value)


def replace_input(model: onnx.ModelProto, k: int, i: int, value: Array) -> onnx.ModelProto:
    """Return the model with another constant as input i of node k."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    name = f"{out.graph.node[k].input[i]}_corrupted"
    out.graph.node[k].input[i] = name
    out.graph.initializer.append(numpy_helper.from_array(value, name))
    return out

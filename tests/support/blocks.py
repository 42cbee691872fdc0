"""Models that repeat blocks, and the groups of steps in their plans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper, parser

from engine.plan.plan import Plan, PlanStep


def make_model(text: str) -> onnx.ModelProto:
    """Return the model of a text with random initializers instead of all its inputs except x."""
    proto, rng = parser.parse_model(text), np.random.default_rng(2)
    for value in list(proto.graph.input)[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        made = np.abs(rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)) + 0.1
        signs = rng.choice([-1, 1], shape) if value.name.startswith("w") else 1
        proto.graph.initializer.append(
            numpy_helper.from_array((made * signs).astype(np.float32), value.name)
        )
        proto.graph.input.remove(value)
    return proto


def rename_value(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    """Return a model in which a value between nodes has another name."""
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for node in renamed.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    return renamed


def list_groups(made: Plan) -> Iterator[tuple[int, tuple[PlanStep, ...]]]:
    """The first step of each group, and all its steps."""
    for n, step in enumerate(made.steps):
        if step.group:
            yield n, made.steps[n : n + step.group]

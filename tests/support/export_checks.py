"""Checks of what is written to files: types that hold, and exported models that others run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from engine.base.aliases import Array
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.passes.foreign import give_pool_grads_input
from engine.graphs.passes.infer import bind, infer


def export_faults(model: Path, inputs: Mapping[str, Array]) -> list[str]:
    """Return the faults of an inference model, one text for each.

    It must pass ONNX's checker and its strict inference, stock onnxruntime must run it with and
    without optimisations, and each value must have the shape that the file says.
    """
    proto = onnx.load(model)
    out = []
    try:
        onnx.checker.check_model(str(model), full_check=True)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        out.append(f"{model.name}: {error}")
    declared = {v.name: v for v in (*proto.graph.output, *proto.graph.value_info)}
    del proto.graph.output[:]
    proto.graph.output.extend(declared.values())
    try:
        _run(model, inputs, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
        outcome = _run(
            proto.SerializeToString(), inputs, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
    except Exception as error:  # onnxruntime's errors have no common class
        return [*out, f"{model.name}: {error}"]
    shapes = {name: list(a.shape) for name, a in zip(declared, outcome, strict=True)}
    types = {name: _list_dims(v) for name, v in declared.items()}
    given = {v.name: _list_dims(v) for v in proto.graph.input}
    shapes |= {name: list(inputs[name].shape) for name in given}
    return out + _list_mismatches({**given, **types}, shapes)


def list_type_faults(model: Path, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """The values of a model whose types in the file do not hold for some shapes of its inputs.

    For models that stock onnxruntime does not run: it compares with inference by numbers.
    """
    graph: Graph = give_pool_grads_input(onnx_io.load(model))
    made = {o for n in graph.nodes for o in n.outputs}
    types = {name: list(t.shape) for name, t in graph.types.items() if name in made}
    types |= {name: list(t.shape) for name, t in graph.inputs.items()}
    true = infer(bind(graph, shapes)).types
    return _list_mismatches(types, {name: list(true[name].dims) for name in types})


def _run(model: Path | bytes, inputs: Mapping[str, Array], level: Any) -> list[Array]:
    """The outputs of a model by stock onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 4, level
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return list(session.run(None, {name: inputs[name] for name in names}))


def _list_dims(value: onnx.ValueInfoProto) -> list[int | str]:
    """The dimensions of a value; one without a name or a number is "?"."""
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]


def _list_mismatches(
    types: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Sequence[int]]
) -> list[str]:
    """The values that have other shapes than their types say; a symbol stands for one size."""
    sizes: dict[str, int] = {}
    out = []
    for name, dims in types.items():
        pairs = list(zip(dims, shapes[name], strict=False))
        known = [
            (sizes.setdefault(d, n) if isinstance(d, str) else d, n) for d, n in pairs if d != "?"
        ]
        if len(dims) != len(shapes[name]) or any(d != n for d, n in known):
            out.append(f"{name}: {list(dims)} in the file, but it is {list(shapes[name])}")
    return out

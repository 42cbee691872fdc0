"""Composition of models: a `ModelProto` is extended in place, step by step, for the blocks of
`engine.onnxblock`.

The checker and the shape inference of ONNX are given a skeleton of the model, in which large
initializers are inputs.  The cost of a step then does not depend on the size of the initializers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import (
    EngineError,
    FileError,
    InputError,
    InternalError,
    ModelError,
    NameNotFoundError,
    suggest_nearest,
)
from engine.graphs.io import onnx_io
from engine.graphs.io.messages import make_tensor, make_value_info, read_type
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.optimizers import OPTIMIZER_IR
from engine.graphs.offline.precision import widen_weights
from engine.graphs.passes.infer import infer
from engine.kernels.vocabulary.op import MS, TensorType

T = TypeVar("T")

_SMALL = 1024  # elements of the largest constant that a skeleton keeps: it may decide shapes


# --- models


def make_empty(opset: int | None) -> ModelProto:
    """Return a model without nodes.

    opset: the opset of ONNX, by default the newest.  The domain com.microsoft is imported, too.
    """
    model = ModelProto(ir_version=OPTIMIZER_IR, producer_name="edgegrad")
    model.graph.name = "graph"
    model.opset_import.add(domain=MS, version=1)
    model.opset_import.add(domain="", version=opset or onnx.defs.onnx_opset_version())
    return model


def open_model(model: ModelProto, path: str | None) -> ModelProto:
    """Return a copy of a model with its external data inside.

    path: the path of the model's file; external data lie beside it.

    Raises:
        InputError: the argument is not a model, or it has external data and no path is given.
        FileError: external data cannot be read.
    """
    if not isinstance(model, ModelProto):
        raise InputError(f"base: expected a ModelProto, got {type(model)}; see empty_base")
    out = ModelProto()
    out.CopyFrom(model)
    if any(t.data_location == TensorProto.EXTERNAL for t in out.graph.initializer):
        if path is None:
            raise InputError("the model has external data: give its path as model_path")
        try:
            onnx.load_external_data_for_model(out, os.path.dirname(os.path.abspath(path)))
        except (OSError, onnx.checker.ValidationError) as error:
            raise FileError(f"cannot read external data of {path!r}: {error}") from error
    return out


def widen_model(model: ModelProto) -> ModelProto:
    """Return a model with float32 for 16-bit floats, and warn, if it has weights of these types."""
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    if not any(t.data_type in halves for t in model.graph.initializer):
        return model
    return onnx_io.to_proto(widen_weights(onnx_io.load(model)))


def copy_of(model: ModelProto) -> ModelProto:
    """Return a copy of a model."""
    return open_model(model, None)


def _make_skeleton(model: ModelProto) -> ModelProto:
    """Return a copy of the model in which large initializers are inputs."""
    out = ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    out.opset_import.extend(model.opset_import)
    out.functions.extend(model.functions)
    old, new = model.graph, out.graph
    new.name = old.name
    for field in ("node", "input", "output", "value_info"):
        getattr(new, field).extend(getattr(old, field))
    known = {v.name for v in old.input}
    for t in old.initializer:
        if int(np.prod(t.dims, dtype=np.int64)) <= _SMALL:
            new.initializer.append(t)
        elif t.name not in known:
            new.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return out


def check(model: ModelProto) -> None:
    """Check a model with ONNX's checker.

    Raises:
        ModelError: the model is malformed; the message is the checker's.
    """
    try:
        onnx.checker.check_model(_make_skeleton(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"the blocks made a malformed model: {error}") from error


def infer_shapes(model: ModelProto) -> None:
    """Add the types that ONNX's inference finds to the model, and then those that only ours
    finds.
    """
    graph = model.graph
    inferred = onnx.shape_inference.infer_shapes(_make_skeleton(model)).graph
    known = {v.name for v in (*graph.value_info, *graph.output, *graph.input)}
    graph.value_info.extend(v for v in inferred.value_info if v.name not in known)
    known |= {v.name for v in graph.value_info}
    missing = {o for n in graph.node for o in n.output if o} - known
    if missing:
        try:
            types = infer(onnx_io.load(model)).types
        except InternalError:
            raise
        except EngineError:  # an op that is not supported here: its types stay unknown
            return
        known_types = {n: types[n] for n in missing if n in types}
        graph.value_info.extend(make_value_info(n, t) for n, t in known_types.items())


def set_outputs(model: ModelProto, names: Sequence[str]) -> None:
    """Replace the outputs of the model by these values.

    Raises:
        NameNotFoundError: there is no such value, or its type is not known.
    """
    infer_shapes(model)
    graph = model.graph
    known = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    lost = [n for n in names if n not in known]
    if lost:
        raise NameNotFoundError(
            "the model has no value of a known type named "
            + ", ".join(f"{n!r}{suggest_nearest(n, known)}" for n in lost)
        )
    chosen = [_copy_info(known[n]) for n in dict.fromkeys(names)]
    del graph.output[:]
    graph.output.extend(chosen)


def find(values: Sequence[ValueInfoProto], name: str) -> ValueInfoProto | None:
    """Return the value of this name, or None."""
    return next((v for v in values if v.name == name), None)


def _copy_info(value: ValueInfoProto, name: str = "") -> ValueInfoProto:
    out = ValueInfoProto()
    out.CopyFrom(value)
    out.name = name or value.name
    return out


def add_input_like(model: ModelProto, like: str, name: str) -> None:
    """Add an input with the type of an input or output.

    Raises:
        NameNotFoundError: there is no input or output of this name.
    """
    graph = model.graph
    value = find(graph.input, like) or find(graph.output, like)
    if value is None:
        known = [v.name for v in (*graph.input, *graph.output)]
        raise NameNotFoundError(
            f"the model has no input or output {like!r}{suggest_nearest(like, known)}"
        )
    graph.input.append(_copy_info(value, name))


def append(
    model: ModelProto,
    op: str,
    inputs: Sequence[str],
    output: str,
    name: str,
    domain: str = "",
    **attrs: Any,
) -> None:
    """Append a node, and import its domain if necessary."""
    model.graph.node.append(
        onnx.helper.make_node(op, list(inputs), [output], name=name, domain=domain, **attrs)
    )
    _import(model, {domain: 1})


def _import(model: ModelProto, opsets: Mapping[str, int]) -> None:
    known = {o.domain for o in model.opset_import} | {""}
    for domain, version in opsets.items():
        if domain not in known:
            model.opset_import.add(domain=domain, version=version)


# --- models as graphs


def _view(model: ModelProto) -> Graph:
    """Return a graph with the names and types of a model, without attributes and values of
    constants.
    """
    graph = model.graph
    typed = {v.name: read_type(v) for v in (*graph.value_info, *graph.output)}
    inputs = {v.name: read_type(v) for v in graph.input}
    return Graph(
        name=graph.name,
        inputs={n: t for n, t in inputs.items() if t is not None},
        outputs=[v.name for v in graph.output],
        initializers={t.name: _make_blank(t) for t in graph.initializer},
        nodes=[
            Node(n.op_type, tuple(n.input), tuple(n.output), {}, n.domain, n.name)
            for n in graph.node
        ],
        opsets={"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import},
        types={n: t for n, t in typed.items() if t is not None},
    )


def _make_blank(t: TensorProto) -> Array:
    """Return zeros of a constant's type and shape, which take no memory."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(t.data_type)
    except KeyError:
        dtype = np.dtype(np.uint8)
    return np.broadcast_to(np.zeros((), dtype), tuple(t.dims))


def extend(model: ModelProto, build: Callable[[Graph], T], reads: Sequence[str] = ()) -> T:
    """Let `build` append nodes and values to a graph of the model, and add these to the model.

    build: takes a graph without attributes and values of constants; its result is returned.
    reads: names of the values whose types `build` needs.
    """
    graph = _view(model)
    if any(name not in {**graph.inputs, **graph.types} for name in reads):
        infer_shapes(model)
        graph = _view(model)
    nodes, types = len(graph.nodes), set(graph.types)
    inputs, initializers = set(graph.inputs), set(graph.initializers)
    result = build(graph)
    proto: GraphProto = model.graph
    proto.node.extend(onnx_io.make_node(n, graph.opsets) for n in graph.nodes[nodes:])
    proto.initializer.extend(
        make_tensor(n, a) for n, a in graph.initializers.items() if n not in initializers
    )
    proto.input.extend(make_value_info(n, t) for n, t in graph.inputs.items() if n not in inputs)
    proto.value_info.extend(make_value_info(n, t) for n, t in graph.types.items() if n not in types)
    _import(model, {**graph.opsets, **{n.domain: 1 for n in graph.nodes[nodes:]}})
    return result


# --- tensors


def make_constant(name: str, value: Any, dtype: str) -> TensorProto:
    """Return a constant of an element type."""
    return make_tensor(name, np.asarray(value, NUMPY[dtype]))


def read_array(tensor: TensorProto) -> Array:
    """Return the value of a constant."""
    return np.asarray(onnx.numpy_helper.to_array(tensor))


def copy_tensor(tensor: TensorProto) -> TensorProto:
    """Return a copy of a constant, which does not belong to a model."""
    out = TensorProto()
    out.CopyFrom(tensor)
    return out


def find_type(model: ModelProto, name: str) -> TensorType | None:
    """Return the type of a value, or None if it is unknown."""
    graph = _view(model)
    return graph.inputs.get(name) or graph.types.get(name)

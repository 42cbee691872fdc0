"""Conversion by the onnx package: inlining functions, and converting old or new opsets."""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from engine.base.aliases import Array
from engine.base.errors import InputError, ModelError, UnsupportedOpError
from engine.graphs.io import opsets
from engine.kernels.ops.registry import list_ops

_UNKNOWN = {"MaxPoolGrad", "AveragePoolGrad"}  # onnxruntime-training puts these in ONNX's domain
_ASIDE = "engine.aside"  # a domain for nodes that onnx must ignore during a conversion
# The exceptions that onnx raises for models that it cannot handle.
ONNX_ERRORS = (
    RuntimeError,
    ValueError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
)
_CHANNELS = 21  # the first opset whose GroupNormalization has scales of channels
_HEAVY = 1024  # least bytes of an initializer that stays out of the conversion


def make_schema(
    domain: str,
    op: str,
    inputs: Sequence[str],
    *,
    integers: Sequence[str] = (),
    options: Sequence[str] = (),
) -> onnx.defs.OpSchema:
    """Return a schema for an op of ours with one output, of floats like its first inputs.

    inputs, integers: the names of inputs of floats, and of int64, which follow them.
    options: the names of attributes, which are integers.
    """
    schema = onnx.defs.OpSchema
    return schema(
        op,
        domain,
        1,
        inputs=[
            *(schema.FormalParameter(name, "T") for name in inputs),
            *(schema.FormalParameter(name, "tensor(int64)") for name in integers),
        ],
        outputs=[schema.FormalParameter("output", "T")],
        type_constraints=[("T", ["tensor(float)", "tensor(double)"], "")],
        attributes=[schema.Attribute(name, schema.AttrType.INT, "") for name in options],
    )


def inline_functions(model: ModelProto, source: str) -> ModelProto:
    """Replace calls of the model's own functions by their bodies.

    Raises:
        ModelError: the functions are recursive or malformed.
    """
    if not model.functions:
        return model
    names = sorted(f.name for f in model.functions)
    try:
        return onnx.inliner.inline_local_functions(model)
    except ONNX_ERRORS as error:
        raise ModelError(f"{source}: cannot inline the functions {names}: {error}") from error


def inline_undeclared(model: ModelProto) -> ModelProto:
    """Replace nodes whose ops are not declared here, but that ONNX defines as functions.

    A node stays if ONNX has no function body for its types; it is refused by name later.

    Before   y = SwiGLU(a, b)
    After    s = Sigmoid(a); g = Mul(a, s); y = Mul(g, b)
    """
    tried: set[tuple[str, str]] = set()
    while names := _list_undeclared(model.graph, _list_opsets(model)) - tried:
        if not tried:
            model = copy.deepcopy(model)  # it may be the caller's
        _give_defaults(model.graph, names, _list_opsets(model))
        for name in sorted(names):
            with contextlib.suppress(*ONNX_ERRORS):  # no body for these types
                model = onnx.inliner.inline_selected_functions(
                    model, [name], inline_schema_functions=True
                )
        left = names & _list_undeclared(model.graph, _list_opsets(model))
        with contextlib.suppress(*ONNX_ERRORS):
            model = _inline_for_types(model, left) if left else model
        tried |= names
    return model


def _find_newest(nodes: Iterable[NodeProto], opset: int) -> int:
    """Return the latest opset, up to `opset`, in which ONNX changed an op of one of these nodes."""
    latest = 0
    for node in nodes:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
        latest = max(latest, schema.since_version)
        for a in node.attribute:
            latest = max(latest, _find_newest(a.g.node, opset))
    return latest


def _inline_for_types(model: ModelProto, names: Set[tuple[str, str]]) -> ModelProto:
    """Replace nodes of these ops, whose function bodies depend on the types of their inputs.

    ONNX's inliner does this as well, except for a node with an absent optional input, which it
    treats as an input of unknown type.
    """
    out = copy.deepcopy(model)
    shown = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type for v in (*shown.input, *shown.value_info)}
    for t in model.graph.initializer:
        types[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
    for i, node in enumerate(out.graph.node):
        if (node.domain, node.op_type) in names:
            opset = _list_opsets(model).get(node.domain, 1)
            schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
            version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
            given = [types.get(n, TypeProto()).SerializeToString() for n in node.input]
            function = FunctionProto.FromString(
                schema.get_context_dependent_function_with_opset_version(
                    version, node.SerializeToString(), given
                )
            )
            if _find_newest(function.node, opset) <= version:  # its ops have not changed since
                del function.opset_import[:]
                function.opset_import.extend(model.opset_import)
            node.domain, node.op_type = _ASIDE, f"{node.op_type}_{i}"
            function.domain, function.name = node.domain, node.op_type
            out.functions.append(function)
    out.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))
    done = onnx.inliner.inline_local_functions(out)
    if any(n.domain == _ASIDE for n in done.graph.node):
        return model
    kept = [o for o in done.opset_import if o.domain != _ASIDE]
    del done.opset_import[:]
    done.opset_import.extend(kept)
    return done


def _list_opsets(model: ModelProto) -> dict[str, int]:
    return {o.domain: o.version for o in model.opset_import}


def _give_defaults(
    graph: GraphProto, names: Set[tuple[str, str]], opsets: Mapping[str, int]
) -> None:
    """Write the default attributes into nodes of these ops, since function bodies refer to them."""
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                _give_defaults(a.g, names, opsets)
        if (node.domain, node.op_type) in names:
            domain = "" if node.domain == "ai.onnx" else node.domain
            schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), domain)
            given = {a.name for a in node.attribute}
            node.attribute.extend(
                a.default_value
                for name, a in schema.attributes.items()
                if name not in given and a.default_value.name
            )


def _list_undeclared(graph: GraphProto, opsets: Mapping[str, int]) -> set[tuple[str, str]]:
    """Return the ops (domain, type) of a graph that are not declared here but are functions of
    ONNX.
    """
    keys = set()
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("g"):
                keys |= _list_undeclared(a.g, opsets)
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in list_ops() or (node.domain, node.op_type) in keys:
            continue
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), domain)
        except (onnx.defs.SchemaError, TypeError):  # TypeError: names of malformed models
            continue
        if schema.has_function or schema.has_context_dependent_function:
            keys.add((node.domain, node.op_type))
    return keys


def find_opset(model: ModelProto, source: str) -> int:
    """Return the version of ONNX's own operators that a model uses.

    Raises:
        ModelError: the model does not state it.
        UnsupportedOpError: this version can be neither used nor converted, or an op has another
            meaning in it.
    """
    versions = [int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError(
            f"{source}: the model does not say which opset it uses (no opset_import for ai.onnx)"
        )
    newest = onnx.defs.onnx_opset_version()
    if versions[0] < opsets.OLDEST or versions[0] > newest:
        raise UnsupportedOpError(
            f"{source}: opset {versions[0]}; supported: {opsets.FIRST} to {opsets.LAST} directly, "
            f"{opsets.OLDEST} to {newest} by conversion"
        )
    scans = [n.name for n in model.graph.node if n.op_type == "Scan" and not n.domain]
    if versions[0] < 9 and scans:
        raise UnsupportedOpError(
            f"{source}: Scan {scans[0]!r} of opset {versions[0]}; Scan is supported from opset 9"
        )
    return versions[0]


def _refuse_group_scales(model: ModelProto, source: str, opset: int, target: int) -> None:
    """Refuse a GroupNormalization with a scale for each group, whose scales onnx leaves as they
    are.
    """
    for node in model.graph.node:
        if (node.domain, node.op_type) == ("", "GroupNormalization"):
            raise UnsupportedOpError(
                f"{source}: cannot convert from opset {opset} to {target} at GroupNormalization "
                f"{node.name!r}: it has one scale per group; from opset {_CHANNELS} on it has "
                "one for each channel"
            )


def convert_opset(model: ModelProto, source: str, least: int = opsets.FIRST) -> ModelProto:
    """Convert a model to an opset from `least` to `opsets.LAST`; only its nodes change.

    Large initializers are turned into inputs for the conversion, and back after it, so that they
    are not copied.

    Before   opset 9:   z = Squeeze(y, axes=[0])
    After    opset 13:  a = Constant([0]); z = Squeeze(y, a)

    Raises:
        ModelError: see `find_opset`.
        UnsupportedOpError: see `find_opset`; or a node cannot be converted.
    """
    opset = find_opset(model, source)
    if least <= opset <= opsets.LAST:
        return model
    target = least if opset < least else opsets.LAST
    if opset < _CHANNELS <= target:
        _refuse_group_scales(model, source, opset, target)
    light, heavy = _make_light(model)
    try:
        done = onnx.version_converter.convert_version(light, target)
    except ONNX_ERRORS as error:
        raise _explain_failure(model, source, opset, target, least, error) from error
    graph = GraphProto()
    graph.CopyFrom(done.graph)
    for n in graph.node:
        n.domain = "" if n.domain == _ASIDE else n.domain
        if n.op_type == "Resize" and opset < 11:
            _as_before_coordinates(n, graph)
    initializers = [*graph.initializer, *heavy]
    del graph.input[:], graph.initializer[:], graph.output[:]
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.initializer.extend(initializers)
    graph.name = model.graph.name
    out = ModelProto(graph=graph, ir_version=max(model.ir_version, light.ir_version))
    out.opset_import.extend(o for o in done.opset_import if o.domain != _ASIDE)
    out.metadata_props.extend(model.metadata_props)
    out.producer_name, out.producer_version = model.producer_name, model.producer_version
    out.doc_string = model.doc_string
    return out


def _as_before_coordinates(n: onnx.NodeProto, graph: GraphProto) -> None:
    """Give a converted Resize the rule by which Resize of opset 10 and Upsample place pixels.

    ONNX's converter leaves it the defaults of later opsets, which give other values.  A Resize that
    makes images smaller takes the pixel after the exact position, as onnxruntime does.
    """
    named = {t.name: t for t in graph.initializer}
    named |= {c.output[0]: c.attribute[0].t for c in graph.node if c.op_type == "Constant"}
    scales = named.get(n.input[2])
    try:
        shrinks = scales is not None and bool((onnx.numpy_helper.to_array(scales) <= 1).all())
    except (ValueError, TypeError) as error:
        raise ModelError(f"{n.op_type} {n.name!r}: its scales are malformed: {error}") from None
    for name, value in (
        ("coordinate_transformation_mode", "asymmetric"),
        ("nearest_mode", "ceil" if shrinks else "floor"),
    ):
        n.attribute.append(onnx.helper.make_attribute(name, value))


def _make_light(model: ModelProto) -> tuple[ModelProto, list[TensorProto]]:
    """Return the model with its large initializers as inputs, and these initializers."""
    heavy = [t for t in model.graph.initializer if _count_bytes(t) >= _HEAVY]
    names = {t.name for t in model.graph.initializer}
    graph = GraphProto(name=model.graph.name)
    graph.node.extend(model.graph.node)
    for n in graph.node:
        n.domain = _ASIDE if not n.domain and n.op_type in _UNKNOWN else n.domain
    graph.input.extend(i for i in model.graph.input if i.name not in names)
    for t in heavy:
        graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    graph.initializer.extend(t for t in model.graph.initializer if _count_bytes(t) < _HEAVY)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(_strip_infos(model.graph.value_info))
    out = ModelProto(graph=graph, ir_version=max(model.ir_version, 7))
    out.opset_import.extend((*model.opset_import, onnx.helper.make_opsetid(_ASIDE, 1)))
    return out, heavy


def _strip_infos(infos: Sequence[ValueInfoProto]) -> list[ValueInfoProto]:
    return [v for v in infos if v.type.HasField("tensor_type")]


def _count_bytes(t: TensorProto) -> int:
    try:
        itemsize = onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
    except KeyError:
        itemsize = 0  # no such element type: reading the tensor says so
    return int(math.prod(t.dims) * itemsize)


def _explain_failure(
    model: ModelProto, source: str, opset: int, target: int, least: int, error: Exception
) -> UnsupportedOpError:
    """Return the error of a failed conversion, which names the nodes in ONNX's message."""
    text = str(error).strip()
    words = set(re.findall(r"\w+", text))
    guilty = [
        f"{n.op_type} {n.name!r}"
        for n in model.graph.node
        if n.op_type in words or f"{n.op_type}{opset}{target}" in text
    ]
    reason = text.rpartition("failed: ")[2] or type(error).__name__
    if "no registered schema" in reason:
        reason = f"opset {opset} has no such operator"
    where = f" at {', '.join(guilty)}" if guilty else ""
    return UnsupportedOpError(
        f"{source}: cannot convert from opset {opset} to {target}{where}: {reason}; export the "
        f"model with an opset from {least} to {opsets.LAST}"
    )


def make_node_model(
    node: NodeProto, inputs: Sequence[Array], opset: int | None = None
) -> ModelProto:
    """Return the model of one node, given the values of its present inputs.

    opset: the opset of the node's domain, by default the newest supported one.

    Raises:
        InputError: the number of inputs is wrong.
    """
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(inputs):
        raise InputError(f"{node.op_type}: the node takes {names}, got {len(inputs)} inputs")
    make = onnx.helper.make_tensor_value_info
    code = onnx.helper.np_dtype_to_tensor_dtype
    graph = GraphProto(name=node.op_type, node=[node])
    graph.input.extend(
        make(name, code(a.dtype), a.shape) for name, a in zip(names, inputs, strict=True)
    )
    graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    model = ModelProto(ir_version=onnx.IR_VERSION, graph=graph)
    newest = min(opsets.LAST, onnx.defs.onnx_opset_version())
    is_onnx = node.domain in ("", "ai.onnx")
    versions = {"": opset or newest} if is_onnx else {"": newest, node.domain: opset or 1}
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in versions.items())
    return model

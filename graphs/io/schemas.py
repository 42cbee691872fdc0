"""Schemas: which inputs, outputs and attributes a node may have.

They are ONNX's, and for an op that ONNX does not have, those of its declaration.

A node is checked when it is read: the number of its inputs and outputs, and the name and type of
each attribute.  The rules of its op can rely on these.  Neither schemas
nor declarations say which values an attribute may have (an axis, a mode, a permutation): the shape
rule of the op checks those, since most depend on the shapes of the inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import onnx
from onnx import AttributeProto, NodeProto

from engine.errors import ModelError, UnsupportedOpError, nearest
from engine.graphs.ir.graph import Node
from engine.kernels.registry import ops

_KINDS: dict[int, str] = {code: name.lower() for name, code in AttributeProto.AttributeType.items()}
_CODES = {name: code for code, name in _KINDS.items()}
_REQUIRED = onnx.defs.OpSchema.FormalParameterOption.Single


class Attribute(NamedTuple):
    """An attribute that an op has: its type, as ONNX names it in lower case (`ints`)."""

    kind: str
    is_required: bool


class Schema(NamedTuple):
    """What ONNX says of the nodes of an op in one opset.

    inputs, outputs: the least and the most of them.
    required: the places of inputs that must not be absent, and what ONNX calls them.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: tuple[tuple[int, str], ...]
    attributes: Mapping[str, Attribute]


def kind_name(code: int) -> str:
    """The name of an attribute type, in lower case."""
    return _KINDS.get(code, str(code))


@functools.lru_cache(maxsize=1024)
def schema_of(op: str, domain: str, opset: int) -> Schema | None:
    """ONNX's schema of an op in an opset; None if ONNX has none.  ONNX is asked once."""
    try:
        found = onnx.defs.get_schema(op, opset, domain)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a name or version of malformed models
        return None
    return Schema(
        (found.min_input, found.max_input),
        (found.min_output, found.max_output),
        tuple((i, f.name) for i, f in enumerate(found.inputs) if f.option == _REQUIRED),
        {
            name: Attribute(str(a.type).rpartition(".")[2].lower(), a.required)
            for name, a in found.attributes.items()
        },
    )


def attribute_codes(node: Node, opsets: Mapping[str, int]) -> dict[str, int]:
    """The attributes of an op with the codes of their types; empty for an op nobody knows."""
    schema = schema_of(node.op, node.domain, opsets.get(node.domain, 1))
    known = _attributes(node.op, node.domain, schema)
    return {name: _CODES[a.kind] for name, a in (known or {}).items()}


def check_node(proto: NodeProto, node: Node, opsets: Mapping[str, int], source: str) -> None:
    """Check a node, read from `proto`, against what is known of its op.

    Nothing is asked of an op that neither ONNX nor this package has: it is refused by name later.

    Raises:
        ModelError: too few or too many inputs or outputs, or an attribute that is unknown, missing,
            given twice or of another type.  It names the node, the attribute, what was found and
            what was expected.
        UnsupportedOpError: an operator that stands in no file.
    """
    domain = f"{node.domain}::" if node.domain else ""
    where = f"{source}: {domain}{node.op} {node.name!r} (opset {opsets.get(node.domain, 1)})"
    schema = schema_of(node.op, node.domain, opsets.get(node.domain, 1))
    if schema is not None:
        _check_operands(node, schema, where)
    if not any(node.outputs):
        raise ModelError(f"{where}: no output; expected one at least")
    declared = ops().get((node.domain, node.op))
    if declared is not None and declared.internal:
        raise UnsupportedOpError(f"{where}: an operator that only the planner makes")
    known = _attributes(node.op, node.domain, schema)
    if known is not None:
        _check_attributes(proto, known, where)


def _check_operands(node: Node, schema: Schema, where: str) -> None:
    for what, names, (least, most) in (
        ("inputs", node.inputs, schema.inputs),
        ("outputs", node.outputs, schema.outputs),
    ):
        if not least <= len(names) <= most:
            expected = f"{least}" if least == most else f"{least} or more, up to {most}"
            raise ModelError(f"{where}: {len(names)} {what}; expected {expected}")
    for i, formal in schema.required if "" in node.inputs else ():
        if i < len(node.inputs) and not node.inputs[i]:
            raise ModelError(f"{where}: input {i} ({formal}) is missing, which is required")


def _check_attributes(proto: NodeProto, known: Mapping[str, Attribute], where: str) -> None:
    given: set[str] = set()
    for a in proto.attribute:
        found = kind_name(a.type)
        if a.name not in known:
            listed = ", ".join(f"{name} ({k.kind})" for name, k in sorted(known.items()))
            raise ModelError(
                f"{where}: unknown attribute {a.name!r} of type {found}{nearest(a.name, known)}; "
                f"expected one of: {listed or 'none at all'}"
            )
        if a.name in given:
            raise ModelError(f"{where}: attribute {a.name!r} is given twice; expected it once")
        if a.ref_attr_name:
            raise ModelError(
                f"{where}: attribute {a.name!r} refers to {a.ref_attr_name!r} of a function; "
                f"expected a value"
            )
        if found != known[a.name].kind:
            raise ModelError(
                f"{where}: attribute {a.name!r} of type {found}; expected type {known[a.name].kind}"
            )
        given.add(a.name)
    for name, attribute in known.items():
        if attribute.is_required and name not in given:
            raise ModelError(
                f"{where}: attribute {name!r} is missing; expected one of type {attribute.kind}"
            )


def _attributes(op: str, domain: str, schema: Schema | None) -> Mapping[str, Attribute] | None:
    """The attributes of an op by its schema, else by its declaration; None if there is neither."""
    if schema is not None:
        return schema.attributes
    declared = ops().get((domain, op))
    if declared is None:
        return None
    return {name: Attribute(k, name in declared.needs) for name, k in declared.attributes().items()}

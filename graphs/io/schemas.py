"""Schemas: the inputs, outputs and attributes that a node may have.

They come from ONNX, or from the declaration of an op that ONNX does not have.  ONNX's are in
schemas.txt, for all opsets that are read without conversion; only others are looked up in the
package.

A node is checked when it is read: the number of its inputs and outputs, the name and type of each
attribute, and the number of inputs and outputs of the bodies of control flow.  Rules of ops and
passes can rely on this.  Neither schemas nor declarations list the values that an attribute may
have (an axis, a mode, a permutation): the shape rule of the op checks the values and the element
types, since most depend on the types of the inputs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import NamedTuple

from engine.base.errors import ModelError, UnsupportedOpError, suggest_nearest
from engine.graphs.io import opsets
from engine.graphs.io.protos import AttributeProto, GraphProto, NodeProto
from engine.graphs.ir.graph import Node
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import MANY

_KINDS: dict[int, str] = {code: name.lower() for name, code in AttributeProto.AttributeType.items()}
_CODES = {name: code for code, name in _KINDS.items()}
_NONE = "-"  # in an empty column of the table
_TABLE = os.path.join(os.path.dirname(__file__), "schemas.txt")


class Attribute(NamedTuple):
    """Attribute of an op: its type, as ONNX names it in lower case (`ints`)."""

    kind: str
    is_required: bool


class Schema(NamedTuple):
    """Schema of the nodes of an op in one opset.

    inputs, outputs: the least and the largest number of them.
    required: the indices of inputs that must be present, and ONNX's names for them.
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: tuple[tuple[int, str], ...]
    attributes: Mapping[str, Attribute]

    @classmethod
    def of_onnx(cls, op: str, domain: str, opset: int) -> Schema | None:
        """Return the schema in the package onnx, or None."""
        import onnx

        try:
            schema = onnx.defs.get_schema(op, opset, domain)
        except (onnx.defs.SchemaError, TypeError):  # TypeError: for malformed models
            return None
        required = onnx.defs.OpSchema.FormalParameterOption.Single
        return cls(
            (schema.min_input, schema.max_input),
            (schema.min_output, schema.max_output),
            tuple((i, f.name) for i, f in enumerate(schema.inputs) if f.option == required),
            {
                name: Attribute(str(a.type).rpartition(".")[2].lower(), a.required)
                for name, a in schema.attributes.items()
            },
        )

    def __str__(self) -> str:
        """Return a line of schemas.txt: counts, required inputs, attributes; ! if required."""
        columns = [
            *(f"{least}-{most}" for least, most in (self.inputs, self.outputs)),
            " ".join(f"{i}:{name}" for i, name in self.required),
            " ".join(f"{n}:{a.kind}{'!' * a.is_required}" for n, a in self.attributes.items()),
        ]
        return "\t".join(column or _NONE for column in columns)

    @classmethod
    def parse(cls, line: str) -> Schema:
        """Return the schema with this text."""
        inputs, outputs, required, attributes = line.split("\t")
        pairs, kinds = (
            [word.split(":") for word in column.split() if column != _NONE]
            for column in (required, attributes)
        )
        return cls(
            _parse_range(inputs),
            _parse_range(outputs),
            tuple((int(i), name) for i, name in pairs),
            {name: Attribute(kind.rstrip("!"), kind.endswith("!")) for name, kind in kinds},
        )


def _parse_range(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    return int(least), int(most)


@functools.cache
def _read_table() -> dict[str, list[tuple[int, str]]]:
    """Return the schemas of ONNX's ops as texts, by op, each with the opset that introduced it."""
    schemas: dict[str, list[tuple[int, str]]] = {}
    with open(_TABLE, encoding="utf-8") as file:
        for line in file:
            op, since, schema = line.rstrip("\n").split("\t", 2)
            schemas.setdefault(op, []).append((int(since), schema))
    return schemas


def name_kind(code: int) -> str:
    """Return the name of an attribute type, in lower case."""
    return _KINDS.get(code, str(code))


@functools.lru_cache(maxsize=1024)
def find_schema(op: str, domain: str, opset: int) -> Schema | None:
    """Return ONNX's schema of an op in an opset, or None.

    For an op newer than the opset this is its first schema, because onnxruntime had some ops
    earlier.
    """
    schema = None
    if domain.startswith("ai.onnx.") or (not domain and not opsets.FIRST <= opset <= opsets.LAST):
        schema = Schema.of_onnx(op, domain, opset)
    if domain or schema is not None or op not in _read_table():
        return schema
    forms = _read_table()[op]
    known = [text for since, text in forms if since <= opset]
    return Schema.parse(known[-1] if known else forms[0][1])


def list_attribute_codes(node: Node, opsets: Mapping[str, int]) -> dict[str, int]:
    """Return the attributes of an op with the codes of their types; none for an unknown op."""
    schema = find_schema(node.op, node.domain, opsets.get(node.domain, 1))
    known = _find_attributes(node.op, node.domain, schema)
    return {name: _CODES[a.kind] for name, a in (known or {}).items()}


def check_node(proto: NodeProto, node: Node, opsets: Mapping[str, int], source: str) -> None:
    """Check a node, read from `proto`, against the known facts about its op.

    An op that neither ONNX nor this package has is not checked: it is refused by name later.

    Raises:
        ModelError: too few or too many inputs or outputs, or an attribute that is unknown, missing,
            given twice or of another type.  It names the node, the attribute, what was found and
            what was expected.
        UnsupportedOpError: the operator never appears in files.
    """
    for text in (node.op, node.domain, *(a.name for a in proto.attribute)):
        if not isinstance(text, str):  # protobuf returns bytes for text that is not UTF-8
            raise ModelError(f"{source}: node {node.name!r}: {text!r} is not UTF-8")
    domain = f"{node.domain}::" if node.domain else ""
    where = f"{source}: {domain}{node.op} {node.name!r} (opset {opsets.get(node.domain, 1)})"
    schema = find_schema(node.op, node.domain, opsets.get(node.domain, 1))
    if schema is not None:
        _check_operands(node, schema, where)
    elif (counts := _find_counts(node.op, node.domain)) is not None:
        _check_operands(node, counts, where)
    if not any(node.outputs):
        raise ModelError(f"{where}: the node has no output; expected at least one")
    declared = list_ops().get((node.domain, node.op))
    if declared is not None and declared.internal:
        raise UnsupportedOpError(f"{where}: only the planner makes this operator")
    known = _find_attributes(node.op, node.domain, schema)
    if known is not None:
        _check_attributes(proto, known, where)
    if not node.domain and node.op in _BODIES:
        for a in proto.attribute:
            if a.type == AttributeProto.GRAPH:
                _check_body(proto, node, a.g, f"{where}: {a.name}")


_BODIES = {"If", "Loop", "Scan"}


def _check_body(proto: NodeProto, node: Node, body: GraphProto, where: str) -> None:
    """Check the numbers of inputs and outputs of a body of control flow.

    A Loop passes its body the trip, the condition and the carried values, and a Scan all its
    inputs.
    """
    given = {v.name for v in body.initializer}
    inputs = sum(v.name not in given for v in body.input)
    takes, makes = 0, len(node.outputs)
    if node.op == "Loop":
        takes = 2 + max(len(node.inputs) - 2, 0)
        makes = 1 + max(len(node.outputs), takes - 2)
    elif node.op == "Scan":
        takes = len(node.inputs)
        scanned = next((a.i for a in proto.attribute if a.name == "num_scan_inputs"), 0)
        if not 1 <= scanned <= takes:
            raise ModelError(
                f"{where}: {scanned} of {takes} inputs are scanned; expected 1 to {takes}"
            )
        makes = max(len(node.outputs), takes - scanned)
    if inputs != takes:
        raise ModelError(f"{where}: the body has {inputs} inputs; expected {takes}")
    if len(body.output) < makes or (node.op == "If" and len(body.output) > makes):
        more = "" if node.op == "If" else " or more"
        raise ModelError(
            f"{where}: the body has {len(body.output)} outputs; expected {makes}{more}"
        )


def _find_counts(op: str, domain: str) -> Schema | None:
    """Return the numbers of operands that an op's declaration gives, or None."""
    known = list_ops().get((domain, op))
    if known is None or known.inputs is None:
        return None
    required = (i for i in range(known.inputs[0]) if i not in known.may_be_absent)
    most = MANY if known.outputs is None else known.outputs
    return Schema(known.inputs, (0, most), tuple((i, "required") for i in required), {})


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
        kind = name_kind(a.type)
        if a.name not in known:
            listed = ", ".join(f"{name} ({k.kind})" for name, k in sorted(known.items()))
            raise ModelError(
                f"{where}: unknown attribute {a.name!r} of type "
                f"{kind}{suggest_nearest(a.name, known)}; "
                f"expected one of: {listed or 'none at all'}"
            )
        if a.name in given:
            raise ModelError(f"{where}: attribute {a.name!r} is given twice; expected it once")
        if a.ref_attr_name:
            raise ModelError(
                f"{where}: attribute {a.name!r} refers to {a.ref_attr_name!r} of a function; "
                f"expected a value"
            )
        if kind != known[a.name].kind:
            raise ModelError(
                f"{where}: attribute {a.name!r} of type {kind}; expected type {known[a.name].kind}"
            )
        given.add(a.name)
    for name, attribute in known.items():
        if attribute.is_required and name not in given:
            raise ModelError(
                f"{where}: attribute {name!r} is missing; expected one of type {attribute.kind}"
            )


def _find_attributes(op: str, domain: str, schema: Schema | None) -> Mapping[str, Attribute] | None:
    """Return the attributes of an op by its schema or otherwise its declaration, or None."""
    if schema is not None:
        return schema.attributes
    declared = list_ops().get((domain, op))
    if declared is None:
        return None
    return {name: Attribute(k, name in declared.needs) for name, k in declared.attributes().items()}

"""Op sets: lists of the ops that a build must have, in files called `required_operators.config`.

The grammar is onnxruntime's.  A line names a domain, an opset and ops; several lines of the same
domain and opset add up:

    # comment
    !globally_allowed_types;float,int64_t
    !no_ops_specified_means_all_ops_are_required
    ai.onnx;13;Gemm,Relu{"inputs":{"0":["float"]}}
    com.microsoft;1;FusedGemm,SoftmaxCrossEntropyLossGrad
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import FileError, ModelError, UnsupportedOpError, suggest_nearest

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

ONNX = "ai.onnx"  # how files name the domain that graphs call ""
TYPES = "!globally_allowed_types"
ALL_OPS = "!no_ops_specified_means_all_ops_are_required"

Key = tuple[str, int]  # domain, opset


@dataclass(slots=True)
class OpSet:
    """List of required ops.

    ops: by domain and opset, the names of ops, each with its type restrictions or None.
    types: the C++ names of the only element types that ops may have; empty: all may be had.
    all_if_none: if no op is named, all ops are required.
    """

    ops: dict[Key, dict[str, dict[str, Any] | None]] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    all_if_none: bool = False

    def add(self, domain: str, opset: int, op: str, types: dict[str, Any] | None = None) -> None:
        """Add an op; if it is there already, both sets of type restrictions are allowed."""
        row = self.ops.setdefault((domain or ONNX, opset), {})
        row[op] = _merge(row[op], types) if op in row else types

    def has(self, domain: str, op: str) -> bool:
        """Return whether an op is required, in any opset: kernels serve every opset of their op."""
        if self.all_if_none and not self.ops:
            return True
        return any(op in row for (d, _), row in self.ops.items() if d == (domain or ONNX))

    def list_names(self) -> list[str]:
        """Return all required ops as `domain::Op`, sorted."""
        return sorted({f"{d}::{op}" for (d, _), row in self.ops.items() for op in row})

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._list_lines())

    def _list_lines(self) -> Iterator[str]:
        if self.types:
            yield f"{TYPES};{','.join(self.types)}"
        if self.all_if_none:
            yield ALL_OPS
        for (domain, opset), row in sorted(self.ops.items()):
            ops = (
                op + (json.dumps(t, separators=(",", ":")) if t else "")
                for op, t in sorted(row.items())
            )
            yield f"{domain};{opset};{','.join(ops)}"


def parse(text: str, source: str = "config") -> OpSet:
    """Read an op set from the text of a config; `source` names it in messages.

    Raises:
        ModelError: a line breaks the grammar; the message has its number.
    """
    opset = OpSet()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if words and not words.startswith("#"):
            try:
                _parse_line(words, opset)
            except ModelError as error:
                raise ModelError(f"{source}:{number}: {error}") from None
    if opset.types and any(t for row in opset.ops.values() for t in row.values()):
        raise ModelError(f"{source}: give either types of single ops or {TYPES}, not both")
    return opset


def _parse_line(line: str, into: OpSet) -> None:
    if line.startswith("!"):
        name, _, rest = line.partition(";")
        if name.strip() == TYPES and rest.strip():
            if into.types:
                raise ModelError(f"{TYPES} is given twice")
            into.types = tuple(t.strip() for t in rest.split(",") if t.strip())
        elif name.strip() == ALL_OPS and not rest.strip():
            into.all_if_none = True
        else:
            raise ModelError(f"{line!r}: expected `{TYPES};T0,T1,...` or `{ALL_OPS}`")
        return
    fields = line.split(";", 2)
    if len(fields) != 3 or not fields[0].strip():
        raise ModelError(f"{line!r}: expected `domain;opset[,opset...];Op[,Op...]`")
    try:
        opsets = [int(word) for word in fields[1].split(",")]
    except ValueError:
        raise ModelError(f"opsets {fields[1]!r}: expected whole numbers") from None
    if min(opsets) < 1:
        raise ModelError(f"opsets {fields[1]!r}: expected at least 1")
    for op, types in _parse_ops(fields[2].strip()):
        for opset in opsets:
            into.add(fields[0].strip(), opset, op, types)


def _parse_ops(text: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each op of `Op,Op{json},...` with its type restrictions or None."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        end = min((i for i in (text.find(",", at), text.find("{", at)) if i >= 0), default=-1)
        name = text[at : end if end >= 0 else len(text)].strip()
        if not name.isidentifier():
            raise ModelError(f"{name!r} is not the name of an op")
        types = None
        if end >= 0 and text[end] == "{":
            try:
                types, end = decoder.raw_decode(text, end)
            except json.JSONDecodeError as error:
                raise ModelError(f"types of {name}: {error.msg}") from None
            if not set(types) <= {"inputs", "outputs", "custom"}:
                raise ModelError(f"types of {name}: expected inputs, outputs or custom")
            end += len(text[end:]) - len(text[end:].lstrip())
            if end < len(text) and text[end] != ",":
                raise ModelError(f"{text[end:]!r} after the types of {name}")
            end = end if end < len(text) else -1
        yield name, types
        if end < 0:
            return
        at = end + 1


def _merge(a: Any, b: Any) -> Any:
    """Return type restrictions that allow everything that `a` or `b` allows; none allow
    everything.
    """
    if not a or not b:
        return None
    if isinstance(a, list):
        return a + [item for item in b if item not in a]
    return {
        k: _merge(a[k], b[k]) if k in a and k in b else a.get(k) or b.get(k)
        for k in sorted({*a, *b})
    }


def read(path: Path) -> OpSet:
    """Read the op set of a config file.

    Raises:
        FileError: the file cannot be read.
        ModelError: a line breaks the grammar; the message has its number.
    """
    try:
        return parse(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from None


def of_graphs(graphs: Iterable[Graph]) -> OpSet:
    """Return the ops that graphs use, each with the opset that its graph imports for its domain."""
    opset = OpSet()
    for graph in graphs:
        for node in graph.nodes:
            opset.add(node.domain, graph.opsets.get(node.domain, 1), node.op)
    return opset


def check(graph: Graph, allowed: OpSet, source: str) -> None:
    """Check that a graph uses only ops of a set; `source` names the graph in the message.

    Raises:
        UnsupportedOpError: it uses others; the message names each, with one of its nodes.
    """
    outside: dict[str, str] = {}
    for node in graph.nodes:
        if not allowed.has(node.domain, node.op):
            outside.setdefault(f"{node.domain or ONNX}::{node.op}", node.name or node.outputs[0])
    if outside:
        rows = (
            f"{op} (node {node!r}{suggest_nearest(op, allowed.list_names())})"
            for op, node in sorted(outside.items())
        )
        raise UnsupportedOpError(f"{source}: not in the op set: {', '.join(rows)}")

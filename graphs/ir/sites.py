"""Sites: the facts about a node that its op's rules receive, and a memo of their results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from engine.base.aliases import Array
from engine.base.errors import UnsupportedOpError, defects, suggest_nearest
from engine.graphs.ir.graph import Graph, Node, Subgraph
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Product, Scaling
from engine.kernels.vocabulary.op import MS, OURS, Op, Site, TensorType
from engine.kernels.vocabulary.sizes import is_size, make_shape_key
from engine.kernels.vocabulary.terms import Formulas

# Channels in blocks, and weights in an order that depends on the CPU, not on the file.
NCHWC = "com.microsoft.nchwc"


def get_declaration(graph: Graph, node: Node) -> Op:
    """Return the op declaration of a node.

    Raises:
        UnsupportedOpError: there is none, or it does not support an opset as old as the model's.
    """
    op = list_ops().get((node.domain, node.op))
    opset = graph.opsets.get(node.domain, 1)
    if op is not None and opset >= op.since:
        return op
    where = f"{node.domain + '::' if node.domain else ''}{node.op} {node.name!r} (opset {opset})"
    if node.domain == NCHWC:
        raise UnsupportedOpError(
            f"{where} in {graph.name!r}: onnxruntime saved this model in a layout for the CPU that "
            f"it ran on; supported: the model before that, or as onnxruntime saves it with "
            f"graph_optimization_level ORT_ENABLE_EXTENDED"
        )
    if op is None:
        known = sorted(name for domain, name in list_ops() if domain == node.domain)
        supported = (
            f"the {len(known)} operators of this domain that docs/operators.md lists" if known
            else "the domains and operators that docs/operators.md lists, and your own "
            "(docs/custom-ops.md)"
        )  # fmt: skip
        raise UnsupportedOpError(
            f"{where} in {graph.name!r} is not supported{suggest_nearest(node.op, known)}; "
            f"supported: {supported}"
        )
    raise UnsupportedOpError(f"{where}: supported from opset {op.since}")


def is_reversible_move(node: Node) -> bool:
    """Return whether a node only moves its first input, in a way that can be undone."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.movement.is_reversible


def is_quantiser(node: Node) -> bool:
    """Return whether a node makes integers of numbers, by a scale that it reads."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.scaling is Scaling.QUANTISES


def is_dequantiser(node: Node) -> bool:
    """Return whether a node makes numbers of the integers that stand for them."""
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.scaling is Scaling.DEQUANTISES


def find_units(node: Node) -> tuple[str, str] | None:
    """Return the scale and the zero point of the integers that a node makes of numbers.

    The zero point is "" where there is none.  The result is None for a node that makes no integers.
    """
    op = list_ops().get((node.domain, node.op))
    match op.scaling if op is not None else None:
        case Scaling.QUANTISES:
            scale, zero = (*node.inputs[1:], "")[:2]
        case Scaling.MEASURES:
            scale, zero = (*node.outputs[1:], "", "")[:2]
        case _:
            return None
    return scale, zero


def find_product(node: Node) -> Product | None:
    """Return the matrix product or convolution that a node computes; None if there is none."""
    op = list_ops().get((node.domain, node.op))
    return op.product if op is not None else None


def make_site(
    graph: Graph,
    node: Node,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
) -> Site:
    """Return the site of a node.

    types, constants: the known ones of the graph; the site gets the entries for the node's inputs.

    Raises:
        UnsupportedOpError: see `get_declaration`.
    """
    op = get_declaration(graph, node)
    return Site(
        op=node.op,
        domain=node.domain,
        name=node.name,
        opset=graph.opsets.get(node.domain, 1),
        ins=tuple([types.get(i) if i else None for i in node.inputs]),
        attrs={**op.attrs, **node.attrs},
        values=tuple([constants.get(i) if i else None for i in node.inputs]),
        n_outs=len(node.outputs),
        expr=op.expr,
    )


Answer = TypeVar("Answer")
FactKey = tuple[object, ...]  # the facts about a node that a rule receives, as a key
_PLAIN = (int, float, str, list, tuple)  # types of attributes that their text describes completely
_NOTHING = id(None)


class Answers(Generic[Answer]):
    """Memo of the results of a rule: for identical nodes it is called once.

    A rule receives the op and the attributes of a node, the number of its outputs, and the types
    and constant values of its inputs.  Its result depends on these alone.  Results that contain the
    name of the node, such as a new symbol in a shape, must not be kept.

    Types, values, and attributes other than numbers and texts are distinguished by identity: models
    have many nodes, and few types.  Code that records types must pass them through `share_type`,
    which makes equal ones one object; otherwise the rule is called again.
    """

    def __init__(self) -> None:
        self._kept: dict[FactKey, tuple[Answer, Site]] = {}
        self._types: dict[object, TensorType] = {}

    def share_type(self, t: TensorType) -> TensorType:
        """Return the first given type that equals this one."""
        return self._types.setdefault((t.dtype, make_shape_key(t.shape), t.last), t)

    def get(self, told: FactKey | None) -> Answer | None:
        """Return the result for these facts, or None if there is none yet."""
        entry = self._kept.get(told) if told is not None else None
        return entry[0] if entry is not None else None

    def keep(self, told: FactKey | None, site: Site, answer: Answer) -> None:
        """Keep the result of the rule under the key `told`, see `list_facts`.

        The site keeps the objects of the key alive, so that no other object gets their identities.
        """
        if told is not None:
            self._kept[told] = (answer, site)


def simplify(value: object) -> object:
    """Return an attribute as a part of a key: its text, or its identity if the text is not
    enough.
    """
    if isinstance(value, Formulas):
        return value
    if is_size(value):
        return make_shape_key((value,))
    if isinstance(value, list | tuple) and any(map(is_size, value)):
        return type(value), make_shape_key(value)
    return repr(value) if isinstance(value, _PLAIN) else id(value)


def list_facts(
    graph: Graph,
    node: Node,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Array],
) -> FactKey | None:
    """Return the facts about a node that a rule receives, without its name, as a key of `Answers`.

    The key is None if results for the node cannot be kept: an input has no type, or there is a
    subgraph.

    types, constants: the known ones of the graph.
    """
    inputs = node.inputs
    told: list[object] = [*map(id, map(types.get, inputs))]
    if _NOTHING in told and any(i and i not in types for i in inputs):
        return None
    told += map(id, map(constants.get, inputs))
    for name, value in node.attrs.items():
        if isinstance(value, Subgraph):
            return None
        told += (name, simplify(value))
    return (node.op, node.domain, graph.opsets.get(node.domain, 1), len(node.outputs), *told)


def run_rule(op: Op, stage: str, site: Site, node: Node) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a rule of an op runs: an unexpected exception becomes an
    InternalError.

    stage: the name of the rule, such as "the shape rule".

    Raises:
        InternalError: the rule raised anything but an `EngineError`.  This is a defect of the
            package, or of the code that registered the op.
    """
    owner = ""
    if op.domain not in ("", MS, OURS):
        owner = f"the operator {op.domain}::{op.name}, registered from {op.infer.__module__!r}"
    return defects(stage, site.where, detail=node, owner=owner)

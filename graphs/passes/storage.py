"""Storage: the float32 values of a graph that a plan keeps in 16 bits.

Parameters, their gradients, states, sums, and the inputs and outputs of a graph stay 32 bits wide.
A value between two nodes is stored in 16 bits if the kernels that compute it and all kernels that
read it support this (`Op.storage`).  So conversion is never a pass of its own: it is part of their
loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import NamedTuple

from engine.base.aliases import Array
from engine.base.element_types import HALVES
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import get_declaration, make_site
from engine.kernels.vocabulary.facts import Storage
from engine.kernels.vocabulary.op import TensorType

SMALL = 2048  # elements up to which a value is stored as it is: no more than a page is won
_ALL = Storage()


class _OperandUse(NamedTuple):
    """An operand of a node."""

    node: Node
    value: str
    is_allowed: bool
    alike: bool


def choose_storage(
    graph: Graph,
    types: MutableMapping[str, TensorType],
    constants: Mapping[str, Array],
    half: str,
) -> None:
    """Change the types of values to this half float, after all other passes.

    Values that share their bytes get the same type.
    """
    assert half in HALVES
    uses = list(_list_uses(graph, types, constants))
    roots = _find_roots(graph)
    fixed = {*graph.inputs, *graph.initializers, *graph.outputs, *constants}
    refused = {roots.get(name, name) for name in fixed}
    sizes: dict[str, int] = {}
    for use in uses:
        root, t = roots.get(use.value, use.value), types[use.value]
        if not use.is_allowed or t.dtype != "f32":
            refused.add(root)
        else:
            sizes[root] = t.size
    refused.update(root for root, size in sizes.items() if size <= SMALL)
    together: dict[Node, set[str]] = {}
    for use in uses:
        if use.alike and use.is_allowed:
            together.setdefault(use.node, set()).add(roots.get(use.value, use.value))
    left = list(together.values())
    while broken := [group for group in left if group & refused and not group <= refused]:
        for group in broken:
            refused |= group
    chosen = sizes.keys() - refused
    for name, t in types.items():
        if roots.get(name, name) in chosen:
            types[name] = t.but(dtype=half).as_last(t.last)


def _list_uses(
    graph: Graph, types: Mapping[str, TensorType], constants: Mapping[str, Array]
) -> Iterator[_OperandUse]:
    """Yield all operands of all nodes but views, whose readers are readers of their bytes."""
    for node in graph.nodes:
        op = get_declaration(graph, node)
        storage = _ALL if op.storage is None and op.expr is not None else op.storage
        if callable(storage):
            storage = storage(make_site(graph, node, types, constants))
        for is_output, names in ((False, node.inputs), (True, node.outputs)):
            for place, name in enumerate(names):
                if not name or (op.is_view and op.lower is None and place == 0):
                    continue
                if not is_output and place in op.type_only:
                    continue
                allowed = storage is not None and storage.has(place, is_output=is_output)
                yield _OperandUse(node, name, allowed, storage is not None and storage.alike)


def _find_roots(graph: Graph) -> dict[str, str]:
    """Return for every view the value whose bytes it has."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        if get_declaration(graph, node).is_view:
            roots[node.outputs[0]] = roots.get(node.inputs[0], node.inputs[0])
    return roots

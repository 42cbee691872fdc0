"""Integers of 4 bits that keep in training what rounding leaves of them.

Rounding by chance has the exact update u, in units of the scale, as its mean, and the variance
|u| (1 - |u|) if |u| < 1.  Over many steps the variances add up, and a scale of 4 bits is 17 times
as large as one of 8 bits for the same range, so the noise hides what many small updates have in
common.  Here a weight has 4 more bits while it is trained: an integer p of 8 bits whose unit is a
17th of the scale.  The model computes with p rounded to 4 bits, so what is trained is what is
deployed, and gradients pass the rounding.  17 is odd, so that no p lies between two integers, and
17 * 15 = 255, so that p covers the range of 4 bits and no more.

    Before   q of 4 bits; d = DequantizeLinear(q, s, z)
    After    p of 8 bits; w = DequantizeLinear(p, s / 17, 17 z'); r = QuantizeLinear(w, s, z);
             d = DequantizeLinear(r, s, z)

p is i8 and z' = z = 0 for integers from -7 to 7 without zero points; otherwise p is u8.

Source: error feedback, as in Seide et al., "1-bit stochastic gradient descent", Interspeech 2014
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError, ModelWarning, join_names, warn_user
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import is_dequantiser, is_quantiser

_PARTS = 17  # of a step of 4 bits
_MIDDLE = 8  # what makes int4 unsigned


def keep_residuals(graph: Graph, names: Collection[str]) -> None:
    """Give the initializers of 4 bits among some 4 more bits, in place.

    A `ModelWarning` names those that stay as they are, because another op reads them, too.

    Raises:
        InputError: there are none that DequantizeLinear alone reads with one scale.
    """
    readers, names_in_use = graph.find_consumers(), Names(graph)
    widened = set[str]()
    for name in names:
        nodes = readers.get(name, ())
        if name in graph.nibbles and _is_widened_by(graph, nodes, name):
            _widen(graph, name, nodes, names_in_use)
            widened.add(name)
    if not widened:
        raise InputError(
            f"residuals=True: none of the {len(names)} trained parameters has integers of 4 bits "
            "that DequantizeLinear alone reads, with a constant scale; integers of 8 bits need no "
            "residuals, and MatMulNBits has none"
        )
    left = sorted(graph.nibbles.intersection(names) - widened)
    if left:
        warn_user(
            f"{graph.name}: {join_names(left)}: trained without residuals; supported: integers of "
            "4 bits that DequantizeLinear alone reads, with a constant scale",
            ModelWarning,
        )
    graph.nibbles -= widened


def round_residuals(graph: Graph) -> None:
    """Round the weights of `keep_residuals` to 4 bits, a byte each, in place: its reverse."""
    made, readers = graph.find_producers(), graph.find_consumers()
    gone = set[int]()
    for last in graph.nodes:
        middle = made.get(last.inputs[0]) if is_dequantiser(last) else None
        first = made.get(middle.inputs[0]) if middle and is_quantiser(middle) else None
        if middle is None or first is None or not _has_residuals(graph, first, middle):
            continue
        name, zero = first.inputs[0], graph.initializers[middle.inputs[2]]
        if all(node is first or id(node) in gone for node in readers[name]):
            attrs, p = first.attrs, graph.initializers[name].astype(np.int64)
            offset = _spread(graph.initializers[first.inputs[2]], attrs, p.shape)
            rounded = np.rint((p - offset) / _PARTS) + _spread(zero, attrs, p.shape)
            graph.initializers[name] = rounded.astype(zero.dtype)
        last.inputs = (name, *last.inputs[1:])
        gone.update((id(first), id(middle)))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    read = {i for node in graph.nodes for i in node.list_reads()} | {*graph.outputs}
    if gone:
        graph.initializers = {n: a for n, a in graph.initializers.items() if n in read}


def _is_widened_by(graph: Graph, nodes: Sequence[Node], name: str) -> bool:
    """Return whether nodes only make floats of an initializer, all with the same constants."""
    alone = all(
        is_dequantiser(node) and not node.domain and name not in node.inputs[1:] for node in nodes
    )
    units = {(node.inputs[1:], *sorted(node.attrs.items())) for node in nodes} if alone else set()
    return len(units) == 1 and all(
        unit in graph.initializers for unit in nodes[0].inputs[1:] if unit
    )


def _widen(graph: Graph, name: str, nodes: Sequence[Node], names: Names) -> None:
    """Give one initializer 4 more bits, in place."""
    q, attrs = graph.initializers[name], nodes[0].attrs
    scale = graph.initializers[nodes[0].inputs[1]]
    has_zero = len(nodes[0].inputs) > 2 and bool(nodes[0].inputs[2])
    zero = graph.initializers[nodes[0].inputs[2]] if has_zero else np.zeros(scale.shape, q.dtype)
    middle = 0 if q.dtype == np.uint8 else _MIDDLE
    is_symmetric = middle and not zero.any() and q.min(initial=0) > -_MIDDLE
    if is_symmetric:
        middle = 0
    dtype = np.int8 if is_symmetric else np.uint8

    def widen(integers: Array) -> Array:
        return np.asarray(_PARTS * (integers.astype(np.int64) + middle), dtype)

    def add(end: str, value: Array) -> str:
        made = names.take_fresh(f"{name}_{end}")
        graph.initializers[made] = value
        return made

    graph.initializers[name] = widen(q)
    own = nodes[0].inputs[2] if has_zero else add("zero_point", zero)
    units = add("part", _divide(scale)), add("part_zero_point", widen(zero))
    at = min(k for k, node in enumerate(graph.nodes) if any(node is each for each in nodes))
    kept = {k: value for k, value in attrs.items() if k in ("axis", "block_size")}
    wide, rounded = names.take_fresh(f"{name}_wide"), names.take_fresh(f"{name}_rounded")
    graph.nodes[at:at] = [
        Node("DequantizeLinear", (name, *units), (wide,), kept, "",
             names.take_fresh(f"{wide}/DequantizeLinear")),
        Node("QuantizeLinear", (wide, nodes[0].inputs[1], own), (rounded,), dict(kept), "",
             names.take_fresh(f"{rounded}/QuantizeLinear")),
    ]  # fmt: skip
    for node in nodes:
        node.inputs = (rounded, node.inputs[1], own)


def _has_residuals(graph: Graph, first: Node, middle: Node) -> bool:
    """Return whether two nodes round an initializer as `keep_residuals` makes them do."""
    if not is_dequantiser(first) or min(len(first.inputs), len(middle.inputs)) < 3:
        return False
    constants = [graph.initializers.get(n) for n in (*first.inputs, *middle.inputs[1:])]
    if any(array is None for array in constants):
        return False
    part, scale = graph.initializers[first.inputs[1]], graph.initializers[middle.inputs[1]]
    return part.shape == scale.shape and np.array_equal(part, _divide(scale))


def _divide(scale: Array) -> Array:
    return np.asarray(scale / scale.dtype.type(_PARTS))


def _spread(units: Array, attrs: dict[str, object], shape: Sequence[int]) -> Array:
    """Return zero points in a shape that broadcasts to the integers of a DequantizeLinear."""
    wide = units.astype(np.int64)
    if units.size == 1:
        return wide.reshape(())
    axis, block = int(str(attrs.get("axis", 1))) % len(shape), int(str(attrs.get("block_size", 0)))
    if block:
        return np.repeat(wide, block, axis)[tuple(map(slice, shape))]
    return wide.reshape([-1 if k == axis else 1 for k in range(len(shape))])

"""Layers of integers, written as layers of floats that read integers, as in QDQ models.

    Before   r = QLinearMatMul(q, s, z, w8, t, o, u, p)
    After    y = MatMul(DequantizeLinear(q, s, z), DequantizeLinear(w8, t, o))
             r = QuantizeLinear(y, u, p)
    Before   q, s, z = DynamicQuantizeLinear(x); m = MatMulInteger(q, w8, z, o)
             y = Mul(Cast(m), Mul(s, t))
    After    y = MatMul(DequantizeLinear(q, s, z), DequantizeLinear(w8, t, o))
    Before   r = MaxPool(q)                               q has the scale s and zero point z
    After    r = QuantizeLinear(MaxPool(DequantizeLinear(q, s, z)), s, z)

A Resize of integers stays as it is, because it cuts fractions off; its readers read its result as
floats, and gradients pass around it (`quantize.py`).

Both forms stand for the same numbers.  Gradients flow through the second one, and adapters read and
add floats there.  The integers of weights stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import find_product, find_units
from engine.graphs.offline.scaled_products import CHANNELS_OPSET
from engine.graphs.passes.expand import expand_first
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import ATTENTION, Factors, Movement, Product
from engine.kernels.vocabulary.op import MS, OURS

MOST_FACTORS = 8  # of scaled sums: the sums, the unit of x, and scales of weights
_ORDERED = "MaxPool"  # it picks the largest number, which has the largest integer

Units = tuple[str, str]  # the names of the scale and of the zero point of integers, "" for 0


def write_layers(graph: Graph, chosen: Container[str] | None = None) -> bool:
    """Write layers of integers as layers of floats, in place; return whether there are any.

    chosen: the values whose makers are written so; None for all.
    """

    def is_chosen(node: Node) -> bool:
        return chosen is None or any(output in chosen for output in node.outputs)

    before = list(graph.nodes)
    expand_first(graph, lambda node: is_expanded(node) and is_chosen(node))
    work = IntegerLayers(graph)
    work.note_units()
    # The last ones first: of factors that are multiplied in turns, the last has all of them.
    written = [work.write(node) for node in reversed(list(graph.nodes)) if is_chosen(node)]
    if any(written):
        prune(graph.sort())
    return any(written) or graph.nodes != before


def is_expanded(node: Node) -> bool:
    """Return whether an operator on integers stands for several nodes, which it is written as."""
    op = list_ops().get((node.domain, node.op))
    if op is None or not (op.is_of_integers and op.expands_first):
        return False
    return op.product is None or op.product.of != ATTENTION.of


class IntegerLayers:
    """Rewriting of single layers; the caller sorts the graph, and drops what is not read.

    makers: the nodes that make values.
    units: of values of integers, whose scale and zero point are known.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)
        self.makers = graph.find_producers()
        self.units: dict[str, Units] = {}
        self._floats: dict[tuple[str, ...], str] = {}

    def note_units(self) -> None:
        """Find the units of all integers, also of those that were only moved."""
        for node in self.graph.nodes:
            units = find_units(node) or self._find_result(node) or self._find_moved(node)
            if units is not None:
                self.units[node.outputs[0]] = units

    def write(self, node: Node) -> bool:
        """Write one layer with floats, in place; return whether it is one that can be."""
        product = find_product(node)
        if product is not None and product.of == ATTENTION.of and product.factors.are_integers:
            return self.write_attention(node)
        if product is not None and product.factors is Factors.STATIC and not node.domain:
            return self.write_rounded(node, product)
        if (node.domain, node.op) in (("", "Mul"), (OURS, "ScaledSums")):
            return self.write_sums(node)
        units = self._find_moved(node)
        return units is not None and self.write_moved(node, units)

    # --- the forms of layers

    def write_rounded(self, node: Node, product: Product) -> bool:
        """Write QLinearMatMul or QLinearConv, whose result is rounded."""
        known = self.graph.initializers
        x, x_scale, x_zero, w, w_scale, w_zero, *result = node.inputs[:8]
        bias = node.inputs[8] if len(node.inputs) > 8 else ""
        a = self.add_floats(x, (x_scale, x_zero))
        b = self.add_weights(product, w, (w_scale, w_zero))
        if not a or not b:
            return False
        ins = [a, b]
        if bias:
            if any(name not in known for name in (x_scale, w_scale, bias)):
                return False
            # The unit of the sums, to which the integers of the bias are added.
            unit = np.asarray(known[x_scale].reshape(()) * known[w_scale], np.float32)
            c = self.add_channels(
                bias, (self.graph.add_constant(f"{bias}_scale", unit, self.names), ""), 0
            )
            if not c:
                return False
            ins.append(c)
        y = self.names.take_fresh(f"{node.outputs[0]}_floats")
        self.add_node(product.of, tuple(ins), y, node.attrs, node.name)
        node.op, node.inputs, node.attrs = "QuantizeLinear", (y, *result), {}
        node.name = self.names.take_fresh(f"{node.name or y}/QuantizeLinear")
        return True

    def write_sums(self, node: Node) -> bool:
        """Write sums of products times their scales, which may have a bias."""
        total, factors, bias = self._find_sums(node)
        product = find_product(total) if total is not None and not total.domain else None
        if total is None or product is None or product.factors is not Factors.DYNAMIC:
            return False
        q, w, zero, w_zero = (*total.inputs, "", "")[:4]
        unit = self._choose_unit(q, factors)
        if not unit:
            return False
        factors.remove(unit)
        a = self.add_floats(q, (unit, zero))
        b = self.add_weights(product, w, (self.multiply(w, factors), w_zero)) if a else ""
        if not a or not b:
            return False
        name, ins, attrs = total.name or node.name, (a, b), dict(total.attrs)
        # Where nothing else reads the sums, nobody sees that they have another name now.
        total.name = self.names.take_fresh(f"{name}/integers")
        if bias:
            y = self.names.take_fresh(f"{node.outputs[0]}_product")
            self.add_node(product.of, ins, y, attrs, name)
            node.op, node.inputs, node.attrs = "Add", (y, bias), {}
        else:
            node.op, node.inputs, node.attrs, node.name = product.of, ins, attrs, name
        node.domain = ""
        return True

    def write_attention(self, node: Node) -> bool:
        """Write QAttention as the attention of floats."""
        x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (*node.inputs, *[""] * 4)[:9]
        product = find_product(node)
        assert product is not None
        a = self.add_floats(x, (x_scale, x_zero))
        b = self.add_channels(w, (w_scale, w_zero), 1)
        if not a or not b:
            return False
        ins = [a, b, bias, mask, past]
        while not ins[-1]:
            ins.pop()
        node.op, node.inputs = product.of, tuple(ins)
        return True

    def write_moved(self, node: Node, units: Units) -> bool:
        """Write an operator that moves integers, or picks some, as one that does so with floats."""
        op = list_ops().get((node.domain, node.op))
        if op is None or not (op.movement.copies or (op.domain, op.name) == ("", _ORDERED)):
            return False
        places = range(len(node.inputs) if self._is_joined(node) else 1)
        floats = [self.add_floats(node.inputs[i], units) for i in places]
        if not all(floats):
            return False
        y = self.names.take_fresh(f"{node.outputs[0]}_floats")
        rest = node.inputs[len(floats) :]
        made = self.add_node(node.op, (*floats, *rest), y, node.attrs, node.name)
        made.outputs = (y, *node.outputs[1:])
        self.makers.update(dict.fromkeys(filter(None, made.outputs), made))
        node.op, node.inputs, node.outputs = "QuantizeLinear", (y, *units), node.outputs[:1]
        node.inputs = tuple(filter(None, node.inputs))
        node.attrs, node.name = {}, self.names.take_fresh(f"{node.name or y}/QuantizeLinear")
        return True

    # --- integers as floats

    def add_floats(self, name: str, units: Units) -> str:
        """Return a value of integers as floats, with one scale; "" if it has several."""
        if any(unit and not self._is_single(unit) for unit in units):
            return ""
        key = name, *units
        if key not in self._floats:
            value = self.names.take_fresh(f"{name}_dequantized")
            inputs = (name, units[0], *filter(None, units[1:]))
            title = self.names.take_fresh(f"{value}/DequantizeLinear")
            self.add_node("DequantizeLinear", inputs, value, {}, title)
            self._floats[key] = value
        return self._floats[key]

    def add_weights(self, product: Product, name: str, units: Units) -> str:
        """Return the second factor of a product as floats; "" if its scales do not fit."""
        w = self.graph.initializers.get(name)
        if w is None:
            return self.add_floats(name, units)
        axis = product.find_output_axis({}, w.ndim) if w.ndim > 1 else 0
        return self.add_channels(name, units, axis)

    def add_channels(self, name: str, units: Units, axis: int) -> str:
        """Return constant integers as floats, with scales along an axis or one for all.

        It is "" if these are computed or do not fit.
        """
        known = self.graph.initializers
        scale, zero = units
        if any(n and n not in known for n in (name, scale, zero)):
            return ""
        w, (s, *z) = known[name], [known[n] for n in (scale, zero) if n]
        count = w.shape[axis] if w.ndim > axis else 1
        if any(v.size not in (1, count) for v in (s, *z)):
            return ""
        shape = () if all(v.size == 1 for v in (s, *z)) else (count,)
        inputs = [name]
        for n, v in zip((scale, zero), (s, *z), strict=False):
            is_kept = v.shape == shape or (not shape and v.shape == (1,))
            spread = v.reshape(()) if v.size == 1 else v.reshape(-1)
            inputs.append(
                n
                if is_kept
                else self.graph.add_constant(n, np.broadcast_to(spread, shape), self.names)
            )
        value = self.names.take_fresh(f"{name}_dequantized")
        title = self.names.take_fresh(f"{value}/DequantizeLinear")
        node = self.add_node("DequantizeLinear", tuple(inputs), value, {}, title)
        if shape:
            node.attrs["axis"] = axis
            if self.graph.opsets.get("", 1) < CHANNELS_OPSET:
                node.domain = MS
                self.graph.opsets.setdefault(MS, 1)
        return value

    def multiply(self, name: str, factors: Sequence[str]) -> str:
        """Return the product of scales: a constant as far as they are constants.

        name: of the weights that they belong to.
        """
        known = self.graph.initializers
        constants = [n for n in factors if n in known]
        computed = [n for n in factors if n not in known]
        if len(constants) != 1 and (constants or not computed):
            values = (known[n].astype(np.float32) for n in constants)
            whole = np.asarray(math.prod(values, start=np.ones((), np.float32)))
            constants = [self.graph.add_constant(f"{name}_scale", whole, self.names)]
        first, *rest = (*constants, *computed)
        for factor in rest:
            value = self.names.take_fresh(f"{name}_scale")
            title = self.names.take_fresh(f"{value}/Mul")
            self.add_node("Mul", (first, factor), value, {}, title)
            first = value
        return first

    def add_node(
        self, op: str, inputs: tuple[str, ...], output: str, attrs: dict[str, Any], name: str
    ) -> Node:
        """Add a node.  Its name is new, or one that the node which had it gives up."""
        node = Node(op, inputs, (output,), dict(attrs), "", name)
        self.graph.nodes.append(node)
        self.makers[output] = node
        return node

    # --- what nodes are

    def _is_single(self, name: str) -> bool:
        """Return whether a scale or a zero point is one number."""
        value = self.graph.initializers.get(name)
        if value is not None:
            return value.size == 1
        maker = self.makers.get(name)
        return maker is not None and name in maker.outputs[1:] and find_units(maker) is not None

    def _find_sums(self, node: Node) -> tuple[Node | None, list[str], str]:
        """Return the node that makes sums, the scales that it multiplies with, and the bias."""
        if node.domain == OURS:
            total, x_scale, w_scale, bias = (*node.inputs, "")[:4]
            scales = [*self._list_factors(x_scale), *self._list_factors(w_scale)]
            return self.makers.get(total), scales, bias
        factors = self._list_factors(node.outputs[0])
        sums = [f for f in factors if (m := self.makers.get(f)) is not None and m.op == "Cast"]
        if len(sums) != 1:
            return None, factors, ""
        factors.remove(sums[0])
        return self.makers.get(self.makers[sums[0]].inputs[0]), factors, ""

    def _list_factors(self, name: str) -> list[str]:
        """Return the values that a tree of Mul nodes multiplies; of a large tree, some products."""
        factors, left = list[str](), [name]
        while left:
            name = left.pop()
            maker = self.makers.get(name)
            if maker is None or (maker.domain, maker.op) != ("", "Mul") or len(left) > MOST_FACTORS:
                factors.append(name)
            else:
                left += reversed(maker.inputs)
            if len(factors) > MOST_FACTORS:
                return factors + left
        return factors

    def _choose_unit(self, q: str, factors: Sequence[str]) -> str:
        """Return the factor that is the scale of the integers `q`; "" if none can be."""
        maker = self.makers.get(q)
        units = self.units.get(q) or (find_units(maker) if maker is not None else None)
        if units is not None and units[0] in factors:
            return units[0]
        # The product is the same with any of them, if it is one number.
        return next((f for f in factors if self._is_single(f)), "")

    def _find_result(self, node: Node) -> Units | None:
        """Return the units of what a product rounds; None if it does not."""
        product = find_product(node)
        is_rounded = product is not None and product.factors is Factors.STATIC and not node.domain
        return (node.inputs[6], node.inputs[7]) if is_rounded else None

    def _find_moved(self, node: Node) -> Units | None:
        """Return the units of integers that a node passes on to its result; None if it does not."""
        op = list_ops().get((node.domain, node.op))
        if op is None or not op.passes_units:
            return None
        places = range(len(node.inputs) if self._is_joined(node) else 1)
        each = {self.units.get(name) for name in (node.inputs[i] for i in places)}
        return each.pop() if len(each) == 1 else None

    def _is_joined(self, node: Node) -> bool:
        op = list_ops().get((node.domain, node.op))
        return op is not None and op.movement is Movement.JOINED

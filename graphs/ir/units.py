"""Scales and zero points of a model's integers, which are checked when the model has been read.

Every way into the package reads a model first, so whatever is asked for, one that does not fit is
refused before work, by the node of the file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from engine.base.aliases import Array
from engine.base.element_types import OF_ONNX, REALS
from engine.graphs.ir.graph import Graph, Node, Subgraph, find_type
from engine.graphs.ir.sites import find_product, is_dequantiser, make_site
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.facts import Factors, Scaling
from engine.kernels.vocabulary.op import Op, TensorType
from engine.kernels.vocabulary.units import check_scale, check_units


def check_integers(graph: Graph, outer: Mapping[str, Array] | None = None) -> None:
    """Check scales and zero points that are constants, also in bodies of control flow.

    graph: with its nodes in topological order; in a body, types of later nodes are not known.
    outer: for a body: the constants of the graphs around it, by the names that the body uses.

    Raises:
        UnsupportedOpError, ShapeError: one does not fit its integers, see `check_units`; constant
            integers do not fit the attributes of their node.
    """
    _Checking(graph, {**(outer or {}), **graph.initializers}).run()


class _Checking:
    """Walk over the nodes of a graph.

    types: of the inputs and the constants; made when a node asks for them.
    made: the element types of integers that nodes make, whose shapes are not known here.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, Array]) -> None:
        self.graph, self.constants = graph, constants
        self.types: dict[str, TensorType] = {}
        self.made: dict[str, str] = {}

    def run(self) -> None:
        for node in self.graph.nodes:
            for body in node.attrs.values():
                if isinstance(body, Subgraph):
                    self.check_body(body)
            op = list_ops().get((node.domain, node.op))
            # A node without a declaration has an error of its own.
            if op is not None and self.graph.opsets.get(node.domain, 1) >= op.since:
                self.check_node(node, op)
        for node, i in list_scales_of_sums(self.graph, self.constants):
            check_scale(make_site(self.graph, node, {}, self.constants), i, is_divisor=False)

    def check_body(self, body: Subgraph) -> None:
        pairs = zip(body.inner, body.captured, strict=True)
        known = {inner: self.constants[n] for inner, n in pairs if n in self.constants}
        check_integers(body.graph, known)

    def check_node(self, node: Node, op: Op) -> None:
        """Check the units of a node, and note what it makes."""
        if op.units:
            if not self.types:
                constants = {n: find_type(a) for n, a in self.constants.items()}
                self.types = _take_halves_for_floats(self.graph, {**self.graph.inputs, **constants})
            site = make_site(self.graph, node, self.types, self.constants)
            places = (row.of for row in op.units if row.of is not None)
            inputs = {i: node.inputs[i] for i in places if i < len(node.inputs)}
            made = {i: self.made[name] for i, name in inputs.items() if name in self.made}
            check_units(op, site, made)
            if all(t is not None for t in site.ins):
                op.infer(site)  # which knows the shapes of blocks
        dtype = self.find_type(node, op)
        if dtype:
            self.made[node.outputs[0]] = dtype

    def find_type(self, node: Node, op: Op) -> str:
        """Return the element type of the integers that a node makes or moves; "" if unknown."""
        if op.scaling is Scaling.MEASURES:
            self.made |= dict.fromkeys(node.outputs[2:], "u8")
            return "u8"
        zeros = [row.zero for row in op.units if row.of is None and row.zero is not None]
        if zeros:
            name = node.inputs[zeros[0]] if zeros[0] < len(node.inputs) else ""
            code = int(node.attrs.get("output_dtype", 0))
            known = self.types.get(name)
            return known.dtype if known is not None else "" if name else OF_ONNX.get(code, "u8")
        return self.made.get(node.inputs[0], "") if op.passes_units and node.inputs else ""


def _take_halves_for_floats(graph: Graph, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Return types with float32 instead of float16 if a graph computes in float16.

    Planning does the same, and rules know float32.  A graph computes in float16 if something else
    than a scale has this type, or all its floats have, or a scale with which a node makes floats of
    integers, which then have this type.
    """
    scales = {
        node.inputs[row.scale]
        for node in graph.nodes
        if not is_dequantiser(node)
        for each in getattr(list_ops().get((node.domain, node.op)), "units", ())
        for row in each.list_all(len(node.inputs))
        if row.scale is not None and row.scale < len(node.inputs)
    }
    floats = {t.dtype for t in types.values() if t.dtype in REALS}
    others = {t.dtype for name, t in types.items() if name not in scales}
    is_half = "f16" in others or floats == {"f16"}
    return {n: t.but(dtype="f32") if is_half and t.dtype == "f16" else t for n, t in types.items()}


def list_scales_of_sums(graph: Graph, constants: Container[str]) -> Iterator[tuple[Node, int]]:
    """Yield the Mul nodes that scale products of integers, and the inputs with constant scales.

    Before   y = Mul(Cast(MatMulInteger(q, w)), Mul(x_scale, w_scale))
    Before   y = Mul(Mul(Cast(MatMulInteger(q, w)), x_scale), w_scale)
    """
    known, checked = set[str](), set[Node]()  # the sums, also as floats
    for node in graph.nodes:
        product = find_product(node)
        is_sum = product is not None and product.factors is Factors.DYNAMIC and not node.domain
        if is_sum or (node.op == "Cast" and node.inputs[0] in known):
            known.add(node.outputs[0])
    if not known:
        return
    makers = {o: n for n in graph.nodes if (n.domain, n.op) == ("", "Mul") for o in n.outputs}
    for node in graph.nodes:
        if (node.domain, node.op) != ("", "Mul") or known.isdisjoint(node.inputs):
            continue
        is_scaled, left = False, [node]
        while left:
            factor = left.pop()
            if factor in checked:
                continue
            checked.add(factor)
            for i, name in enumerate(factor.inputs):
                if name in constants:
                    is_scaled = True
                    yield factor, i
                elif name in makers and name not in known:
                    left.append(makers[name])
        # Until the scale of the weights is multiplied, too, the values are sums.
        if not is_scaled:
            known.add(node.outputs[0])

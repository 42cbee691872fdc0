"""Nodes that only onnxruntime-training writes are replaced by nodes of ops declared here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.passes.makes import where
from engine.kernels.vocabulary.op import MS, OURS


def pool_grads_know_input(graph: Graph) -> Graph:
    """Give pool gradients made by onnxruntime-training the input of their pool.

    Such a node reads dy alone, from which the shape of x cannot always be told: windows may leave a
    rim of x uncovered.

    Before   y, i = MaxPool(x); dx = MaxPoolGrad(dy, i)
    After    y, i = MaxPool(x); dx = engine::MaxPoolGrad(dy, i, x)
    """
    makers = graph.producers()
    named = {n.name: n for n in graph.nodes if n.name}
    for node in graph.nodes:
        if node.domain or node.op not in ("MaxPoolGrad", "AveragePoolGrad"):
            continue
        if node.op == "MaxPoolGrad" and len(node.inputs) > 1:
            pool = makers.get(node.inputs[1])
        else:  # the gradient of the pool "p" is named "p_Grad/..."
            pool = named.get(node.name.split("_Grad/")[0])
        if pool is not None and pool.op == node.op.removesuffix("Grad"):
            node.domain, node.inputs = OURS, (*node.inputs, pool.inputs[0])
    return graph


def lstm_grads_know_peepholes(graph: Graph) -> Graph:
    """Give LSTM gradients made by onnxruntime-training the peephole weights.

    Such a node does not read them, so it would leave out the gradient through the peepholes.

    Before   y, h, c, cells, gates = LSTMTraining(x, ..., p); dx, ..., dp = LSTMGrad(x, ..., dc)
    After    y, ... = engine::LSTMTraining(x, ..., p); dx, ... = engine::LSTMGrad(x, ..., dc, p)
    """
    makers = graph.producers()
    for node in graph.nodes:
        if (node.domain, node.op) != (MS, "LSTMGrad") or len(node.inputs) < 9:
            continue
        maker = makers.get(node.inputs[8])
        if maker is None or maker.op != "LSTMTraining" or not "".join(maker.inputs[7:]):
            continue
        node.inputs = (*node.inputs, *[""] * (12 - len(node.inputs)), maker.inputs[7])
        maker.domain = node.domain = OURS
    return graph


def gru_grads_know_inner_products(graph: Graph) -> Graph:
    """Give the gradients of GRUs that reset behind R_n the products R_n h + b of all steps.

    No output of onnxruntime-training's operator has them, and to compute them again is a twelfth of
    the work of both passes.

    Before   y, h, gates = GRUTraining(x, ...); dx, ... = GRUGrad(x, ..., gates, dy, dh)
    After    y, h, gates, q = GRUTraining(x, ...); dx, ... = GRUGrad(x, ..., gates, dy, dh, q)
    """
    makers, names = graph.producers(), Names(graph)
    for node in graph.nodes:
        if node.op != "GRUGrad" or not node.attrs.get("linear_before_reset"):
            continue
        maker = makers.get(node.inputs[7]) if len(node.inputs) in (9, 10) else None
        if maker is None or maker.op != "GRUTraining" or len(maker.outputs) != 3:
            continue
        inner = names.fresh(f"{maker.outputs[2]}_inner")
        maker.outputs = (*maker.outputs, inner)
        node.inputs = (*node.inputs, *[""] * (10 - len(node.inputs)), inner)
    return graph


def training_forms(graph: Graph) -> Graph:
    """Replace nodes of onnxruntime-training that stand for several nodes of ONNX.

    ConcatTraining also returns the lengths of its parts; they are computed from the shapes.

    Before   y, n = ConcatTraining(a, b), axis=1
    After    y = Concat(a, b), axis=1; n = Concat(Gather(Shape(a), [1]), Gather(Shape(b), [1]))

    Before   da, db = DivGrad(dy, a, b)
    After    q = Div(dy, b); da = q summed to the shape of a; y = Div(a, b);
             db = Neg(Mul(q, y)) summed to the shape of b

    Raises:
        ModelError: a node lacks inputs or the axis that it needs.
    """
    if any((n.domain, n.op) in FORMS for n in graph.nodes):
        names, nodes = Names(graph), graph.nodes
        graph.nodes = []
        for node in nodes:
            form = FORMS.get((node.domain, node.op))
            if form is None:
                graph.nodes.append(node)
            else:
                form.rule(_Nodes(graph, names, node.name or node.op), node)
    return graph


class _Nodes:
    """Appends the nodes that stand for one node; their names begin with the name of that node."""

    def __init__(self, graph: Graph, names: Names, name: str) -> None:
        self.graph, self.names, self.name = graph, names, name

    def op(
        self, op: str, *inputs: str, domain: str = "", outs: Sequence[str] = ("",), **attrs: Any
    ) -> str:
        """Append a node and return its first output.

        outs: the name of each output; an empty one is replaced by a new name.
        """
        title = self.names.fresh(f"{self.name}/{op}")
        made = tuple(o or self.names.fresh(f"{title}_{i}") for i, o in enumerate(outs))
        self.graph.nodes.append(Node(op, inputs, made, attrs, domain, title))
        return made[0]

    def i64s(self, value: Sequence[int]) -> str:
        """Add an initializer i64[n]; return its name."""
        name = self.names.fresh(f"{self.name}/value")
        self.graph.initializers[name] = np.array(value, np.int64)
        return name


def _concat(to: _Nodes, node: Node) -> None:
    axis = node.attrs.get("axis")
    if not isinstance(axis, int) or not node.inputs:
        raise ModelError(f"{node.op} {node.name!r}: {node}; expected inputs and an axis")
    to.op("Concat", *node.inputs, outs=node.outputs[:1], axis=axis)
    if len(node.outputs) > 1 and node.outputs[1]:
        at = to.i64s([axis])
        parts = [to.op("Gather", to.op("Shape", x), at) for x in node.inputs]
        to.op("Concat", *parts, outs=node.outputs[1:], axis=0)


def _div_grad(to: _Nodes, node: Node) -> None:
    if len(node.inputs) != 3 or len(node.outputs) > 2:
        raise ModelError(f"{node.op} {node.name!r}: {node}; expected da, db = DivGrad(dy, a, b)")
    dy, a, b = node.inputs
    quotient = to.op("Div", dy, b)
    shapes = [to.op("Shape", x) for x in (a, b)]
    axes = (to.names.fresh(f"{to.name}/a_axes"), to.names.fresh(f"{to.name}/b_axes"))
    to.op("BroadcastGradientArgs", *shapes, domain=MS, outs=axes)
    for i, out in enumerate(node.outputs):
        if out:
            whole = to.op("Neg", to.op("Mul", quotient, to.op("Div", a, b))) if i else quotient
            total = to.op(
                "ReduceSumTraining", whole, axes[i], domain=MS, keepdims=1, noop_with_empty_axes=1
            )
            to.op("Reshape", total, shapes[i], outs=(out,))


@dataclass(frozen=True, slots=True)
class Form:
    """How `training_forms` replaces an op.

    rule: appends the nodes that stand for a node.
    makes: the ops of these nodes, as `op_keys` reads them.
    """

    rule: Callable[[_Nodes, Node], None]
    makes: str


FORMS = {
    (MS, "ConcatTraining"): Form(_concat, "Concat Gather Shape"),
    (MS, "DivGrad"): Form(
        _div_grad,
        f"Div Mul Neg Reshape Shape {MS}::BroadcastGradientArgs {MS}::ReduceSumTraining",
    ),
}
POOLS_MAKE = where({f"{name}PoolGrad": f"{OURS}::{name}PoolGrad" for name in ("Max", "Average")})
LSTMS_MAKE = where({f"{MS}::{name}": f"{OURS}::{name}" for name in ("LSTMGrad", "LSTMTraining")})
FORMS_MAKE = where({f"{domain}::{name}": form.makes for (domain, name), form in FORMS.items()})

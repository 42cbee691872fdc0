"""Loss scale: the backward pass begins with a factor, by which each gradient is divided again.

Between, gradients that float16 would round to zero are large enough for it.  The factor is an input
of the plan, so that it can change from step to step.

    Before   dy = LossGrad(loss_grad, ...); dw = Gemm(dy, x); accumulate(dw)
    After    begin = Mul(loss_grad, #loss_scale); inverse = Reciprocal(#loss_scale);
             dy = LossGrad(begin, ...); dw = Gemm(dy, x); own = Mul(dw, inverse); accumulate(own)

The pull to anchors (proximal.py) is added to gradients of the loss, and multiplied by the factor.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from engine.base.element_types import ONNX_CODE
from engine.base.errors import ModelError
from engine.base.proximal import MU
from engine.graphs.ir.graph import Graph, Names, Node, find_type
from engine.graphs.offline.loss_shares import read_instead
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import LOSS_SCALE


def scale_loss(training: Graph, loss: str, buffers: Collection[str]) -> Graph:
    """Return a training graph with the input `LOSS_SCALE`; the graph given stays as it is.

    buffers: in which it accumulates the gradients.

    Raises:
        ModelError: the graph has no initializer that begins the backward pass, or a value of that
            name.
    """
    graph, seed = training.copy(), f"{loss}_grad"
    if LOSS_SCALE in graph.list_values():
        raise ModelError(f"the training model has a value with the name {LOSS_SCALE!r}")
    if seed not in graph.initializers:
        raise ModelError(
            f"the loss of the training model cannot be scaled, as its backward pass does not begin "
            f"with an initializer {seed!r}: use loss_scale=1, which does not scale it"
        )
    job = _Scaling(graph, Names(graph))
    job.begin(seed)
    job.divide(buffers)
    graph.inputs[LOSS_SCALE] = TensorType("f32", ())
    graph.nodes[:0] = job.first
    return graph


def divide_in_updates(graph: Graph, gradients: dict[str, str]) -> str:
    """Let updates divide the gradients that they read, which saves a pass over all of them.

    Before   own = Mul(dw, inverse); AdamWOptimizer(.., own, ..)
    After    factor = ...; for AdamWOptimizer(.., dw, .., factor)

    gradients: the gradients of the parameters, which `scale_loss` has made; they become undivided.

    Returns the factor of updates; empty if the loss of the graph is not scaled, or if other nodes
    follow the divisions: ranks add up what is divided.
    """
    if LOSS_SCALE not in graph.inputs:
        return ""
    makers, names = graph.find_producers(), Names(graph)
    factors = {n.outputs[0] for n in graph.nodes if n.op == "Cast" and n.inputs[0] == LOSS_SCALE}
    factors.add(LOSS_SCALE)
    inverses = {
        n.outputs[0] for n in graph.nodes if n.op == "Reciprocal" and n.inputs[0] in factors
    }
    if not all(inverses & {*makers[own].inputs[1:]} for own in gradients.values()):
        return ""
    for name, own in gradients.items():
        graph.nodes.remove(makers[own])
        gradients[name] = makers[own].inputs[0]
    wide, factor, shape = (names.take_fresh(f"{LOSS_SCALE}/{n}") for n in ("wide", "factor", "1"))
    inverse = names.take_fresh(f"{LOSS_SCALE}/wide inverse")
    graph.initializers[shape] = np.ones(1, np.int64)
    graph.nodes += [
        Node("Cast", (LOSS_SCALE,), (wide,), {"to": ONNX_CODE["f64"]}, "", wide),
        Node("Reciprocal", (wide,), (inverse,), {}, "", inverse),
        Node("Reshape", (inverse, shape), (factor,), {}, "", factor),
    ]
    return factor


class _Scaling:
    """State of one rewriting; first: the nodes that come before all others."""

    def __init__(self, graph: Graph, names: Names) -> None:
        self.graph, self.names = graph, names
        self.first: list[Node] = []
        self._casts: dict[str, str] = {"f32": LOSS_SCALE}
        self._inverses: dict[str, str] = {}

    def begin(self, seed: str) -> None:
        """Multiply what begins the backward pass, and the pull to anchors."""
        graph = self.graph
        kinds = {seed: find_type(graph.initializers[seed]).dtype}
        if MU in graph.inputs:
            kinds[MU] = graph.inputs[MU].dtype
        for name, kind in kinds.items():
            made = self.names.take_fresh(f"{name}/scaled")
            read_instead(graph, name, made)
            self._add("Mul", (name, self._cast(kind)), made)

    def divide(self, buffers: Collection[str]) -> None:
        """Divide each gradient, and accumulate it, as soon as it is complete.

        Products add to buffers themselves, but not what must be divided first.  Were it accumulated
        at the end of the graph, all that is divided would live until then.
        """
        kinds = {n: self.graph.inputs[n].dtype for n in buffers}
        takers = [n for n in self.graph.nodes if n.inputs and n.inputs[0] in kinds]
        divided: dict[str, list[Node]] = {}
        for node in takers:
            gradient, kind = node.inputs[1], kinds[node.inputs[0]]
            made = self.names.take_fresh(f"{gradient}/own")
            inputs = (gradient, self._invert(kind))
            node.inputs = (node.inputs[0], made, *node.inputs[2:])
            division = Node("Mul", inputs, (made,), {}, "", made)
            divided.setdefault(gradient, []).extend((division, node))
        moved = set(takers)
        nodes, self.graph.nodes = [n for n in self.graph.nodes if n not in moved], []
        for name in divided.keys() - {o for node in nodes for o in node.outputs}:
            self.graph.nodes += divided[name]  # of a constant or an input
        for node in nodes:
            self.graph.nodes.append(node)
            for output in node.outputs:
                self.graph.nodes += divided.get(output, ())

    def _invert(self, kind: str) -> str:
        if kind not in self._inverses:
            made = self.names.take_fresh(f"{LOSS_SCALE}/inverse {kind}")
            self._inverses[kind] = self._add("Reciprocal", (self._cast(kind),), made)
        return self._inverses[kind]

    def _cast(self, kind: str) -> str:
        """Return the factor in this element type."""
        if kind not in self._casts:
            made = self.names.take_fresh(f"{LOSS_SCALE}/{kind}")
            self._casts[kind] = self._add("Cast", (LOSS_SCALE,), made, to=ONNX_CODE[kind])
        return self._casts[kind]

    def _add(self, op: str, inputs: tuple[str, ...], made: str, **attrs: int) -> str:
        self.first.append(Node(op, inputs, (made,), dict(attrs), "", made))
        return made

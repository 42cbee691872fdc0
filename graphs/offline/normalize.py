"""Normal forms: small changes to a model before and after its training graph is made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.graphs.ir.graph import Graph, Names, Node, Subgraph, find_type
from engine.graphs.offline.dropped_paths import expect_masks
from engine.graphs.passes.batchnorm import drop_statistics, list_batch_norms, read_values
from engine.graphs.passes.simplify import prune
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS


def name_nodes(graph: Graph) -> Graph:
    """Give every node a name of its own; of nodes with the same name, the first keeps it.

    Before   Relu "", Gemm "fc", Gemm "fc"
    After    Relu "Relu_0", Gemm "fc", Gemm "fc_1"
    """
    names = Names(graph)
    seen: set[str] = set()
    for node in graph.nodes:
        if not node.name or node.name in seen:
            node.name = names.take_fresh(node.name or f"{node.op}_0")
        seen.add(node.name)
    return graph


def fold_factors(graph: Graph) -> Graph:
    """Make alpha, beta and transA of Gemm, by constant weights, part of what it reads, in place.

    A bias that is not one number for each column is added afterwards.

    Before   y = Gemm(x, w, b) alpha=2 beta=3 transA=1;       z = Gemm(x, w, c) beta=3    c computed
    After    y = Gemm(Transpose(x), w', b');                  z = Add(Gemm(x, w), Mul(c, 3))
             w' = 2 w; b' = 3 b
    """
    work = _GemmFactors(graph)
    for node in list(graph.nodes):
        is_gemm = (node.domain, node.op) == ("", "Gemm")
        if is_gemm and node.inputs[1] in graph.initializers:
            work.fold(node)
    return graph.sort()


class _GemmFactors:
    """Folding of the factors of Gemm nodes.  scaled: constants times factors, which are shared."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph)
        self.scaled: dict[tuple[str, float], str] = {}

    def fold(self, node: Node) -> None:
        """Fold the factors of one node."""
        x, w, *bias = filter(None, node.inputs)
        alpha, beta = (node.attrs.pop(name, 1.0) for name in ("alpha", "beta"))
        if node.attrs.pop("transA", 0):
            turned = self.names.take_fresh(f"{x}_transposed")
            x = self.append("Transpose", (x,), turned, perm=[1, 0])
        b = bias[0] if bias and beta else ""
        weights = self.graph.initializers[w]
        row = self.find_row(b, weights.shape[0 if node.attrs.get("transB", 0) else 1])
        if b and not row:
            y = node.outputs[0]
            node.outputs = (self.names.take_fresh(f"{y}_product"),)
            self.append("Add", (node.outputs[0], self.scale(b, beta, weights.dtype)), y)
        inputs = x, self.scale(w, alpha, weights.dtype), self.scale(row, beta, weights.dtype)
        node.inputs = tuple(filter(None, inputs))

    def find_row(self, name: str, columns: int) -> str:
        """Return a constant bias as one of the shape [columns]; "" if it is not such a one."""
        bias = self.graph.initializers.get(name)
        if bias is None or bias.shape == (columns,):
            return "" if bias is None else name
        if bias.shape not in ((), (1,), (1, 1), (1, columns)):
            return ""
        return self.graph.add_constant(
            name, np.broadcast_to(bias.reshape(-1), (columns,)), self.names
        )

    def scale(self, name: str, factor: float, dtype: Any) -> str:
        """Return a value of a NumPy dtype times a factor; a constant if it is one."""
        if not name or factor == 1:
            return name
        if (name, factor) not in self.scaled:
            value, number = self.graph.initializers.get(name), np.array(factor, dtype)
            if value is not None:
                made = self.graph.add_constant(name, value * number, self.names)
            else:
                unit = self.graph.add_constant(f"{name}_factor", number, self.names)
                made = self.names.take_fresh(f"{name}_scaled")
                self.append("Mul", (name, unit), made)
            self.scaled[name, factor] = made
        return self.scaled[name, factor]

    def append(self, op: str, inputs: tuple[str, ...], output: str, **attrs: Any) -> str:
        """Append a node; return the value that it makes."""
        title = self.names.take_fresh(f"{output}/{op}")
        self.graph.nodes.append(Node(op, inputs, (output,), attrs, "", title))
        return output


def separate_equal(graph: Graph) -> Graph:
    """Give every parameter that PyTorch's older exporter stored once with an equal one its own
    copy.

    In evaluation mode that exporter stores equal tensors once, and an Identity gives the tensor its
    other names.  If they were trained this way, they would stay equal, and layers would share
    running statistics.  Parameters that a module shares on purpose have one name, and no Identity.

    The exporter names such a node `Identity_1`, and its output like the parameter.  Copies that the
    module itself makes are different: the names of their nodes begin with a scope, `/` or `node_`,
    or, as in PyTorch 1.12, the names of their outputs are numbers.  Weights that the exporter has
    transposed, such as `onnx::MatMul_7`, are excluded too: a layer that is used twice has two equal
    ones.

    Before   initializers n.weight;  m.weight = Identity(n.weight)          producer pytorch
    After    initializers n.weight, m.weight
    """
    if graph.producer != "pytorch":
        return graph
    kept, ends = [], set(graph.outputs)
    for node in graph.nodes:
        is_name = re.fullmatch(r"Identity_\d+", node.name) and not re.match(
            r"onnx::|\d+$", node.outputs[0]
        )
        array = graph.initializers.get(node.inputs[0]) if node.op == "Identity" else None
        if array is None or not is_name or node.domain or node.outputs[0] in ends:
            kept.append(node)
        else:
            graph.initializers[node.outputs[0]] = array
            graph.types.pop(node.outputs[0], None)
    graph.nodes = kept
    return graph


def turn_into_inputs(graph: Graph, names: Iterable[str]) -> dict[str, Array]:
    """Turn initializers into inputs, after the other inputs; return their arrays.

    Before   inputs x; initializers w, c
    After    inputs x, w; initializers c
    """
    chosen = set(names)
    arrays = {name: array for name, array in graph.initializers.items() if name in chosen}
    for name, array in arrays.items():
        graph.inputs[name] = find_type(array)
        del graph.initializers[name]
    return arrays


def rename(graph: Graph, old: str, new: str) -> Graph:
    """Rename a value that a node makes, in all nodes and their bodies, outputs and types."""

    def rename_all(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new if n == old else n for n in names)

    for node in graph.nodes:
        node.inputs, node.outputs = rename_all(node.inputs), rename_all(node.outputs)
        for key, value in node.attrs.items():
            if isinstance(value, Subgraph) and old in value.captured:
                node.attrs[key] = value.rename_values({old: new})
    graph.outputs = list(rename_all(graph.outputs))
    if old in graph.types:
        graph.types[new] = graph.types.pop(old)
    return graph


def set_inference_mode(graph: Graph) -> Graph:
    """Let batch normalisations use their running statistics, and dropouts drop nothing.

    Ops that only control gradients become copies of their input.  Masks of dropped paths get their
    expectation, see `expect_masks`.

    Before   y, m, v = BatchNormalization(x, s, b, m0, v0) training_mode=1;  z = Dropout(y, r, true)
    After    y       = BatchNormalization(x, s, b, m0, v0) training_mode=0;  z = Dropout(y, r, "")

    Raises:
        ModelError: something reads the statistics that only training computes.
    """
    read = read_values(graph)
    for node in list_batch_norms(graph):
        drop_statistics(node, read)
    for node in graph.nodes:
        if node.op == "Dropout" and not node.domain:
            node.inputs = (*node.inputs[:2], *("" for _ in node.inputs[2:]))
    return expect_masks(pass_on(graph))


def pass_on(graph: Graph) -> Graph:
    """Replace the ops that only control gradients, once these are known or not wanted.

    Nodes that only a gradient needed are dropped too.

    Before   z = StopGradient(y);  d = Cotangent(z);  e = Neg(d);  w = Redirect(z, d, x, e)
    After    z = Identity(y);      w = Identity(z)
    """
    known = list_ops()
    nodes = [n for n in graph.nodes if (op := known.get((n.domain, n.op))) and op.is_identity]
    for node in nodes:
        node.op, node.domain, node.inputs = "Identity", "", node.inputs[:1]
    if nodes and not any(node.domain == OURS for node in prune(graph).nodes):
        graph.opsets.pop(OURS, None)
    return graph

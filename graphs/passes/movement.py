"""Data movement: joining and removing transposes and reshapes, or moving them into a product."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.graphs.ir.graph import Constants, Graph, Node, Types
from engine.graphs.ir.sites import find_product
from engine.graphs.passes.may_add import add_by_table
from engine.graphs.passes.simplify import prune
from engine.kernels.vocabulary.facts import GEMM, MATMUL
from engine.kernels.vocabulary.op import MS, TensorType
from engine.kernels.vocabulary.sizes import make_array

_VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}
MAY_ADD = add_by_table(
    {name: "Identity Reshape" for name in (*sorted(_VIEWS), "Transpose")}
    | {"MatMul Transpose": f"{MS}::FusedMatMul"}
)


def cancel_movement(graph: Graph, types: Types, constants: Constants) -> Graph:
    """Remove unnecessary transposes and reshapes, in place; every shape must be known.

    Two in a row become one.  One that changes nothing is dropped.  A product reads a transposed
    operand itself.

    Before   b = Transpose(a) [1,0,2]; c = Transpose(b) [1,0,2]; d = MatMul(c, Transpose(w))
    After    d = FusedMatMul(a, w) transB=1

    Before   b = Reshape(a, [6,4]); c = Reshape(b, [2,3,4])             a: f32[2,3,4]
    After    c = a
    """
    work = _Movement(graph, types, constants)
    for node in graph.nodes:
        work.visit(node)
    return prune(graph)


class _Movement:
    """Walk over the nodes in topological order.

    alias: for each removed value, the equal value that replaces it.
    """

    def __init__(self, graph: Graph, types: Types, constants: Constants) -> None:
        self.graph, self.types, self.constants = graph, types, constants
        self.makers: dict[str, Node] = {}
        self.alias: dict[str, str] = {}
        self.outputs = set(graph.outputs)
        self.readers = graph.find_consumers()

    def visit(self, node: Node) -> None:
        """Simplify one node, by its op."""
        if not self.alias.keys().isdisjoint(node.inputs):
            node.inputs = tuple([self.alias.get(i, i) for i in node.inputs])
        if not node.domain and node.op == "Transpose":
            self.join_transposes(node)
        elif not node.domain and node.op in _VIEWS:
            self.join_views(node)
        elif find_product(node) == MATMUL:
            self.untranspose_product(node)
        elif find_product(node) == GEMM:
            self.untranspose_gemm(node)
        self.makers.update((o, node) for o in node.outputs if o)

    def find_maker(self, node: Node, *ops: str) -> Node | None:
        """Return the node that makes a node's first input, if it is one of these ops of ONNX's
        domain.
        """
        maker = self.makers.get(node.inputs[0])
        return maker if maker and not maker.domain and maker.op in ops else None

    def replace(self, node: Node, name: str) -> None:
        """Let the readers of a node's output read another value of the same type."""
        out = node.outputs[0]
        if out in self.outputs:
            node.op, node.domain, node.inputs, node.attrs = "Identity", "", (name,), {}
        else:
            self.alias[out] = name

    def join_transposes(self, node: Node) -> None:
        """Join a Transpose with one before it, and simplify the result if possible."""
        perm = _find_perm(node, self.types)
        inner = self.find_maker(node, "Transpose")
        if inner is not None:
            first = _find_perm(inner, self.types)
            perm = [first[p] for p in perm]
            node.inputs, node.attrs = inner.inputs[:1], {"perm": perm}
        t = self.types[node.inputs[0]]
        if perm == sorted(perm):
            self.replace(node, node.inputs[0])
        elif _keeps_order(perm, t.dims):
            self.reshape_to(node)
        else:
            self.swap_product(node, perm)

    def swap_product(self, node: Node, perm: list[int]) -> None:
        """Compute a transposed product as (A B)^T = B^T A^T, if nothing else reads the product."""
        source = node.inputs[0]
        maker = self.makers.get(source)
        rank = len(perm)
        is_last = perm == [*range(rank - 2), rank - 1, rank - 2]
        if maker is None or not is_last or len(self.readers.get(source, ())) != 1:
            return
        if source in self.outputs or not is_plain_product(maker):
            return
        a, b = (self.types[i] for i in maker.inputs[:2])
        if min(a.rank, b.rank) < 2 or _is_set(maker, "transBatch"):
            return
        ta, tb = (int(maker.attrs.get(f, 0)) for f in ("transA", "transB"))
        op, domain = (maker.op, "") if maker.op == "Gemm" else ("FusedMatMul", MS)
        node.op, node.domain, node.inputs = op, domain, maker.inputs[1::-1]
        alpha = maker.attrs.get("alpha", 1.0)
        node.attrs = {"transA": 1 - tb, "transB": 1 - ta, "alpha": alpha}

    def join_views(self, node: Node) -> None:
        """Join a reshape with one before it; drop it if it no longer changes the shape."""
        t = self.types[node.outputs[0]]
        inner = self.find_maker(node, *_VIEWS)
        if inner is not None:
            node.inputs = (inner.inputs[0], *node.inputs[1:])
        if self.types[node.inputs[0]].shape == t.shape:
            self.replace(node, node.inputs[0])
        elif inner is not None:
            self.reshape_to(node)

    def reshape_to(self, node: Node) -> None:
        """Turn a node into a Reshape of its first input to the shape that its output has."""
        shape = self.types[node.outputs[0]].dims
        name = f"{node.outputs[0]}#shape"
        value = make_array(shape, np.int64)
        self.graph.initializers[name] = self.constants[name] = value
        self.types[name] = TensorType("i64", value.shape)
        node.op, node.domain, node.inputs, node.attrs = "Reshape", "", (node.inputs[0], name), {}
        if 0 in shape:
            node.attrs = {"allowzero": 1}

    def untranspose_product(self, node: Node) -> None:
        """Let MatMul read an operand before its last two axes are transposed."""
        inputs = list(node.inputs)
        flags = {f: int(node.attrs.get(f, 0)) for f in ("transA", "transB")}
        if _is_set(node, "transBatch") or any(self.types[i].rank < 2 for i in inputs[:2]):
            return
        for i, flag in enumerate(flags):
            maker = self.makers.get(inputs[i])
            if maker is None or maker.domain or maker.op != "Transpose":
                continue
            perm = _find_perm(maker, self.types)
            rank = len(perm)
            if perm == [*range(rank - 2), rank - 1, rank - 2]:
                inputs[i] = maker.inputs[0]
                flags[flag] ^= 1
        if tuple(inputs) != node.inputs:
            node.op, node.domain, node.inputs = "FusedMatMul", MS, tuple(inputs)
            node.attrs = {"alpha": 1.0, **node.attrs, **flags}

    def untranspose_gemm(self, node: Node) -> None:
        """Let Gemm read a transposed operand before it is transposed."""
        inputs = list(node.inputs)
        for i, flag in enumerate(("transA", "transB")):
            maker = self.makers.get(inputs[i])
            if maker is not None and not maker.domain and maker.op == "Transpose":
                inputs[i] = maker.inputs[0]
                node.attrs = {**node.attrs, flag: 1 - int(node.attrs.get(flag, 0))}
        node.inputs = tuple(inputs)


def is_plain_product(node: Node) -> bool:
    """Return whether a node only multiplies its two inputs."""
    return find_product(node) in (GEMM, MATMUL) and len(node.inputs) == 2


def _is_set(node: Node, start: str) -> bool:
    """Return whether an attribute whose name begins with `start` is set."""
    return any(value for name, value in node.attrs.items() if name.startswith(start))


def _find_perm(node: Node, types: Types) -> list[int]:
    """Return the permutation of a Transpose; by default it reverses the axes."""
    rank = types[node.inputs[0]].rank
    return [int(p) for p in node.attrs.get("perm") or reversed(range(rank))]


def _keeps_order(perm: Iterable[int], dims: tuple[int, ...]) -> bool:
    """Return whether a transpose only moves axes of size 1, so that no byte moves."""
    moved = [p for p in perm if dims[p] != 1]
    return moved == sorted(moved)

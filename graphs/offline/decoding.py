"""Graphs of a decoder for generation: a prompt without caches, then tokens within them, in place.

A decoder takes the keys and values of earlier tokens, and returns these and the keys and values of
the tokens in its input.  A plan has fixed shapes, but the past grows by one row for each token.  So
a cache gets a capacity, and how many of its rows count is a number of each run, the input `FILLED`:

    Before   present = Concat(past, new), axis=2      past [batch, heads, past, width]
             scores = MatMul(h, w)                    [batch, tokens, scores]
    Prompt   present = new;  scores = MatMul(Gather(h, FILLED - 1), w)
    Step     present = WriteCache(past, new, FILLED)  past [batch, heads, capacity, width], in place

In a step, the arithmetic of the graph on shapes sees a past of `capacity - 1` rows.  The mask that
the model takes hides the rows that do not count; an Attention or GroupQueryAttention that gets the
caches itself gets their number.

A prompt may be longer than its tokens, whose number `FILLED` is there; only the last of them needs
scores.  The products by which a model ends take each row apart, so they get that row alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.base.errors import UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import is_dequantiser
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.plan.plan import FILLED

# Nodes that make each row of their first operand alone: always, if the weights are a matrix; and of
# either operand, if the other one has no rows.
_BY_ROW = {("", "Cast"), ("", "Identity"), (MS, "MatMulNBits")}
_PRODUCTS = {("", "MatMul"), ("", "MatMulInteger")}
_PAIRS = {("", "Add"), ("", "Mul")}


def place_caches(
    graph: Graph,
    presents: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    capacity: int,
    scores: str = "",
) -> Graph:
    """Rewrite the graph of a decoder, in place, for a prompt or for a step; return it.

    The graph of a step has the further input `FILLED`, and no caches among its outputs; so has a
    prompt with `scores`, whose output then has the scores of the last token that counts.

    presents: by the input that holds keys or values of the tokens before, the output that adds the
        new ones to them.
    shapes: the shapes of all other inputs.
    capacity: the rows of the caches for a step, which adds one token; 0 for a prompt.
    scores: the output of a prompt that has a row for each token; "": all outputs stay whole.

    Raises:
        UnsupportedOpError: a node reads a cache in a way that this module does not know, naming it.
    """
    return _Rewriting(graph, presents, shapes, capacity, scores).run()


class _Rewriting:
    """The rewriting of one graph; see `place_caches`."""

    def __init__(
        self,
        graph: Graph,
        presents: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]],
        capacity: int,
        scores: str,
    ) -> None:
        self.graph, self.shapes, self.capacity = graph, shapes, capacity
        self.presents, self.scores = presents, scores
        self.batch = next(iter(shapes.values()))[0]
        self.caches: dict[str, TensorType] = {}
        self.names, self.nodes = Names(graph), list[Node]()
        self._counting = ""  # the rows that count with the new one, once a node reads that

    def run(self) -> Graph:
        """Rewrite the graph, and return it."""
        graph = self.graph
        for name, shape in self.shapes.items():
            graph.inputs[name] = graph.inputs[name].but(shape)
        for name in self.presents:
            t = graph.inputs.pop(name)
            self.caches[name] = t.but((self.batch, t.shape[1], self.capacity, t.shape[3]))
        if self.capacity:
            graph.inputs |= self.caches
            graph.inputs[FILLED] = TensorType("i64", (self.batch,))
            gone = set(self.presents.values())
            graph.outputs = [name for name in graph.outputs if name not in gone]
        graph.types = {}  # they name sizes of the past, which are others now
        for node in graph.nodes:
            read = [name for name in node.list_reads() if name in self.caches]
            if read:
                self._rewrite(node, read)
            else:
                self.nodes.append(node)
        graph.nodes = self.nodes
        if self.scores and not self.capacity:
            graph.inputs[FILLED] = TensorType("i64", (self.batch,))
            self._keep_last_row()
        return graph.check()

    # --- the scores of a prompt

    def _keep_last_row(self) -> None:
        """Compute the scores of the last token that counts alone."""
        graph, self.nodes = self.graph, []
        first = self._add("Slice", FILLED, self._add_constant([0]), self._add_constant([1]))
        at = self._add("Sub", first, self._add_constant([1]))
        index, self.nodes = self.nodes, []
        makers = {name: node for node in graph.nodes for name in node.outputs}
        readers = graph.find_consumers()
        value, tail = self.scores, list[tuple[Node, int]]()
        while (step := self._find_row(value, makers)) is not None:
            reads = len(readers.get(value, ()))
            if reads != len(tail[-1:]) or (tail and value in graph.outputs):
                break  # something else needs all rows
            tail.append(step)
            value = step[0].inputs[step[1]]
        last, place = tail[-1] if tail else (None, 0)
        whole = value
        if last is None:
            whole = self.names.take_fresh(f"{value}_rows")
            _rename(graph, value, whole)
        row = self._add("Gather", whole, at, out="" if last else value, axis=1)
        (gather,) = self.nodes
        if last is None:
            graph.nodes = [*graph.nodes, *index, gather]
            return
        last.inputs = (*last.inputs[:place], row, *last.inputs[place + 1 :])
        where = graph.nodes.index(last)
        graph.nodes[where:where] = [*index, gather]

    def _find_row(self, value: str, makers: Mapping[str, Node]) -> tuple[Node, int] | None:
        """Return the node that makes a value row by row, and its operand of rows; None otherwise.

        The last axis of that operand is a row.
        """
        node = makers.get(value)
        if node is None:
            return None
        kind = node.domain, node.op
        if kind in _BY_ROW or (kind in _PRODUCTS and self._find_rank(node.inputs[1], makers) == 2):
            return node, 0
        if kind in _PAIRS:
            for place in (0, 1):
                rank = self._find_rank(node.inputs[1 - place], makers)
                if rank is not None and rank <= 1:
                    return node, place
        return None

    def _find_rank(self, name: str, makers: Mapping[str, Node]) -> int | None:
        """Return the rank of a parameter or a constant, or of one that is dequantised or moved."""
        t, value, maker = self.graph.inputs.get(name), self.graph.initializers.get(name), None
        if t is None and value is None:
            maker = makers.get(name)
        if maker is not None and (
            is_dequantiser(maker) or maker.op in ("Transpose", "Cast", "Identity")
        ):
            return self._find_rank(maker.inputs[0], makers)
        return t.rank if t is not None else None if value is None else value.ndim

    # --- caches

    def _rewrite(self, node: Node, read: Sequence[str]) -> None:
        """Append nodes in the place of one that reads caches."""
        kind, (past, *_) = (node.domain, node.op), read
        if kind == ("", "Shape"):
            _, heads, rows, width = self.caches[past].dims
            shape = (self.batch, heads, max(rows - 1, 0), width)
            begin, end = node.attrs.get("start"), node.attrs.get("end")
            self.graph.initializers[node.outputs[0]] = np.array(shape[begin:end], np.int64)
        elif kind == ("", "Concat") and self._is_growth(node):
            (present,) = node.outputs
            self._write(past, node.inputs[1], present)
        elif kind == ("", "Attention") and node.inputs[4:6] == tuple(read):
            self._rewrite_attention(node)
        elif kind == (MS, "GroupQueryAttention") and node.inputs[3:5] == tuple(read):
            self._rewrite_grouped(node)
        else:
            raise UnsupportedOpError(
                f"{node.op} {node.name!r} reads the cache {past!r}; supported: Concat of the cache "
                "and the new rows along axis 2, Attention, com.microsoft::GroupQueryAttention"
            )

    def _is_growth(self, node: Node) -> bool:
        """Return whether a Concat adds rows to a cache, which nothing else of it is."""
        return (
            len(node.inputs) == 2
            and node.inputs[0] in self.caches
            and node.inputs[1] not in self.caches
            and node.attrs.get("axis") in (2, -2)
        )

    # --- nodes

    def _add(self, op: str, *inputs: str, out: str = "", domain: str = "", **attrs: Any) -> str:
        """Append a node of one output; return the name of that."""
        out = out or self.names.take_fresh(f"decoding.{op.lower()}")
        self.nodes.append(Node(op, inputs, (out,), attrs, domain, self.names.take_fresh(out)))
        return out

    def _add_constant(self, values: Sequence[int]) -> str:
        name = self.names.take_fresh("decoding.constant")
        self.graph.initializers[name] = np.array(values, np.int64)
        return name

    def _write(self, past: str, new: str, present: str = "") -> str:
        """Append the node that adds rows to a cache; return the name of the cache after it."""
        if not self.capacity:
            return self._add("Identity", new, out=present)
        return self._add("WriteCache", past, new, FILLED, out=present, domain=OURS)

    def _count(self) -> str:
        """Return the number of rows that count with the new one, for each sample."""
        if not self._counting:
            self._counting = self._add("Add", FILLED, self._add_constant([1]))
        return self._counting

    def _split_heads(self, x: str, heads: int) -> str:
        """[batch, length, heads * width] -> [batch, heads, length, width]."""
        apart = self._add("Reshape", x, self._add_constant([0, 0, heads, -1]))
        return self._add("Transpose", apart, perm=[0, 2, 1, 3])

    def _attend(
        self, node: Node, q: str, k: str, v: str, mask: str, attrs: Mapping[str, Any], *, flat: bool
    ) -> None:
        """Append an Attention of heads over whole caches; it gets the number of rows that count.

        flat: whether the output has the heads side by side.
        """
        y, *more = node.outputs
        at = self.names.take_fresh(y) if flat else y
        seen = more[2:]  # the scores; the caches are there already
        attrs = {k: v for k, v in attrs.items() if k not in ("q_num_heads", "kv_num_heads")}
        outputs = (at, *(("", "", *seen) if seen else ()))
        inputs = (q, k, v, mask, "", "", self._count())
        self.nodes.append(Node("Attention", inputs, outputs, attrs, "", node.name))
        if flat:
            rows = self._add("Transpose", at, perm=[0, 2, 1, 3])
            self._add("Reshape", rows, self._add_constant([0, 0, -1]), out=y)

    def _rewrite_attention(self, node: Node) -> None:
        """Let ONNX's Attention read whole caches, which it gets the new rows of already."""
        q, k, v, mask, past_key, past_value = (*node.inputs, *[""] * 6)[:6]
        if not self.capacity:
            node.inputs = tuple(node.inputs[:4])
            self.nodes.append(node)
            return
        heads, kv_heads = (node.attrs.get(n, 0) for n in ("q_num_heads", "kv_num_heads"))
        if heads:
            q, k, v = (
                self._split_heads(x, count)
                for x, count in ((q, heads), (k, kv_heads), (v, kv_heads))
            )
        _, present_key, present_value = (*node.outputs, "", "")[:3]
        k = self._write(past_key, k, present_key)
        v = self._write(past_value, v, present_value)
        self._attend(node, q, k, v, mask, node.attrs, flat=bool(heads))

    def _rewrite_grouped(self, node: Node) -> None:
        """Replace a GroupQueryAttention by the rotation and the Attention that it stands for."""
        inputs = [*node.inputs, *[""] * 14]
        if not self.capacity:
            node.inputs = (*inputs[:3], "", "", *node.inputs[5:])
            self.nodes.append(node)
            return
        attrs = node.attrs
        q, k, v, past_key, past_value = inputs[:5]
        heads, kv_heads = int(attrs["num_heads"]), int(attrs["kv_num_heads"])
        width = self.caches[past_key].dims[3]
        if not k:
            parts = [self.names.take_fresh(f"{q}.{part}") for part in "qkv"]
            sizes = self._add_constant([heads * width, kv_heads * width, kv_heads * width])
            self.nodes.append(Node("Split", (q, sizes), tuple(parts), {"axis": 2}, "", parts[0]))
            q, k, v = parts
        if attrs.get("do_rotary"):
            position = inputs[9] or self._add("Reshape", FILLED, self._add_constant([-1, 1]))
            # The tables say how much of a head is rotated: a column for each pair of numbers.
            table = self.graph.initializers.get(inputs[7])
            rotated = 0 if table is None else 2 * table.shape[1]
            q, k = (
                self._add(
                    "RotaryEmbedding", x, position, inputs[7], inputs[8], domain=MS,
                    num_heads=count, interleaved=attrs.get("rotary_interleaved", 0),
                    rotary_embedding_dim=rotated,
                )
                for x, count in ((q, heads), (k, kv_heads))
            )  # fmt: skip
        q, k, v = (
            self._split_heads(x, count) for x, count in ((q, heads), (k, kv_heads), (v, kv_heads))
        )
        _, present_key, present_value = (*node.outputs, "", "")[:3]
        k = self._write(past_key, k, present_key)
        v = self._write(past_value, v, present_value)
        window = int(attrs.get("local_window_size", -1))  # counts the query itself
        wanted: dict[str, Any] = {
            "is_causal": 1,
            "scale": float(attrs.get("scale", 0.0)) or width**-0.5,
            "softcap": float(attrs.get("softcap", 0.0)),
            "left_window_size": window - 1 if window > 0 else -1,
        }
        self._attend(node, q, k, v, inputs[10], wanted, flat=True)


def _rename(graph: Graph, name: str, other: str) -> None:
    """Give a value of a graph another name, but not an output."""
    for node in graph.nodes:
        node.inputs = tuple([other if n == name else n for n in node.inputs])
        node.outputs = tuple([other if n == name else n for n in node.outputs])

"""Matching of one attention: from a softmax to its products and to its gradient's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.passes.attention_scores import HIDDEN, Reader, Refused, Scores, find_band
from engine.graphs.passes.attention_values import Axes, HeadMatrix, MatrixProduct, Values
from engine.kernels.vocabulary.op import MS, OURS, Dim

# The rows, columns and axes of heads of each matrix; `Values` names the axes.
LAYOUTS = {"q": ("q", "d", "gr"), "k": ("k", "d", "g"), "v": ("k", "e", "g"), "y": ("q", "e", "gr")}
# Below this number of scores in a head, separate products are faster: they compute no product
# twice, and the values between them stay in a cache: 22 % faster at 64 x 64, 16 % at 96 x 96, and
# as fast at 128 x 128, where heads need not be moved to the front (Zen 4, one thread, `bench
# attention`).
FEW = 100 * 100
SCORES: Axes = (("b",), ("g", "r"), ("q",), ("k",))


@dataclass(slots=True)
class AttentionParts:
    """One attention, as far as it has been recognised.

    inner: the nodes that the new ones replace.
    operands: where Q, K, V and dY are.
    results: the values that receive Y, dQ, dK and dV.
    guard: see `attention.blocks`.
    """

    softmax: Node
    scores: Scores
    inner: set[Node] = field(default_factory=set)
    operands: dict[str, HeadMatrix] = field(default_factory=dict)
    results: dict[str, HeadMatrix] = field(default_factory=dict)
    forward: Node | None = None
    backward: list[Node] = field(default_factory=list)
    guard: int = 0
    nan: str = ""
    drop: Node | None = None
    ratio: float = 0.0
    dropped: str = ""
    dbias: str = ""
    together: str = ""


class AttentionMatch:
    """Walk from one softmax to its products and to the products of its gradient."""

    def __init__(self, graph: Graph, values: Values, softmax: Node) -> None:
        self.graph, self.values, self.softmax = graph, values, softmax

    def run(self) -> AttentionParts:
        """Return the attention.

        Raises:
            Refused: the nodes do not form an attention, or a part of it is not recognised.
        """
        values, softmax = self.values, self.softmax
        x = softmax.inputs[0]
        reader = Reader(values)
        rank = len(values.find_shape(x))
        axis = softmax.attrs.get("axis", -1 if self.graph.opsets.get("", 1) >= 13 else 1)
        if rank < 2 or axis not in (-1, rank - 1) or values.types[x].dtype not in FLOATS:
            raise Refused("the softmax is not over the last axis of a matrix")
        scores = reader.climb(x)
        if scores is None:
            raise Refused("no product makes the softmax's input")
        self.parts = match = AttentionParts(softmax, reader.interpret(scores))
        match.inner |= {softmax, *match.scores.nodes, match.scores.product.node}
        self._name_axes()
        if values.sizes["q"] * values.sizes["k"] < FEW:  # type: ignore[operator]  # known
            raise Refused("with so few scores, separate products and a softmax are faster")
        self._find_operands()
        self._follow_forward()
        if match.backward:
            self._follow_backward()
        self._replace_band()
        self._check_broadcast()
        self._check_closed()
        return match

    def _name_axes(self) -> None:
        """Give the axes their sizes, from the shapes of the scores and of the operands."""
        values, match = self.values, self.parts
        product = match.scores.product
        if any(len(values.find_shape(i)) < 2 for i in product.node.inputs):
            raise Refused("an operand is a vector")
        shapes = [
            values.find_shape(n.outputs[0]) for n in (product.node, *match.scores.nodes[::-1])
        ]
        shapes = [s for s in shapes if len(s) == 4] or [values.find_shape(match.softmax.inputs[0])]
        *lead, queries, keys = shapes[-1]
        raw = values.find_shape(product.node.outputs[0])
        if len(lead) > 2:
            raise Refused("scores of more than 4 dimensions")
        batch, heads = [1, 1, *lead][-2:]
        columns = values.find_shape(product.node.inputs[0])[-2 if product.flags[0] else -1]
        right = values.find_shape(product.node.inputs[1])
        repeats: Dim = raw[2] if len(raw) == 5 else self._count_repeats(product.node.inputs[1])
        if len(right) == len(raw) == 4 and right[1] == 1:  # one head for all
            repeats = heads
        if heads % repeats:  # type: ignore[operator]  # shapes are known
            repeats = 1
        values.sizes = {
            "b": batch, "g": heads // repeats, "r": repeats,  # type: ignore[operator]  # known
            "q": queries, "k": keys, "d": columns, "e": 0,
        }  # fmt: skip
        if 0 in (batch, heads, queries, keys, columns):
            raise Refused("nothing to compute")

    def _count_repeats(self, name: str) -> Dim:
        """Return how often each head of a matrix is repeated."""
        values = self.values
        for _ in range(8):
            node = values.makers.get(name)
            if node is None or node.domain:
                return 1
            if node.op == "Expand":
                old, new = values.find_shape(node.inputs[0]), values.find_shape(name)
                if len(old) == len(new) == 5 and (*old[:2], new[2], *old[3:]) == new:
                    return new[2]
                return 1
            scaled = values.find_factor(node)
            if not (scaled or node.op == "Transpose" or values.keeps(node)):
                return 1
            name = scaled[0] if scaled else node.inputs[0]
        return 1

    def _group_axes(self, axes: Axes, name: str) -> Axes:
        """Return the axes of the scores for a value that may have other leading dimensions."""
        flat = tuple(tuple(a for a in group if self.values.sizes[a] != 1) for group in axes)
        dims = self.values.group_axes(flat, self.values.find_shape(name))
        if dims is None:
            raise Refused(f"{name!r} has other axes than the scores")
        return dims

    def _find_other(
        self, product: MatrixProduct, side: int, lead: Axes, rows: str, columns: str
    ) -> Axes:
        """Return the axes of operand `side` of a product of matrices with these leading axes."""
        shape = self.values.find_shape(product.node.inputs[side])
        tail = (rows, columns)
        if len(shape) < 2:
            raise Refused("an operand is a vector")
        full: list[tuple[str, ...]] = []
        for back, d in enumerate(reversed(shape[:-2])):
            if back >= len(lead):
                raise Refused("an operand has more dimensions than the scores")
            full.insert(0, () if d == 1 else lead[len(lead) - 1 - back])
        ends = tuple((n,) if self.values.sizes[n] != 1 else () for n in tail)
        return (*full, *ends)

    def _find_source(self, what: str, product: MatrixProduct, side: int, axes: Axes) -> HeadMatrix:
        name = product.node.inputs[side]
        operand = self.values.find_source(name, axes, *LAYOUTS[what])
        if operand is None:
            raise Refused(f"the layout of {what}, {name!r}")
        return operand

    def _find_operands(self) -> None:
        """Find the sources of Q and K."""
        match = self.parts
        product = match.scores.product
        axes = self._group_axes(SCORES, product.node.outputs[0])
        left = ("d", "q") if product.flags[0] else ("q", "d")
        right = ("k", "d") if product.flags[1] else ("d", "k")
        q = self._find_source("q", product, 0, self._find_other(product, 0, axes[:-2], *left))
        k = self._find_source("k", product, 1, self._find_other(product, 1, axes[:-2], *right))
        match.operands |= {"q": q, "k": k}
        match.scores.scale *= q.factor * k.factor

    # --- from the softmax to Y

    def _follow_forward(self) -> None:
        """Follow the probabilities to the product with V, and note their other readers."""
        values, match = self.values, self.parts
        name = match.softmax.outputs[0]
        for _ in range(8):
            step: Node | None = None
            for node in values.readers.get(name, ()):
                product = MatrixProduct.of(node)
                if product:
                    self._note_value_product(product, name)
                elif node.op == "SoftmaxGrad_13" and node.domain == MS:
                    match.backward.append(node)
                elif node.op == "IsNaN":
                    match.nan = node.outputs[0]
                    match.inner.add(node)
                elif node.op == "RandomMask" and node.domain == OURS:
                    match.drop = node
                    match.inner.add(node)
                elif self._follows(node, name):
                    if step is not None:
                        raise Refused(f"the probabilities take two paths from {name!r}")
                    step = node
                else:
                    raise Refused(f"the probabilities are read by {node.op} {node.name!r}")
            if step is None:
                break
            match.inner.add(step)
            name = step.outputs[0]
        if match.forward is None:
            raise Refused("the probabilities are not multiplied by a matrix")
        match.dropped = name

    def _follows(self, node: Node, name: str) -> bool:
        """Return whether a node passes probabilities, or their gradient, on in a way that the
        attention kernels support.
        """
        match, values = self.parts, self.values
        if (
            node.op == "Where"
            and node.inputs[2] == name
            and values.find_scalar(node.inputs[1]) == 0
        ):
            if node.inputs[0] == match.scores.emptied:
                match.guard = max(match.guard, 1)
                return True
            maker = values.makers.get(node.inputs[0])
            if (
                maker is not None
                and maker.op == "IsNaN"
                and match.softmax.outputs[0] in maker.inputs
            ):
                match.guard = 2
                return True
        if node.op == "DropoutGrad" and node.domain == MS and node.inputs[0] == name:
            mask = values.makers.get(node.inputs[1])
            training = [values.constants.get(i) for i in node.inputs[3:4]]
            if mask is None or mask.op != "RandomMask" or mask.domain != OURS:
                return False
            if any(t is None or not np.asarray(t).all() for t in training):
                return False
            ratio = (
                values.find_scalar(node.inputs[2])
                if len(node.inputs) > 2 and node.inputs[2]
                else 0.5
            )
            if ratio is None or (match.ratio and match.ratio != ratio) or not 0 < ratio < 1:
                return False
            match.ratio = ratio
            return True
        return values.keeps(node)

    def _note_value_product(self, product: MatrixProduct, name: str) -> None:
        """Note a product of the probabilities, which is Y or dV."""
        match, values = self.parts, self.values
        if product.node.inputs[0] != name or product.node.inputs[1] == name:
            raise Refused("the probabilities are the right operand of a product")
        if product.flags[0]:
            match.backward.append(product.node)
            return
        if match.forward is not None:
            raise Refused("the probabilities are multiplied twice")
        match.forward = product.node
        match.inner.add(product.node)
        shape = values.find_shape(product.node.inputs[1])
        if len(shape) < 2:
            raise Refused("an operand is a vector")
        values.sizes = {**values.sizes, "e": shape[-2 if product.flags[1] else -1]}
        if values.sizes["e"] == 0:
            raise Refused("nothing to compute")
        axes = self._group_axes(SCORES, name)
        tail = ("e", "k") if product.flags[1] else ("k", "e")
        v = self._find_source("v", product, 1, self._find_other(product, 1, axes[:-2], *tail))
        match.operands["v"] = v
        if product.alpha * v.factor != 1:
            raise Refused("V is scaled")
        self._follow_result("y", product.node, (*axes[:-1], *self._find_ends("e")))

    def _find_ends(self, *names: str) -> Axes:
        return tuple((n,) if self.values.sizes[n] != 1 else () for n in names)

    def _follow_result(self, what: str, node: Node, axes: Axes) -> float:
        """Note the destination of a product's result; return the factor on the way."""
        place = self.values.find_target(node.outputs[0], axes, *LAYOUTS[what.removeprefix("d")])
        if place is None:
            raise Refused(f"the layout of {what}, {node.outputs[0]!r}")
        operand, passed = place
        if what == "y" and operand.factor != 1:
            raise Refused("Y is scaled")
        self.parts.results[what] = operand
        self.parts.inner |= {node, *passed}
        return operand.factor

    # --- the gradient

    def _follow_backward(self) -> None:
        """Follow the gradient of the probabilities to dQ, dK, dV and the gradient of the bias."""
        match = self.parts
        for node in match.backward:
            product = MatrixProduct.of(node)
            if product is None:
                continue
            axes = self._group_axes(SCORES, node.inputs[0])
            tail = ("e", "q") if product.flags[1] else ("q", "e")
            self._match_dy(product, 1, self._find_other(product, 1, axes[:-2], *tail))
            factor = self._follow_result("dv", node, (*axes[:-2], axes[-1], *self._find_ends("e")))
            if factor * product.alpha != 1 or "dv" not in match.results:
                raise Refused("dV is scaled")
        grads = [n for n in match.backward if n.op == "SoftmaxGrad_13"]
        if len(grads) > 1 or len(match.backward) - len(grads) > 1:
            raise Refused("two gradients")
        if not grads:
            return
        if grads[0].inputs[1] != match.softmax.outputs[0]:
            raise Refused("it is the gradient of another softmax")
        match.inner.add(grads[0])
        self._follow_probabilities_gradient(grads[0].inputs[0])
        self._follow_scores_gradient(grads[0].outputs[0])

    def _match_dy(self, product: MatrixProduct, side: int, axes: Axes) -> None:
        dy = self._find_source("y", product, side, axes)
        if dy.factor != 1 or self.parts.operands.setdefault("dy", dy) != dy:
            raise Refused("dY is scaled, or two products compute the gradient of the probabilities")

    def _follow_probabilities_gradient(self, name: str) -> None:
        """Follow the gradient from SoftmaxGrad back to dY V^T."""
        values, match = self.values, self.parts
        drops = False
        for _ in range(8):
            node = values.makers.get(name)
            if node is None or values.find_only_reader(name) is None:
                raise Refused("the gradient of the probabilities has other readers")
            match.inner.add(node)
            product = MatrixProduct.of(node)
            if product is not None:
                break
            name = node.inputs[2] if node.op == "Where" else node.inputs[0]
            if not self._follows(node, name):
                raise Refused(f"the gradient of the probabilities passes {node.op} {node.name!r}")
            drops |= node.op == "DropoutGrad"
        else:
            raise Refused("nodes lie between the gradient of the probabilities and its product")
        if drops != (match.ratio > 0) or product.flags[0]:
            raise Refused("the gradient of the probabilities is not a product of dY and V")
        axes = self._group_axes(SCORES, node.outputs[0])
        right = ("k", "e") if product.flags[1] else ("e", "k")
        self._match_dy(product, 0, self._find_other(product, 0, axes[:-2], "q", "e"))
        v = self._find_source("v", product, 1, self._find_other(product, 1, axes[:-2], *right))
        if v != match.operands["v"] or product.alpha != 1:
            raise Refused("the gradient of the probabilities is not a product of dY and V")

    def _follow_scores_gradient(self, name: str) -> None:
        """Follow the gradient from SoftmaxGrad on to dQ, dK and the gradient of the bias."""
        values, match = self.values, self.parts
        factor, is_capped, is_masked, is_empty = 1.0, False, False, False
        for _ in range(12):
            step: tuple[Node, float] | None = None
            others: list[Node] = []
            steps = 0
            for node in values.readers.get(name, ()):
                product = MatrixProduct.of(node)
                scaled = values.find_factor(node)
                if product is not None and self._note_inner_product(product, name, factor):
                    continue
                steps += 1
                if scaled and scaled[0] == name:
                    step = node, scaled[1]
                elif node.op == "TanhGrad" and node.inputs == (name, match.scores.tanh):
                    step, is_capped = (node, 1.0), True
                elif node.op == "Where" and self._is_masked(node, name):
                    is_empty |= node.inputs[0] == match.scores.emptied
                    is_masked |= node.inputs[0] == match.scores.mask
                    step = node, 1.0
                elif values.keeps(node):
                    step = node, 1.0
                else:
                    steps -= 1
                    others.append(node)
            if steps > 1:
                raise Refused("the gradient of the scores takes several paths")
            if others or name in values.outputs:
                if match.dbias or factor != 1 or is_capped or not match.scores.biases:
                    raise Refused(f"the gradient of the scores, {name!r}, is read elsewhere")
                self._note_bias(name, others)
            if step is None:
                break
            match.inner.add(step[0])
            name, factor = step[0].outputs[0], factor * step[1]
        if is_capped != bool(match.scores.tanh) and {"dq", "dk"} & match.results.keys():
            raise Refused("the gradient of the cap is missing")
        if match.scores.mask and not is_masked:
            raise Refused("the gradient of the mask is missing")

    def _is_masked(self, node: Node, name: str) -> bool:
        """Return whether a node writes zeros into the gradient where the forward pass masks the
        scores.
        """
        scores = self.parts.scores
        condition, a, b = node.inputs
        if condition == scores.emptied:
            return b == name and self.values.find_scalar(a) == 0
        if condition != scores.mask:
            return False
        kept, zero = (a, b) if scores.keep else (b, a)
        return kept == name and self.values.find_scalar(zero) == 0

    def _note_inner_product(self, product: MatrixProduct, name: str, factor: float) -> bool:
        """Note a product that is dQ or dK; return whether it is one."""
        match, scale = self.parts, self.parts.scores.scale
        node = product.node
        axes = self._group_axes(SCORES, name)
        side = node.inputs.index(name)
        by_keys = product.flags[side] == bool(side)  # True if the sum is over keys
        rest, what, like = ("k", "dq", "k") if by_keys else ("q", "dk", "q")
        left = "q" if by_keys else "k"
        other = 1 - side
        tail = (rest, "d") if product.flags[other] == (other == 0) else ("d", rest)
        source = self._find_source(
            like, product, other, self._find_other(product, other, axes[:-2], *tail)
        )
        ends = (left, "d") if side == 0 else ("d", left)
        here = match.operands[like]
        if (source.name, source.order) != (here.name, here.order) or what in match.results:
            raise Refused(f"the gradient of the scores is multiplied by {source.name!r}")
        total = factor * product.alpha * source.factor
        total *= self._follow_result(what, node, (*axes[:-2], *self._find_ends(*ends)))
        if not math.isclose(total, scale, rel_tol=1e-5):
            raise Refused(f"{what} is scaled by {total}, the scores by {scale}")
        return True

    def _note_bias(self, name: str, readers: list[Node]) -> None:
        """Note the gradient of a bias, summed over batch or heads if nothing else reads it."""
        values, match = self.values, self.parts
        if len(values.find_shape(name)) != 4:
            raise Refused("the gradient of a bias does not have 4 dimensions")
        match.dbias = name
        if len(readers) != 1 or name in values.outputs:
            return
        node = readers[0]
        if node.op != "ReduceSum" or len(node.inputs) < 2:
            return
        axes = values.constants.get(node.inputs[1])
        if axes is None or not node.attrs.get("keepdims", 1):
            return
        over = {int(a) % 4 for a in np.asarray(axes).reshape(-1)}
        if over and over <= {0, 1}:
            match.inner.add(node)
            match.dbias = node.outputs[0]
            match.together = " ".join(("batch", "head")[a] for a in sorted(over))

    # --- masks that are bands

    def _replace_band(self) -> None:
        """Replace a mask that is a constant band, such as a causal one, by two numbers."""
        scores, values = self.parts.scores, self.values
        queries, keys = values.sizes["q"], values.sizes["k"]
        seen: Array | None = None
        if scores.mask and not scores.emptied and scores.fill <= HIDDEN:
            value = values.find_known(scores.mask)
            seen = None if value is None else value.astype(bool) == bool(scores.keep)
        elif len(scores.biases) == 1 and not self.parts.dbias and not scores.mask:
            value = values.find_known(scores.biases[0])
            if value is not None and bool(((value == 0) | (value <= HIDDEN)).all()):
                seen = value == 0
        if seen is None:
            return
        band = find_band(seen, int(queries), int(keys))
        if band is not None:
            scores.low, scores.high = band
            scores.mask, scores.biases = "", [] if not scores.mask else scores.biases

    def _check_broadcast(self) -> None:
        """Check that the joined biases and mask broadcast to [batch, heads, queries, keys]."""
        scores, values = self.parts.scores, self.values
        for name in (*scores.biases, *([scores.mask] if scores.mask else [])):
            if values.pad_to_four(name, scores.ranks[name]) is None:
                raise Refused(f"{name!r} does not broadcast over batch and heads")

    def _check_closed(self) -> None:
        """Check that other nodes read nothing inside the attention but the values that the new
        nodes write.
        """
        match, values = self.parts, self.values
        written = {r.name for r in match.results.values()} | {match.dbias}
        for node in match.inner:
            for name in node.outputs:
                if not name or name in written:
                    continue
                readers = [n for n in values.readers.get(name, ()) if n not in match.inner]
                if readers or name in values.outputs:
                    reader = f"{readers[0].op} {readers[0].name!r}" if readers else "the graph"
                    raise Refused(f"{name!r} is read by {reader}")

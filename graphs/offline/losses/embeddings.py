"""Losses of embeddings [batch, features].

cosine          mean(1 - c where t = 1, max(0, c - margin) where t = -1),
                c = a b / sqrt((a a + 1e-12) (b b + 1e-12))
triplet         mean(max(0, margin + d(a, p) - d(a, n))), d(x, y) = |x - y + 1e-6|_p as in torch;
                swapped: the smaller of d(a, n) and d(p, n).  Balntas et al. 2016
batch hard      max(0, margin + the largest d to a row of the same label - the smallest to one of
                another), d^2 = a a + b b - 2 a b, the mean over rows that have both.  Hermans et
                al. 2017, arXiv 1703.07737.  In float32 d is uncertain by 5e-4 |a| near 0
InfoNCE         cross entropy of the scores s = a b / temperature of all pairs, where the label of
                row i is i: the other rows are its negatives.  Symmetric: the mean with that of the
                columns, as CLIP has it.  van den Oord et al. 2018, arXiv 1807.03748
"""

from __future__ import annotations

from engine.base import arguments
from engine.base.errors import InputError, ShapeError
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.losses.nodes import Nodes, check_reduction, float_type, target_input
from engine.kernels.vocabulary.op import TensorType

SMALL = 1e-24  # squares of norms count as no less, so that roots have finite derivatives
FAR = 1e30  # further than any row


def cosine_embedding(
    graph: Graph, a: str, b: str, target: str, reduction: str, margin: float
) -> str:
    """Of two rows 1 - cos where the target is 1, and max(0, cos - margin) where it is -1."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, a)
    other = float_type(graph, b)
    if t.rank not in (1, 2) or other.dtype != t.dtype or other.rank != t.rank:
        raise ShapeError(
            f"{graph.name}: {a!r} is {t}, {b!r} is {other}; expected two of [batch, features]"
        )
    if not -1 <= arguments.real("margin", margin) <= 1:
        raise InputError(f"margin={margin}; expected a number from -1 to 1")
    axis = [t.rank - 1]
    y = target_input(graph, target, t.but(t.shape[:-1]))
    least = nodes.constant("epsilon", 1e-12, t.dtype)
    norms = [nodes.add("Add", nodes.sum(nodes.add("Mul", v, v), axis), least) for v in (a, b)]
    dot = nodes.sum(nodes.add("Mul", a, b), axis)
    cosine = nodes.add("Div", dot, nodes.add("Sqrt", nodes.add("Mul", *norms)))
    zero, one = (nodes.constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
    beyond = nodes.add("Sub", cosine, nodes.constant("margin", margin, t.dtype))
    parts = []
    for sign, value in ((1, nodes.add("Sub", one, cosine)), (-1, nodes.add("Relu", beyond))):
        chosen = nodes.add("Equal", y, nodes.constant("sign", sign, t.dtype))
        parts.append(nodes.add("Where", chosen, value, zero))
    return nodes.reduce(nodes.add("Add", *parts), reduction)


def triplet(
    graph: Graph,
    anchor: str,
    positive: str,
    negative: str,
    reduction: str,
    margin: float,
    p: float,
    swap: bool,
) -> str:
    """max(0, margin + d(anchor, positive) - d(anchor, negative)) of rows of three values."""
    nodes, t = Nodes(graph, "loss"), float_type(graph, anchor)
    _alike(graph, (anchor, positive, negative))
    if arguments.real("p", p) < 1:
        raise InputError(f"p={p}; expected the order of a norm, a number from 1 on")
    near = _distance(nodes, anchor, positive, p, t)
    far = _distance(nodes, anchor, negative, p, t)
    if arguments.flag("swap", swap):
        far = nodes.add("Min", far, _distance(nodes, positive, negative, p, t))
    return nodes.reduce(_hinge(nodes, near, far, margin, t), reduction)


def _alike(graph: Graph, names: tuple[str, ...]) -> None:
    """Refuse values that are not [batch, features] of one type."""
    types = {name: float_type(graph, name) for name in names}
    dtypes = {t.dtype for t in types.values()}
    sizes = {t.shape[-1] for t in types.values() if t.rank and isinstance(t.shape[-1], int)}
    if len(dtypes) > 1 or len(sizes) > 1 or any(t.rank != 2 for t in types.values()):
        found = ", ".join(f"{name!r} is {t}" for name, t in types.items())
        each = "one" if len(names) == 1 else f"{len(names)} of one type"
        raise ShapeError(f"{graph.name}: {found}; expected {each} [batch, features]")


def _distance(nodes: Nodes, a: str, b: str, p: float, t: TensorType) -> str:
    """|a - b + 1e-6|_p of every row."""
    d = nodes.add("Add", nodes.add("Sub", a, b), nodes.constant("epsilon", 1e-6, t.dtype))
    axis = [t.rank - 1]
    if p == 1:
        return nodes.sum(nodes.add("Abs", d), axis)
    if p == 2:
        squares = nodes.sum(nodes.add("Mul", d, d), axis)
        return nodes.add("Sqrt", nodes.at_least(squares, SMALL, t.dtype))
    powers = nodes.add("Pow", nodes.add("Abs", d), nodes.constant("p", p, t.dtype))
    total = nodes.at_least(nodes.sum(powers, axis), SMALL, t.dtype)
    return nodes.add("Pow", total, nodes.constant("root", 1 / p, t.dtype))


def _hinge(nodes: Nodes, near: str, far: str, margin: float, t: TensorType) -> str:
    """max(0, margin + near - far)"""
    if arguments.real("margin", margin) < 0:
        raise InputError(f"margin={margin}; expected 0 or a positive number")
    difference = nodes.add("Sub", near, far)
    return nodes.add(
        "Relu", nodes.add("Add", difference, nodes.constant("margin", margin, t.dtype))
    )


def batch_hard_triplet(graph: Graph, x: str, labels: str, reduction: str, margin: float) -> str:
    """max(0, margin + d(x, hardest positive) - d(x, hardest negative)) of every row of x."""
    check_reduction(reduction)
    nodes, t = Nodes(graph, "loss"), float_type(graph, x)
    _alike(graph, (x,))
    y = target_input(graph, labels, TensorType("i64", t.shape[:1]))
    first, second = (nodes.constant("axes", [k], "i64") for k in (0, 1))

    def pairs(op: str, rows: str) -> str:
        return nodes.add(
            op, nodes.add("Unsqueeze", rows, second), nodes.add("Unsqueeze", rows, first)
        )

    products = nodes.add("MatMul", x, nodes.add("Transpose", x, perm=[1, 0]))
    squares = pairs("Add", nodes.sum(nodes.add("Mul", x, x), [1]))
    apart = nodes.add("Sub", squares, nodes.times(products, 2.0, t.dtype))
    d = nodes.add("Sqrt", nodes.at_least(apart, 1e-12, t.dtype))
    zero, one = (nodes.constant(n, k, t.dtype) for n, k in (("zero", 0), ("one", 1)))
    same = pairs("Equal", y)
    itself = pairs("Equal", nodes.numbers_to(nodes.size(x, 0)))
    other = nodes.add("And", same, nodes.add("Not", itself))
    near = nodes.along("ReduceMax", nodes.add("Where", other, d, zero), 1)
    is_far = nodes.add("Where", same, nodes.constant("far", FAR, t.dtype), d)
    far = nodes.along("ReduceMin", is_far, 1)
    positives = nodes.along("ReduceMax", nodes.add("Where", other, one, zero), 1)
    negatives = nodes.along("ReduceMax", nodes.add("Where", same, zero, one), 1)
    counts = nodes.add("Mul", positives, negatives)
    skipped = nodes.add("Equal", counts, zero)
    each = nodes.add("Where", skipped, zero, _hinge(nodes, near, far, margin, t))
    return nodes.counted(each, counts, reduction, t.dtype)


def info_nce(
    graph: Graph,
    a: str,
    b: str,
    reduction: str,
    temperature: float,
    normalize: bool,
    symmetric: bool,
) -> str:
    """The cross entropy of the scores a b / temperature of all pairs of rows; row i fits row i.

    normalize: rows are divided by their norms, or by 1e-12 if that is more.
    """
    nodes, t = Nodes(graph, "loss"), float_type(graph, a)
    _alike(graph, (a, b))
    if not arguments.real("temperature", temperature) > 0:
        raise InputError(f"temperature={temperature}; expected a positive number")
    if arguments.flag("normalize", normalize):
        a, b = (_normalized(nodes, v, t.dtype) for v in (a, b))
    scores = nodes.add("MatMul", a, nodes.add("Transpose", b, perm=[1, 0]))
    scores = nodes.times(scores, 1 / temperature, t.dtype)
    labels = nodes.numbers_to(nodes.size(a, 0))
    options = {"reduction": check_reduction(reduction)}
    loss = nodes.add("SoftmaxCrossEntropyLoss", scores, labels, **options)
    if not arguments.flag("symmetric", symmetric):
        return loss
    columns = nodes.add("Transpose", scores, perm=[1, 0])
    other = nodes.add("SoftmaxCrossEntropyLoss", columns, labels, **options)
    return nodes.times(nodes.add("Add", loss, other), 0.5, t.dtype)


def _normalized(nodes: Nodes, x: str, dtype: str) -> str:
    squares = nodes.sum(nodes.add("Mul", x, x), [1], keepdims=True)
    return nodes.add("Div", x, nodes.add("Sqrt", nodes.at_least(squares, SMALL, dtype)))

"""Layer normalisation of sums, as transformers have it, by expansion into layernorm.py's ops.

Forward   SkipLayerNormalization: y = LayerNormalization(input + skip + bias), and that sum
          EmbedLayerNormalization: the sum is of embeddings of words, places and segments
Backward  that of the expansion.  InvertibleLayerNormalizationGrad is the gradient by y instead of
          x: x - mean = (y - B) / (scale inv)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.kernels.ops.norm.layernorm import UNREAD, infer_grad, kept_type
from engine.kernels.vocabulary.op import MS, Nodes, Op, Site, TensorType


def _skip(op: str, b: int | None, bias: int) -> Callable[[Nodes], tuple[str, ...]]:
    """The sum of input, skip and bias, normalised; B and bias are those inputs."""

    def rule(g: Nodes) -> tuple[str, ...]:
        s = g.site
        total = g.op("Add", g.x(0), g.x(1))
        if s.has(bias):
            total = g.op("Add", total, g.x(bias))
        vectors = [g.x(2), *([g.x(b)] if b is not None and s.has(b) else [])]
        attrs = {"axis": -1, "epsilon": s.attrs["epsilon"]}
        made = g.op(op, total, *vectors, outputs=3 if b is not None else 2, **attrs)
        mean = made[1] if b is not None else ""
        if b is None and g.wants(1):
            s.fail("output 1, a mean that is not computed", "output, inv_std_var, sum")
        return (made[0], mean, made[-1], total)

    return rule


def _infer_skip(s: Site) -> tuple[TensorType, ...]:
    x = s.real(0)
    skip = s.type(1)
    s.shaped(
        1, x.shape[x.rank - skip.rank :] if skip.rank != x.rank else (skip.shape[0], *x.shape[1:])
    )
    for i in range(2, len(s.ins)):
        if s.has(i):
            s.shaped(i, x.shape[-1:])
    kept = kept_type(x, x.rank - 1)
    return (x.but(), kept, kept, x.but())[: s.n_outs]


def _invertible_grad(g: Nodes) -> tuple[str, ...]:
    """X - mean = (Y - B) / (scale inv): the gradients of X shifted to mean 0."""
    dy, y, scale, b, inv = (g.x(i) for i in range(5))
    h = g.op("Div", g.op("Sub", y, b), scale)
    zero = g.op("Mul", inv, g.like(0.0, 1))
    axis = g.site.attrs["axis"]
    made: tuple[str, ...] = g.op(
        "LayerNormalizationGrad", dy, g.op("Div", h, inv), scale, zero, inv, domain=MS, outputs=3,
        axis=axis,
    )  # fmt: skip
    return made


def _embed(g: Nodes) -> tuple[str, ...]:
    """The sum of embeddings of words, places and segments, normalised; how long each mask is."""
    s = g.site
    length = s.type(0).dims[1]
    places = g.x(8) if s.has(8) else g.const(np.arange(length), "i64")
    total = g.op("Add", g.op("Gather", g.x(2), g.x(0)), g.op("Gather", g.x(3), places))
    if s.has(1):
        total = g.op("Add", total, g.op("Gather", g.x(4), g.x(1)))
    y = g.op("LayerNormalization", total, g.x(5), g.x(6), axis=-1, epsilon=s.attrs["epsilon"])
    ends = g.const(np.zeros(s.type(0).dims[0]), "i32")
    if s.has(7):
        ends = g.op("ReduceSum", g.x(7), g.const([1], "i64"), keepdims=0)
    return (y, ends, total)


def _infer_embed(s: Site) -> tuple[TensorType, ...]:
    ids, words = s.type(0), s.real(2)
    if ids.rank != 2 or words.rank != 2:
        s.wrong(f"ids {ids} and words {words}; expected [batch, length] and [words, size]")
    for i, shape in ((1, ids.shape), (7, ids.shape), (5, words.shape[1:]), (6, words.shape[1:])):
        if s.has(i):
            s.shaped(i, shape)
    y = words.but((*ids.shape, words.shape[1]))
    return (y, ids.but(ids.shape[:1], "i32"), y)[: s.n_outs]


OPS = (
    Op(
        name="InvertibleLayerNormalizationGrad", domain=MS, takes=UNREAD,
        attrs={"axis": -1}, infer=infer_grad,
        expand=_invertible_grad, becomes=f"Div Mul Sub {MS}::LayerNormalizationGrad",
        stop=frozenset(range(5)),
    ),
    Op(
        name="SkipLayerNormalization", domain=MS, attrs={"epsilon": 1e-12}, infer=_infer_skip,
        expand=_skip("LayerNormalization", 3, 4), becomes="Add LayerNormalization",
    ),
    Op(
        name="SkipSimplifiedLayerNormalization", domain=MS, attrs={"epsilon": 1e-12},
        infer=_infer_skip, expand=_skip("SimplifiedLayerNormalization", None, 3),
        becomes="Add SimplifiedLayerNormalization",
    ),
    Op(
        name="EmbedLayerNormalization", domain=MS, takes={"mask_index_type": "int"},
        attrs={"epsilon": 1e-12}, infer=_infer_embed,
        expand=_embed, becomes="Add Gather LayerNormalization ReduceSum",
        stop=frozenset((1, 7, 8)),
    ),
)  # fmt: skip

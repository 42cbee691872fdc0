"""Layer normalisation of sums, as in transformers, by expansion into layernorm.py's ops.

Forward   SkipLayerNormalization: y = LayerNormalization(input + skip + bias), and that sum
          EmbedLayerNormalization: the sum is of embeddings of words, places and segments
Backward  through the expansion.  InvertibleLayerNormalizationGrad is the gradient by y instead of
          x: x - mean = (y - B) / (scale inv)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.base import limits
from engine.kernels.ops.norm.layernorm import UNREAD, infer_grad, infer_kept
from engine.kernels.vocabulary.facts import Role
from engine.kernels.vocabulary.op import MS, Nodes, Op, Site, TensorType


def _skip(op: str, b: int | None, bias: int) -> Callable[[Nodes], tuple[str, ...]]:
    """Return the sum of input, skip and bias, normalised; B and bias are those inputs."""

    def rule(nodes: Nodes) -> tuple[str, ...]:
        site = nodes.site
        # The sum is an output, too: the next block adds to it.
        total = nodes.op("Add", nodes.x(0), nodes.x(1))
        if site.has(bias):
            total = nodes.op("Add", total, nodes.x(bias))
        vectors = [nodes.x(2), *([nodes.x(b)] if b is not None and site.has(b) else [])]
        attrs = {"axis": -1, "epsilon": site.attrs["epsilon"]}
        made = nodes.op(op, total, *vectors, outputs=3 if b is not None else 2, **attrs)
        mean = made[1] if b is not None else ""
        if b is None and nodes.wants(1):
            site.fail("output 1 (mean) is requested", "the outputs output, inv_std_var and sum")
        return (made[0], mean, made[-1], total)

    return rule


def _infer_skip(site: Site) -> tuple[TensorType, ...]:
    x = site.real(0)
    skip = site.type(1)
    site.shaped(
        1, x.shape[x.rank - skip.rank :] if skip.rank != x.rank else (skip.shape[0], *x.shape[1:])
    )
    for i in range(2, len(site.ins)):
        if site.has(i):
            site.shaped(i, x.shape[-1:])
    kept = infer_kept(x, x.rank - 1)
    return (x.but(), kept, kept, x.but())[: site.n_outs]


def _invertible_grad(nodes: Nodes) -> tuple[str, ...]:
    """X - mean = (Y - B) / (scale inv): the gradients of X shifted to mean 0."""
    dy, y, scale, b, inv = (nodes.x(i) for i in range(5))
    # Forward: y = (x - mean) inv scale + B; so x - mean = (y - B) / (scale inv), and the gradient,
    # which reads x only as x - mean, is given that with a mean of 0.
    h = nodes.op("Div", nodes.op("Sub", y, b), scale)
    zero = nodes.op("Mul", inv, nodes.like(0.0, 1))
    axis = nodes.site.attrs["axis"]
    made: tuple[str, ...] = nodes.op(
        "LayerNormalizationGrad",
        dy,
        nodes.op("Div", h, inv),
        scale,
        zero,
        inv,
        domain=MS,
        outputs=3,
        axis=axis,
    )
    return made


def _embed(nodes: Nodes) -> tuple[str, ...]:
    """Normalise the sum of embeddings of words, places and segments; output mask lengths, too."""
    site = nodes.site
    length = site.type(0).dims[1]
    limits.check("CONSTANT_BYTES", 8 * max(site.type(0).dims[:2]), site.where, "its places take")
    places = nodes.x(8) if site.has(8) else nodes.const(np.arange(length), "i64")
    total = nodes.op(
        "Add", nodes.op("Gather", nodes.x(2), nodes.x(0)), nodes.op("Gather", nodes.x(3), places)
    )
    if site.has(1):
        total = nodes.op("Add", total, nodes.op("Gather", nodes.x(4), nodes.x(1)))
    y = nodes.op(
        "LayerNormalization", total, nodes.x(5), nodes.x(6), axis=-1, epsilon=site.attrs["epsilon"]
    )
    # Without a mask onnxruntime outputs zeros here, not the length.
    ends = nodes.const(np.zeros(site.type(0).dims[0]), "i32")
    if site.has(7):
        ends = nodes.op("ReduceSum", nodes.x(7), nodes.const([1], "i64"), keepdims=0)
    return (y, ends, total)


def _infer_embed(site: Site) -> tuple[TensorType, ...]:
    ids, words = site.type(0), site.real(2)
    if ids.rank != 2 or words.rank != 2:
        site.wrong(
            f"the ids are {ids} and the words {words}; expected [batch, length] and [words, size]"
        )
    for i, shape in ((1, ids.shape), (7, ids.shape), (5, words.shape[1:]), (6, words.shape[1:])):
        if site.has(i):
            site.shaped(i, shape)
    y = words.but((*ids.shape, words.shape[1]))
    return (y, ids.but(ids.shape[:1], "i32"), y)[: site.n_outs]


OPS = (
    Op(
        name="InvertibleLayerNormalizationGrad",
        domain=MS,
        inputs=(5, 5),
        outputs=3,
        gradient_of="LayerNormalization",
        takes=UNREAD,
        attrs={"axis": -1},
        infer=infer_grad,
        expand=_invertible_grad,
        becomes=f"Div Mul Sub {MS}::LayerNormalizationGrad",
        no_gradient=frozenset(range(5)),
    ),
    Op(
        name="SkipLayerNormalization",
        roles={2: Role.SCALE, 3: Role.SHIFT, 4: Role.BIAS},
        domain=MS,
        inputs=(3, 5),
        outputs=4,
        attrs={"epsilon": 1e-12},
        infer=_infer_skip,
        expand=_skip("LayerNormalization", 3, 4),
        becomes="Add LayerNormalization",
    ),
    Op(
        name="SkipSimplifiedLayerNormalization",
        roles={2: Role.SCALE, 3: Role.BIAS},
        domain=MS,
        inputs=(3, 4),
        outputs=4,
        attrs={"epsilon": 1e-12},
        infer=_infer_skip,
        expand=_skip("SimplifiedLayerNormalization", None, 3),
        becomes="Add SimplifiedLayerNormalization",
    ),
    Op(
        name="EmbedLayerNormalization",
        domain=MS,
        inputs=(7, 9),
        outputs=3,
        may_be_absent=frozenset((1, 4)),
        takes={"mask_index_type": "int"},
        attrs={"epsilon": 1e-12},
        infer=_infer_embed,
        expand=_embed,
        becomes="Add Gather LayerNormalization ReduceSum",
        no_gradient=frozenset((1, 7, 8)),
    ),
)

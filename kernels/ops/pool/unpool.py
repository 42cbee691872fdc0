"""MaxUnpool: the maxima of a pool back to where they were.

Forward   Y = 0, then Y[Indices] = X, all of them flat; a ScatterElements
Backward  dX = dY[Indices]
Error     none: elements are copied
"""

from __future__ import annotations

from engine.kernels.loops.window import in_dims, kernel_shape
from engine.kernels.ops.shape import fresh, i64s
from engine.kernels.vocabulary.op import Nodes, Op, Site, TensorType


def _infer(s: Site) -> tuple[TensorType, ...]:
    x = s.type(0)
    s.shaped(1, x.shape)
    inner = (*x.shape[:2], *in_dims(s, x, kernel_shape(s)))
    if not s.has(2):
        return (x.but(inner),)
    given = s.value(2)
    if given is None:
        return (x.but([fresh(s, i) for i in range(x.rank)]),)
    dims = [int(d) for d in given]
    small = any(isinstance(d, int) and d > n for d, n in zip(inner, dims, strict=False))
    if len(dims) != x.rank or small:
        s.wrong(f"output_shape {dims} for a pool of {list(inner)}")
    return (x.but(dims),)


def _expand(g: Nodes) -> tuple[str, ...]:
    """Scatter into the smallest image that pools to X, then pad to the given shape."""
    s, rank = g.site, g.site.type(0).rank
    spatial = [d for d in in_dims(s, s.type(0), kernel_shape(s)) if isinstance(d, int)]
    if len(spatial) < rank - 2:
        s.fail("spatial dimensions must be known before lowering")
    head = g.op("Slice", g.op("Shape", g.x(0)), i64s(g, 0), i64s(g, 2))
    shape = g.op("Concat", head, i64s(g, *spatial), axis=0)
    flat = i64s(g, -1)
    zeros = g.op("Expand", g.like(0.0, 0), g.op("ReduceProd", shape, keepdims=1))
    places, values = (g.op("Reshape", g.x(i), flat) for i in (1, 0))
    y = g.op("Reshape", g.op("ScatterElements", zeros, places, values, axis=0), shape)
    if s.has(2):
        rest = g.op("Sub", g.x(2), shape)
        y = g.op("Pad", y, g.op("Concat", i64s(g, *[0] * rank), rest, axis=0))
    return (y,)


OPS = (
    Op(
        name="MaxUnpool",
        infer=_infer,
        expand=_expand,
        becomes="Concat Expand Pad ReduceProd Reshape ScatterElements Shape Slice Sub",
        stop=frozenset((1, 2)),
    ),
)

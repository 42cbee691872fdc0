"""MaxUnpool: the maxima of a pool back to where they were.

Forward   Y = 0, then Y[Indices] = X, all of them flat; a ScatterElements
Backward  dX = dY[Indices]
Error     none: elements are copied
"""

from __future__ import annotations

from engine.kernels.loops.window import infer_in_dims, read_kernel_shape
from engine.kernels.ops.shape import i64s
from engine.kernels.vocabulary.op import Nodes, Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import make_symbol


def _infer(site: Site) -> tuple[TensorType, ...]:
    x = site.type(0)
    site.shaped(1, x.shape)
    inner = (*x.shape[:2], *infer_in_dims(site, x, read_kernel_shape(site)))
    if not site.has(2):
        return (x.but(inner),)
    given = site.value(2)
    if given is None:
        return (x.but([make_symbol(site, i) for i in range(x.rank)]),)
    dims = [int(d) for d in given]
    small = any(isinstance(d, int) and d > n for d, n in zip(inner, dims, strict=False))
    if len(dims) != x.rank or small:
        site.wrong(
            f"output_shape is {dims}; expected at least {list(inner)}, the smallest that pools to X"
        )
    return (x.but(dims),)


def _expand(nodes: Nodes) -> tuple[str, ...]:
    """Scatter into the smallest image that pools to X, then pad to the given shape."""
    site, rank = nodes.site, nodes.site.type(0).rank
    spatial = [
        d for d in infer_in_dims(site, site.type(0), read_kernel_shape(site)) if isinstance(d, int)
    ]
    if len(spatial) < rank - 2:
        site.fail("spatial dimensions must be known before lowering")
    head = nodes.op("Slice", nodes.op("Shape", nodes.x(0)), i64s(nodes, 0), i64s(nodes, 2))
    shape = nodes.op("Concat", head, i64s(nodes, *spatial), axis=0)
    flat = i64s(nodes, -1)
    # Indices are flat in the smallest image that pools to X, not in output_shape.
    zeros = nodes.op("Expand", nodes.like(0.0, 0), nodes.op("ReduceProd", shape, keepdims=1))
    places, values = (nodes.op("Reshape", nodes.x(i), flat) for i in (1, 0))
    y = nodes.op("Reshape", nodes.op("ScatterElements", zeros, places, values, axis=0), shape)
    if site.has(2):
        rest = nodes.op("Sub", nodes.x(2), shape)
        y = nodes.op("Pad", y, nodes.op("Concat", i64s(nodes, *[0] * rank), rest, axis=0))
    return (y,)


OPS = (
    Op(
        name="MaxUnpool",
        infer=_infer,
        expand=_expand,
        becomes="Concat Expand Pad ReduceProd Reshape ScatterElements Shape Slice Sub",
        no_gradient=frozenset((1, 2)),
    ),
)

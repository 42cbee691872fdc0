"""Ops whose output shapes depend on the data: NonZero and Unique, supported for constants only.

Forward   with NumPy, before lowering, because a plan needs known shapes
Backward  none
Error     none
"""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.kernels.ops.shape import infer_nothing
from engine.kernels.vocabulary.op import Op, Site, TensorType
from engine.kernels.vocabulary.shape_rules import normalise_axis


def _non_zero(site: Site) -> tuple[Array, ...]:
    return (np.stack(np.nonzero(np.atleast_1d(site.known(0, "the input")))).astype(np.int64),)


def _unique(site: Site) -> tuple[Array, ...]:
    """Return distinct elements or slices, first places, the inverse map, and counts."""
    x, axis = site.known(0, "the input"), site.attrs.get("axis")
    if axis is not None:
        axis = normalise_axis(site, axis, x.ndim)
    y, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    if not site.attrs["sorted"]:  # in the order in which they come
        order = np.argsort(first)
        y = y.take(order, 0 if axis is None else axis)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    indices = (a.reshape(-1).astype(np.int64) for a in (first, inverse, counts))
    return (y, *indices)[: site.n_outs]


def _infer(site: Site) -> tuple[TensorType, ...]:
    return infer_nothing(*(_non_zero if site.op == "NonZero" else _unique)(site))


OPS = (
    Op(name="NonZero", infer=_infer, fold=_non_zero, no_gradient=frozenset((0,))),
    Op(name="Unique", infer=_infer, fold=_unique, attrs={"sorted": 1}, no_gradient=frozenset((0,))),
)

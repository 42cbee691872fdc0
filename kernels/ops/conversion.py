"""Conversions named by another tensor or by bytes.

Forward   CastLike: Y = Cast(X) to the element type of the second input
          BitCast: the bytes of X, read as elements of another type of the same size
Backward  CastLike: as Cast; none through bytes
"""

from __future__ import annotations

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY, OF_ONNX, ONNX_CODE, name_onnx_type
from engine.kernels.loops.map import MAP_KERNELS, lower_map
from engine.kernels.vocabulary.facts import Movement, Samples
from engine.kernels.vocabulary.op import Lowering, Nodes, Op, Operand, Site, TensorType


def _cast_like(nodes: Nodes) -> tuple[str, ...]:
    return (nodes.op("Cast", nodes.x(0), to=ONNX_CODE[nodes.site.type(1).dtype]),)


def _cast_like_fold(site: Site) -> tuple[Array, ...]:
    return (site.known(0, "the input").astype(NUMPY[site.type(1).dtype]),)


def _bit_cast_infer(site: Site) -> tuple[TensorType, ...]:
    x, to = site.type(0), OF_ONNX.get(site.attrs["to"])
    kinds = {d for d in NUMPY if np.dtype(NUMPY[d]).itemsize == np.dtype(NUMPY[x.dtype]).itemsize}
    if to not in kinds:
        site.fail(
            f"input 0 is {x} and to is {name_onnx_type(site.attrs['to'])}, of another width",
            ", ".join(sorted(kinds)),
        )
    return (x.but(dtype=to),)


def _bit_cast_fold(site: Site) -> tuple[Array, ...]:
    (y,) = _bit_cast_infer(site)
    return (site.known(0, "the input").view(NUMPY[y.dtype]),)


def _bit_cast_lower(lowering: Lowering) -> None:
    y = lowering.y(0)
    # The operand is seen as the new type, so the map copies bytes.
    lower_map(lowering, [("in", 0)], [Operand(lowering.x(0).name, y.type)], [y])


OPS = (
    Op(
        name="CastLike",
        infer=lambda site: (site.type(0).but(dtype=site.type(1).dtype),),
        fold=_cast_like_fold,
        expand=_cast_like,
        becomes="Cast",
        no_gradient=frozenset({1}),
        samples=Samples.ELEMENTWISE,
        movement=Movement.CONVERTED,
        type_only=frozenset((1,)),
    ),
    Op(
        name="BitCast",
        infer=_bit_cast_infer,
        fold=_bit_cast_fold,
        lower=_bit_cast_lower,
        calls=MAP_KERNELS,
    ),
)

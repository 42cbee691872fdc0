"""Ops of onnxruntime-training that move gradients about: accumulation and ordering.

Forward   InPlaceAccumulator: s + v, or s where the signal is false;  ZeroGradient: zeros;
          PassThrough: its inputs;  Group: true, once its inputs are there
Backward  none
Error     none
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.kernels._expr import NUMPY
from engine.kernels._op import MS, Array, Nodes, Op, Site, TensorType, same_as
from engine.kernels.shape import i64s


def _accumulated(g: Nodes) -> tuple[str, ...]:
    total = g.op("Add", g.x(0), g.x(1))
    if not g.site.has(2):
        return (total,)
    return (g.op("Where", g.op("Reshape", g.x(2), i64s(g)), total, g.x(0)),)


def _accumulated_infer(s: Site) -> tuple[TensorType, ...]:
    s.shaped(1, s.type(0).shape)
    return (s.type(0).but(),)


def _zero(g: Nodes) -> tuple[str, ...]:
    value: Array = np.zeros(1, NUMPY[g.site.type(0).dtype])
    return (g.op("ConstantOfShape", g.op("Shape", g.x(0)), value=value),)


def _op(name: str, infer: Callable[[Site], Any], expand: Callable[[Nodes], Any], count: int) -> Op:
    return Op(name=name, domain=MS, infer=infer, expand=expand, stop=frozenset(range(count)))


MANY = 1000  # inputs of which none has a gradient

OPS = (
    _op("InPlaceAccumulator", _accumulated_infer, _accumulated, 3),
    _op("ZeroGradient", same_as(0), _zero, 2),
    _op(
        "PassThrough",
        lambda s: tuple(s.type(i).but() for i in range(s.n_outs)),
        lambda g: tuple(g.x(i) for i in range(g.site.n_outs)),
        MANY,
    ),
    _op(
        "Group",
        lambda s: (TensorType("b1", (1,)),),
        lambda g: (g.const(np.ones(1, np.bool_), "b1"),),
        MANY,
    ),
)
KERNELS = ()

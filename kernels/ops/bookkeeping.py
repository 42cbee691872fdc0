"""Bookkeeping of gradients: onnxruntime-training's ops for accumulation and ordering.

Forward   InPlaceAccumulatorV2: buffer = value, or buffer + value without a reset, in place;
          InPlaceAccumulator: s + v, or s where the signal is false;  ZeroGradient: zeros;
          PassThrough: its inputs;  Group: true
Backward  none
Error     none
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.kernels.loops.map import MAP_KERNELS, lower_map, update
from engine.kernels.ops.shape import i64s
from engine.kernels.vocabulary.expression import Expr
from engine.kernels.vocabulary.op import MANY, MS, Lowering, Nodes, Op, Operand, Site, TensorType
from engine.kernels.vocabulary.shape_rules import same_as


def _accumulated(nodes: Nodes) -> tuple[str, ...]:
    total = nodes.op("Add", nodes.x(0), nodes.x(1))
    if not nodes.site.has(2):
        return (total,)
    return (nodes.op("Where", nodes.op("Reshape", nodes.x(2), i64s(nodes)), total, nodes.x(0)),)


def _accumulated_infer(site: Site) -> tuple[TensorType, ...]:
    site.shaped(1, site.type(0).shape)
    return (site.type(0).but(),)


def _accumulate(lowering: Lowering) -> None:
    """Append the calls for buffer = reset ? value : buffer + value, in place.

    Shapes may differ in dimensions of 1.  Output 0 is true, output 1 the buffer afterwards.
    """
    buffer, value = (
        lowering.x(0),
        Operand(lowering.x(1).name, lowering.x(1).type.but(lowering.x(0).type.shape)),
    )
    if [d for d in lowering.x(1).type.dims if d != 1] != [d for d in buffer.type.dims if d != 1]:
        lowering.site.wrong(f"gradient {lowering.x(1).type} does not fit its buffer {buffer.type}")
    add: Expr = ("add", ("in", 0), ("in", 1))
    if lowering.site.has(2):
        # The flag is one element, which broadcasts over the buffer.
        flag = Operand(lowering.x(2).name, TensorType("b1", ()))
        update(lowering, ("where", ("in", 2), ("in", 1), add), [buffer, value, flag], buffer)
    else:
        update(lowering, add, [buffer, value], buffer)
    # onnxruntime's graphs order nodes by this output.
    if lowering.wants(0):
        lower_map(lowering, [("const", True)], [], [lowering.y(0)])
    if lowering.site.n_outs > 1 and lowering.wants(1):
        lower_map(lowering, [("in", 0)], [buffer], [lowering.y(1)])


def _zero(nodes: Nodes) -> tuple[str, ...]:
    value: Array = np.zeros(1, NUMPY[nodes.site.type(0).dtype])
    return (nodes.op("ConstantOfShape", nodes.op("Shape", nodes.x(0)), value=value),)


def _op(
    name: str,
    infer: Callable[[Site], Any],
    expand: Callable[[Nodes], Any],
    becomes: str,
    inputs: tuple[int, int],
    outputs: int = 1,
) -> Op:
    """Return an op of training graphs; none of its inputs has a gradient."""
    return Op(
        name=name,
        domain=MS,
        infer=infer,
        expand=expand,
        becomes=becomes,
        inputs=inputs,
        outputs=outputs,
        no_gradient=frozenset(range(min(inputs[1], MOST))),
        training_only=True,
    )


MOST = 1000  # inputs, of one that has no limit, through which no gradient flows

OPS = (
    _op("InPlaceAccumulator", _accumulated_infer, _accumulated, "Add Reshape Where", (2, 3)),
    Op(
        name="InPlaceAccumulatorV2",
        domain=MS,
        inputs=(2, 3),
        outputs=2,
        training_only=True,
        is_acting=True,
        lower=_accumulate,
        calls=MAP_KERNELS,
        no_gradient=frozenset((0, 1, 2)),
        infer=lambda site: (TensorType("b1", (1,)), site.type(0).but())[: site.n_outs],
    ),
    _op("ZeroGradient", same_as(0), _zero, "ConstantOfShape Shape", (2, 2)),
    _op(
        "PassThrough",
        lambda site: tuple(site.type(i).but() for i in range(site.n_outs)),
        lambda nodes: tuple(nodes.x(i) for i in range(nodes.site.n_outs)),
        "",
        (1, MANY),
        MANY,
    ),
    _op(
        "Group",
        lambda s: (TensorType("b1", (1,)),),
        lambda g: (g.const(np.ones(1, np.bool_), "b1"),),
        "",
        (1, MANY),
    ),
)

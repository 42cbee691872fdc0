"""Integers that are trained where they lie: quantised weights and biases without float masters.

A weight w = s (q - z) is stored as the integers q alone.  Its update is a step of gradient descent
in w, expressed in q:

    w = w - r dL/dw        q = q - r (dL/dw) / s

so the optimizer gets (dL/dw) / s as the gradient of q, and rounds what it stores
(kernels/ops/optimizer/integer_sgd.py).  By the chain rule alone dL/dq = s dL/dw; against it this is
the factor s^-2 of *quantisation-aware scaling* (Lin et al. 2022, arXiv 2206.15472), with which the
norm of a weight and of its gradient have the ratio that they have in floats, whatever the scale of
its layer.

    Before   d = DequantizeLinear(q, s, z); y = Conv(x, d)
    After    d_grad = ...;  q_grad = Mul(d_grad, 1 / s)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_NUMPY, TRAINED_INTEGERS
from engine.base.errors import DTypeError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import is_dequantiser
from engine.kernels.vocabulary.op import TensorType


@dataclass(frozen=True, slots=True)
class ResidentInteger:
    """Parameter of integers that is trained in place.

    values: the floats that are made of it.
    inverse: of the scale, in a shape that broadcasts to the parameter.
    """

    name: str
    values: tuple[str, ...]
    inverse: Array


def list_resident(graph: Graph) -> list[str]:
    """Return the initializers that can be trained as integers: those that are dequantised alone."""
    readers = graph.find_consumers()
    return [
        name
        for name, array in graph.initializers.items()
        if OF_NUMPY.get(array.dtype) in TRAINED_INTEGERS
        and array.ndim
        and readers.get(name)
        and all(_is_dequantiser_of(node, name) for node in readers[name])
        and all(graph.initializers.get(node.inputs[1]) is not None for node in readers[name])
    ]


def find_resident(
    graph: Graph, names: Sequence[str], types: Mapping[str, TensorType]
) -> dict[str, ResidentInteger]:
    """Return the parameters that are integers, of some parameters.

    Raises:
        DTypeError: something else than DequantizeLinear reads one.
        UnsupportedOpError: the scale of one is not constant, or is not the same for all readers.
    """
    readers = graph.find_consumers()
    return {
        name: _describe(graph, name, readers.get(name, ()), types)
        for name in names
        if types[name].dtype not in FLOATS
    }


def scale_gradient(graph: Graph, integer: ResidentInteger, gradients: Mapping[str, str]) -> str:
    """Append the gradient of a parameter of integers, in units of its scale; return its name.

    gradients: of the floats that are made of it.
    """
    names, name = Names(graph), integer.name
    total, *others = (gradients[value] for value in integer.values)
    for other in others:
        joined = names.take_fresh(f"{name}_sum")
        title = names.take_fresh(f"{joined}/Add")
        graph.nodes.append(Node("Add", (total, other), (joined,), {}, "", title))
        total = joined
    inverse = names.take_fresh(f"{name}_inverse_scale")
    graph.initializers[inverse] = integer.inverse
    scaled = names.take_fresh(f"{name}_grad")
    title = names.take_fresh(f"{scaled}/Mul")
    graph.nodes.append(Node("Mul", (total, inverse), (scaled,), {}, "", title))
    return scaled


def _is_dequantiser_of(node: Node, name: str) -> bool:
    """Return whether a node makes floats of a parameter, and reads it for nothing else."""
    return is_dequantiser(node) and node.inputs[0] == name and name not in node.inputs[1:]


def _describe(
    graph: Graph, name: str, readers: Sequence[Node], types: Mapping[str, TensorType]
) -> ResidentInteger:
    shape = types[name].dims
    inverses: list[Array] = []
    for node in readers:
        if not _is_dequantiser_of(node, name):
            raise DTypeError(
                f"requires_grad: {name!r} is {types[name]} and read by {node.op} {node.name!r}; "
                "integers are trained where DequantizeLinear alone reads them"
            )
        scale = graph.initializers.get(node.inputs[1])
        if scale is None or scale.dtype != np.float32:
            raise UnsupportedOpError(
                f"{node.op} {node.name!r}: the scale {node.inputs[1]!r} of {name!r}, which is "
                "trained, is not a constant of float32"
            )
        inverses.append(_spread_inverse(node, scale, shape))
    if not inverses:
        raise DTypeError(
            f"requires_grad: {name!r} is {types[name]} and nothing dequantises it; integers are "
            "trained where DequantizeLinear alone reads them"
        )
    if any(not np.array_equal(inverses[0], each) for each in inverses):
        raise UnsupportedOpError(
            f"{name!r} is trained and dequantised with several scales, by "
            + ", ".join(repr(node.name) for node in readers)
        )
    return ResidentInteger(name, tuple(node.outputs[0] for node in readers), inverses[0])


def _spread_inverse(node: Node, scale: Array, shape: Sequence[int]) -> Array:
    """Return 1 / scale in a shape that broadcasts to the integers of a DequantizeLinear.

    It is 0 where the scale is 0: there all integers stand for the same weight, so none is trained.
    """
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    if scale.size == 1:
        return np.asarray(inverse.reshape(()))
    axis = int(node.attrs.get("axis", 1)) % len(shape)
    block = int(node.attrs.get("block_size", 0))
    if block:
        return np.repeat(inverse, block, axis)[tuple(map(slice, shape))]
    return np.asarray(inverse.reshape([-1 if k == axis else 1 for k in range(len(shape))]))

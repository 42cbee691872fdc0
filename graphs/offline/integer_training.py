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

Integers of 4 bits are two to a byte (packed_weights.py); their gradient has an element for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_NUMPY, TRAINED_INTEGERS
from engine.base.errors import DTypeError, InputError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node
from engine.graphs.ir.sites import is_dequantiser
from engine.graphs.offline.packed_weights import NBITS, TRAINED_BITS
from engine.graphs.passes.quantised import PACKED_WEIGHTS
from engine.kernels.vocabulary.op import TensorType


@dataclass(frozen=True, slots=True)
class NibblePacking:
    """The way several integers share the bytes of a parameter.

    attrs: of the node that makes floats of them.  gradient: the shape of their gradient.
    """

    attrs: Mapping[str, Any]
    gradient: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResidentInteger:
    """Parameter of integers that is trained in place.

    values: the floats that are made of it.
    inverse: of the scale, in a shape that broadcasts to the values.
    packed: None where each integer is an element.
    """

    name: str
    values: tuple[str, ...]
    inverse: Array
    packed: NibblePacking | None = None


def list_resident(graph: Graph) -> list[str]:
    """Return the initializers that can be trained as integers: those that are dequantised alone,
    and weights of 4 or 8 bits that MatMulNBits alone reads.
    """
    readers = graph.find_consumers()
    return [
        name
        for name, array in graph.initializers.items()
        if OF_NUMPY.get(array.dtype) in TRAINED_INTEGERS
        and array.ndim
        and readers.get(name)
        and all(find_scale_name(node, name) in graph.initializers for node in readers[name])
    ]


def find_scale_name(node: Node, name: str) -> str:
    """Return the scale with which a node makes floats of a parameter of integers, or multiplies by
    it; "" if it does neither, or reads the parameter for anything else.
    """
    if _is_dequantiser_of(node, name):
        return node.inputs[1]
    is_product = (node.domain, node.op) == NBITS and node.inputs[1] == name
    bits = node.attrs.get("bits", 4)
    is_alone = is_product and name not in (node.inputs[0], *node.inputs[2:])
    return node.inputs[2] if is_alone and bits in TRAINED_BITS else ""


def list_units(graph: Graph, names: Iterable[str]) -> set[str]:
    """Return the scales and zero points of some integers, which stay as they are in training."""
    readers = graph.find_consumers()
    return {
        unit
        for name in names
        for node in readers.get(name, ())
        if find_scale_name(node, name)
        for unit in (node.inputs[2:4] if (node.domain, node.op) == NBITS else node.inputs[1:3])
    }


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
    if integer.packed is not None:
        return _scale_packed(graph, integer, total, inverse)
    scaled = names.take_fresh(f"{name}_grad")
    title = names.take_fresh(f"{scaled}/Mul")
    graph.nodes.append(Node("Mul", (total, inverse), (scaled,), {}, "", title))
    return scaled


def _scale_packed(graph: Graph, integer: ResidentInteger, total: str, inverse: str) -> str:
    """Append the gradient of a packed parameter, scaled as it is, or as a matrix of blocks.

    The gradients of what fills blocks and bytes up are 0.
    """
    assert integer.packed is not None
    attrs, shape = integer.packed.attrs, integer.packed.gradient
    names, base = Names(graph), f"{integer.name}_grad"
    rows, columns = int(attrs["rows"]), int(attrs["columns"])
    stride = int(attrs.get("stride", 0)) or columns

    def append(op: str, *inputs: str | list[int]) -> str:
        made = names.take_fresh(base)
        read = [
            i if isinstance(i, str) else graph.add_constant(f"{base}_{op}", np.array(i), names)
            for i in inputs
        ]
        title = names.take_fresh(f"{made}/{op}")
        graph.nodes.append(Node(op, tuple(read), (made,), {}, "", title))
        return made

    def fit(value: str, old: tuple[int, int], new: tuple[int, int]) -> str:
        """Return a matrix of another size: cut off, or with zeros at its ends."""
        more = [max(n - o, 0) for o, n in zip(old, new, strict=True)]
        if any(n < o for o, n in zip(old, new, strict=True)):
            value = append("Slice", value, [0, 0], [*new], [0, 1])
        return append("Pad", value, [0, 0, *more]) if any(more) else value

    block = int(attrs["block_rows"]), int(attrs["block_columns"])
    if all(block):
        down, beside = (integer.inverse.shape[k] for k in (0, 2))
        high, wide = down * block[0], beside * block[1]
        flat = fit(append("Reshape", total, [rows, columns]), (rows, columns), (high, wide))
        blocks = append("Reshape", flat, [down, block[0], beside, block[1]])
        scaled = append("Reshape", append("Mul", blocks, inverse), [high, wide])
        flat = append("Reshape", fit(scaled, (high, wide), (rows, stride)), [-1])
    else:  # a view of the gradient would be computed in memory of its own
        scaled = append("Reshape", append("Mul", total, inverse), [rows, columns])
        flat = append("Reshape", fit(scaled, (rows, columns), (rows, stride)), [-1])
    if more := math.prod(shape) - rows * stride:
        flat = append("Pad", flat, [0, more])
    return append("Reshape", flat, [*shape])


def refuse_decay(training: Graph, optimizer: Graph) -> None:
    """Refuse a weight decay of integers whose 0 does not stand for the weight 0.

    Raises:
        InputError: an optimizer node has a decay for such a parameter.
    """
    readers = training.find_consumers()
    for node in optimizer.nodes:
        decay = float(node.attrs.get("weight_decay", 0))
        for name in node.attrs.get("parameters", ()) if decay else ():
            for reader in readers.get(name, ()):
                point = _find_zero(training, reader, name)
                if point:
                    raise InputError(
                        f"weight_decay={decay} of {name!r}: its zero points, such as {point}, are "
                        "not 0, and a decay pulls integers to 0; supported: no decay, or symmetric "
                        "weights"
                    )


def _find_zero(graph: Graph, reader: Node, name: str) -> int:
    """Return a zero point of integers, other than 0 if there is one."""
    if not _is_dequantiser_of(reader, name):
        return 0
    zero = reader.inputs[2] if len(reader.inputs) > 2 else ""
    points = graph.initializers.get(zero, np.asarray(reader.attrs.get("zero", 0)))
    return int(points.reshape(-1)[np.abs(points.reshape(-1).astype(np.int64)).argmax()])


def _is_dequantiser_of(node: Node, name: str) -> bool:
    """Return whether a node makes floats of a parameter, and reads it for nothing else."""
    is_one = is_dequantiser(node) or (node.domain, node.op) == PACKED_WEIGHTS
    return is_one and node.inputs[0] == name and name not in node.inputs[1:]


def _describe(
    graph: Graph, name: str, readers: Sequence[Node], types: Mapping[str, TensorType]
) -> ResidentInteger:
    shape = types[name].dims
    inverses: list[Array] = []
    for node in readers:
        if not _is_dequantiser_of(node, name):
            raise DTypeError(
                f"requires_grad: {name!r} is {types[name]} and read by {node.op} {node.name!r}; "
                "integers are trained where DequantizeLinear alone reads them, or MatMulNBits of "
                "4 or 8 bits"
            )
        scale = graph.initializers.get(node.inputs[1])
        if scale is None or scale.dtype != np.float32:
            raise UnsupportedOpError(
                f"{node.op} {node.name!r}: the scale {node.inputs[1]!r} of {name!r}, which is "
                "trained, is not a constant of float32"
            )
        if (node.domain, node.op) == PACKED_WEIGHTS:
            inverses.append(_spread_over_blocks(node, scale))
        else:
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
    packed = None
    if (node := readers[0]).op == PACKED_WEIGHTS[1]:
        each = 8 // int(node.attrs["bits"])
        packed = NibblePacking(node.attrs, (*shape[:-1], shape[-1] * each))
    return ResidentInteger(name, tuple(node.outputs[0] for node in readers), inverses[0], packed)


def _spread_over_blocks(node: Node, scale: Array) -> Array:
    """Return 1 / scale of packed integers: of blocks of a matrix [down, 1, beside, 1]; of whole
    rows or columns, in a shape that broadcasts to the weights.
    """
    rows, columns = int(node.attrs["rows"]), int(node.attrs["columns"])
    down, beside = int(node.attrs["block_rows"]), int(node.attrs["block_columns"])
    inverse, rest = _invert(scale), [1] * (len(node.attrs["shape"]) - 2)
    if down and beside:
        return inverse.reshape(-(-rows // down), 1, -(-columns // beside), 1)
    return inverse.reshape(-1 if down else 1, -1 if beside else 1, *rest)


def _invert(scale: Array) -> Array:
    """Return 1 / scale; 0 where the scale is 0: there all integers stand for the same weight, so
    none is trained.
    """
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return np.asarray(inverse)


def _spread_inverse(node: Node, scale: Array, shape: Sequence[int]) -> Array:
    """Return 1 / scale in a shape that broadcasts to the integers of a DequantizeLinear."""
    inverse = _invert(scale)
    if scale.size == 1:
        return np.asarray(inverse.reshape(()))
    axis = int(node.attrs.get("axis", 1)) % len(shape)
    block = int(node.attrs.get("block_size", 0))
    if block:
        return np.repeat(inverse, block, axis)[tuple(map(slice, shape))]
    return np.asarray(inverse.reshape([-1 if k == axis else 1 for k in range(len(shape))]))

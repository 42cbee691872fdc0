"""Models of Keras and TensorFlow, as tf2onnx writes them: repairs of what it did to parameters.

tf2onnx takes variables for constants.  It stores equal constants once, folds them into one another,
and lists some that it has folded among the inputs of the model.
"""

from __future__ import annotations

import re

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_NUMPY
from engine.graphs.io.module_paths import KERAS
from engine.graphs.ir.graph import Graph, Names, Node, Subgraph
from engine.kernels.ops.registry import list_ops

_FOLDED = re.compile(r"const_fold_opt__\d+")
# Values of layers that prepare inputs and train nothing, by the names that Keras gives them.
_PREPARING = re.compile(r"(.*/)?(rescaling|normalization)(_\d+)*/.*")


def separate_equal(graph: Graph) -> Graph:
    """Give each layer of a new model its own copy of a parameter of equal elements, in place.

    Before   y = Mul(a, ones)  # norm_1/mul         z = Mul(b, ones)    # norm_2/mul
    After    y = Mul(a, ones)  # norm_1/mul         z = Mul(b, norm_2/ones)  # norm_2/mul

    If layers that are not yet trained shared their ones and zeros, they would stay equal.  Weights
    with random values are equal only in layers that the model calls several times.
    """
    if graph.producer != KERAS:
        return graph
    names = Names(graph)
    for name, readers in graph.find_consumers().items():
        array = graph.initializers.get(name)
        if array is None or len(readers) < 2 or not _is_uniform(array):
            continue
        layers: dict[str, list[Node]] = {}
        for node in readers:
            layers.setdefault(node.name.rpartition("/")[0] or node.name, []).append(node)
        for layer, nodes in list(layers.items())[1:]:
            has_scope = layer != nodes[0].name
            copy = names.take_fresh(f"{layer}/{name.rpartition('/')[2]}" if has_scope else name)
            graph.initializers[copy] = array
            for node in nodes:
                _replace_input(node, name, copy)
    return graph


def list_constants(graph: Graph) -> list[str]:
    """Return constants that look like parameters: means and scales of the layers that prepare
    inputs, and single factors, bounds and epsilons.

    tf2onnx gives single numbers as many axes as the values that they are added to have.
    """
    if graph.producer != KERAS:
        return []
    readers = graph.find_consumers()

    def is_single_number(name: str, array: Array) -> bool:
        is_folded = array.size == 1 and _FOLDED.fullmatch(name) is not None
        return is_folded and all(map(_is_elementwise, readers.get(name, ())))

    return [
        name
        for name, array in graph.initializers.items()
        if _PREPARING.fullmatch(name) or is_single_number(name, array)
    ]


def drop_stray_inputs(graph: Graph) -> Graph:
    """Drop the inputs that are constants: nothing reads them, and they have no axis for samples."""
    if graph.producer != KERAS:
        return graph
    read = {*graph.find_consumers(), *graph.outputs}
    for name, t in list(graph.inputs.items()):
        if name not in read and all(isinstance(size, int) for size in t.shape):
            del graph.inputs[name]
    return graph


def _replace_input(node: Node, old: str, new: str) -> None:
    """Let a node and its bodies read another value."""
    node.inputs = tuple(new if i == old else i for i in node.inputs)
    for key, value in node.attrs.items():
        if isinstance(value, Subgraph) and old in value.captured:
            node.attrs[key] = value.rename_values({old: new})


def _is_uniform(array: Array) -> bool:
    """Return whether an array holds several floats that are all equal."""
    if array.size < 2 or OF_NUMPY.get(array.dtype) not in FLOATS:
        return False
    return bool(np.all(array == array.flat[0]))


def _is_elementwise(node: Node) -> bool:
    op = list_ops().get((node.domain, node.op))
    return op is not None and op.expr is not None

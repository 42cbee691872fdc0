"""Small networks for rows of numbers and for pictures: a perceptron, a CNN, an autoencoder."""

from __future__ import annotations

import math
from itertools import pairwise

from engine.base.errors import ShapeError
from engine.graphs.ir.graph import Graph
from engine.kernels.vocabulary.op import TensorType
from engine.models.initial import make_uniform
from engine.models.layers import CLASSES, Layers


def build_mlp(
    shape: tuple[int, ...] = (784,), outputs: int = CLASSES, *, hidden: tuple[int, ...] = (500,),
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return a multilayer perceptron with ReLU, by default 784-500-10.

    Parameters are called as in PyTorch's `Sequential(Linear, ReLU, ..., Linear)`.
    """
    to = Layers(seed)
    y, sizes = "x", (math.prod(shape), *hidden)
    if len(shape) > 1:
        y = to.add_op("Flatten", y)
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        y = to.add_op("Relu", to.add_dense(y, str(2 * i), n_in, n_out))
    to.add_scores(y, str(2 * len(hidden)), sizes[-1], outputs)
    return to.make_graph("mlp", TensorType("f32", ("batch", *shape)), ("batch", outputs))


def build_cnn(
    shape: tuple[int, ...] = (1, 28, 28), outputs: int = CLASSES, *, seed: int = 0
) -> Graph:
    """Return the CNN of PyTorch's MNIST example: two 3x3 convolutions, maxpool, two linear layers.

    The convolutions have 32 and 64 channels and no padding, the hidden layer 128 values.

    Raises:
        ShapeError: pictures are smaller than 6x6.
    """
    channels, *sides = shape
    if min(sides) < 6:
        raise ShapeError(f"cnn: pictures of {list(shape)}; expected sides of 6 pixels or more")
    to = Layers(seed)
    y, ci = "x", channels
    for i, co in enumerate((32, 64), 1):
        rule = make_uniform(9 * ci)
        y = to.add_convolution(y, f"conv{i}", ci, co, 3, bias=True, rule=rule, bias_rule=rule)
        y, ci = to.add_op("Relu", y), co
    y = to.add_op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    flat = 64 * math.prod((side - 4) // 2 for side in sides)
    y = to.add_op("Relu", to.add_dense(to.add_op("Flatten", y), "fc1", flat, 128))
    to.add_scores(y, "fc2", 128, outputs)
    return to.make_graph("cnn", TensorType("f32", ("batch", *shape)), ("batch", outputs))


def build_autoencoder(
    shape: tuple[int, ...] = (64,), *, hidden: int = 64, narrow: int = 8, seed: int = 0
) -> Graph:
    """Return an autoencoder of rows (Hinton, Salakhutdinov 2006): it guesses its own input.

    shape: (n,), a row; its values become `hidden`, `narrow`, `hidden` and n again, with ReLU.
    """
    (width,) = shape
    to = Layers(seed)
    y = to.add_op("Relu", to.add_dense("x", "encoder.0", width, hidden))
    y = to.add_dense(y, "encoder.2", hidden, narrow)
    y = to.add_op("Relu", to.add_dense(y, "decoder.0", narrow, hidden))
    to.add_scores(y, "decoder.2", hidden, width)
    return to.make_graph("autoencoder", TensorType("f32", ("batch", width)), ("batch", width))

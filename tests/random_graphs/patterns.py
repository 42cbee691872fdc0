"""Patterns: runs of nodes as exporters write them, which passes look for, on values of any shape.

Each takes a value of real numbers, and leaves new values for others to use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import parser

from engine.graphs.io import onnx_io
from engine.kernels.vocabulary.op import MS
from tests.random_graphs.shapes import fit, reduce
from tests.random_graphs.sketch import Sketch, UnfitError

ACTIVATIONS = ("Relu", "Relu", "Sigmoid", "Tanh", "Elu", "LeakyRelu", "Softplus", "HardSigmoid",
               "Selu", "Mish", "HardSwish", "Exp", "Neg", "Abs", "Identity")  # fmt: skip
WIDTHS = (1, 2, 3, 4, 8, 16)


def matrix(sketch: Sketch, x: str) -> str:
    """The value with at least two axes."""
    return _of_rank(sketch, x, 2)


def _of_rank(sketch: Sketch, x: str, least: int) -> str:
    """The value with at least this many axes: of one element each where there were fewer."""
    known = sketch.shape(x)
    if len(known) >= least:
        return x
    return fit(sketch, x, (1,) * (least - len(known)) + known)


def image(sketch: Sketch, x: str) -> str:
    """The value as images of rank 4."""
    known = sketch.shape(x)
    if len(known) < 4:
        return _of_rank(sketch, x, 4)
    return fit(sketch, x, (math.prod(known[:-3]), *known[-3:]))


def activation(sketch: Sketch, x: str) -> str:
    """An activation, as one op or as several."""
    rng = sketch.rng
    kind = rng.randrange(8)
    if kind == 0:  # x * sigmoid(x), of x or of x times a number
        inner = x if rng.random() < 0.7 else sketch.add("Mul", x, sketch.real(1.702))
        parts = [x, sketch.add("Sigmoid", inner)]
        rng.shuffle(parts)
        return str(sketch.add("Mul", *parts))
    if kind == 1:  # by erf
        inner = sketch.add("Div", x, sketch.real(2**0.5))
        gate = sketch.add("Add", sketch.add("Erf", inner), sketch.real(1.0))
        if rng.random() < 0.5:
            return str(sketch.add("Mul", sketch.add("Mul", x, gate), sketch.real(0.5)))
        return str(sketch.add("Mul", x, sketch.add("Mul", gate, sketch.real(0.5))))
    if kind == 2:
        return str(sketch.add("Clip", x, sketch.real(0.0), sketch.real(6.0)))
    if kind == 3 and len(sketch.shape(x)) > 1:
        slope = sketch.weight(*([1] * (len(sketch.shape(x)) - 1)), sketch.shape(x)[-1])
        return str(sketch.add("PRelu", x, slope))
    op = rng.choice(ACTIVATIONS)
    if op in ("Mish", "HardSwish") and sketch.opset < 18:
        op = "Tanh"
    return str(sketch.add(op, x))


def after_layer(sketch: Sketch, y: str) -> str:
    """Add what follows a layer: mostly a Relu, which the layer can apply itself."""
    return str(sketch.add("Relu", y)) if sketch.rng.random() < 0.5 else activation(sketch, y)


def weight(sketch: Sketch, shape: tuple[int, ...]) -> str:
    """Return an operand of a layer: a weight, also one that was read before, or is joined of
    two.
    """
    rng = sketch.rng
    if rng.random() < 0.1:
        same = [n for n in sketch.fed if sketch.shape(n) == shape]
        if same and sketch.values[same[0]].dtype == sketch.dtype:
            return rng.choice([n for n in same if sketch.values[n].dtype == sketch.dtype])
    axis = rng.randrange(2)
    if rng.random() > 0.2 or shape[axis] < 2:
        return sketch.weight(*shape)
    first = rng.randint(1, shape[axis] - 1)
    parts = [
        sketch.feed(sketch.random((*shape[:axis], length, *shape[axis + 1 :]), 0.5))
        for length in (first, shape[axis] - first)
    ]
    return str(sketch.add("Concat", *parts, axis=axis))


def linear(sketch: Sketch, x: str, width: int = 0) -> str:
    """x W + b: by MatMul and Add, or by Gemm; W as it is, or transposed."""
    rng = sketch.rng
    x = matrix(sketch, x)
    depth, width = sketch.shape(x)[-1], width or rng.choice(WIDTHS)
    is_turned = rng.random() < 0.4
    w = weight(sketch, (width, depth) if is_turned else (depth, width))
    if len(sketch.shape(x)) == 2 and rng.random() < 0.5:
        bias = [sketch.weight(width)] if rng.random() < 0.6 else []
        attrs: dict[str, Any] = {"alpha": 0.5} if rng.random() < 0.1 else {}
        return str(sketch.add("Gemm", x, w, *bias, transB=int(is_turned), **attrs))
    if is_turned:
        w = sketch.add("Transpose", w, perm=[1, 0])
    y = sketch.add("MatMul", x, w)
    if rng.random() < 0.6:
        parts = [y, sketch.weight(width)]
        rng.shuffle(parts)
        y = sketch.add("Add", *parts)
    return str(y)


def add_linear(sketch: Sketch, x: str) -> None:
    """A linear layer, mostly with an activation."""
    y = linear(sketch, x)
    if sketch.rng.random() < 0.7:
        after_layer(sketch, y)


def add_activation(sketch: Sketch, x: str) -> None:
    """An activation."""
    activation(sketch, x)


def add_joined_linear(sketch: Sketch, x: str) -> None:
    """A linear layer of two values side by side: the gradient of each is a part of a product."""
    x = matrix(sketch, x)
    known = sketch.shape(x)
    other = sketch.rng.choice(sketch.floats())
    other = fit(sketch, other, (*known[:-1], sketch.rng.choice(WIDTHS)))
    axis = -1 if sketch.rng.random() < 0.5 else len(known) - 1
    linear(sketch, sketch.add("Concat", x, other, axis=axis))


def add_parts(sketch: Sketch, x: str) -> None:
    """A linear layer whose output is split; a part gates another, or all go on alone."""
    rng = sketch.rng
    count, width = rng.choice((2, 2, 3)), rng.choice((1, 2, 4, 8))
    y = linear(sketch, x, count * width)
    rank = len(sketch.shape(y))
    axis = rng.choice((-1, rank - 1))
    if rng.random() < 0.6:
        parts = sketch.add("Split", y, sketch.ints(*[width] * count), outs=count, axis=axis)
    else:
        ends = [(k * width, (k + 1) * width) for k in range(count)]
        parts = [
            sketch.add("Slice", y, sketch.ints(a), sketch.ints(b), sketch.ints(axis))
            for a, b in ends
        ]
    if rng.random() < 0.7:
        sketch.add("Mul", parts[0], activation(sketch, parts[1]))


def add_slice(sketch: Sketch, x: str) -> None:
    """A part of a value along one axis or two, with steps of any sign."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    known = sketch.shape(x)
    axes = rng.sample(range(len(known)), min(len(known), rng.choice((1, 1, 1, 2))))
    begins, ends, steps = [], [], []
    for axis in axes:
        a, b = sorted((rng.randint(0, known[axis]), rng.randint(0, known[axis])))
        step = rng.choice((1, 1, 1, 1, 2, -1))
        if step < 0:
            a, b = b - 1, a - 1 if a else -known[axis] - 1
        elif rng.random() < 0.2:
            b = 2**31 if rng.random() < 0.5 else 2**63 - 1
        begins.append(a)
        ends.append(b)
        steps.append(step)
    shown = [a - len(known) if rng.random() < 0.4 else a for a in axes]
    inputs = [sketch.ints(*begins), sketch.ints(*ends), sketch.ints(*shown)]
    if any(s != 1 for s in steps) or rng.random() < 0.3:
        inputs.append(sketch.ints(*steps))
    sketch.add("Slice", x, *inputs)


def add_sum(sketch: Sketch, x: str) -> None:
    """Two values in one formula: of the same shape, or broadcast either way; or one value twice."""
    rng = sketch.rng
    op = rng.choice(("Add", "Add", "Add", "Mul", "Mul", "Sub", "Div", "Max", "Min", "Sum"))
    other = x if rng.random() < 0.15 else rng.choice(sketch.floats())
    known = list(sketch.shape(x))
    if other != x and sketch.shape(other) != tuple(known):
        shape = [1 if rng.random() < 0.3 else size for size in known]
        other = fit(sketch, other, tuple(shape[rng.randint(0, len(shape)) :]))
    if op == "Div":
        other = sketch.add("Add", sketch.add("Abs", other), sketch.real(0.5))
    if op == "Pow":
        x = sketch.add("Abs", x)
    parts = [x, other]
    if op != "Div":
        rng.shuffle(parts)
    y = sketch.add(op, *parts)
    if rng.random() < 0.3:
        activation(sketch, y)


def add_residual(sketch: Sketch, x: str) -> None:
    """x plus a layer of x."""
    x = matrix(sketch, x)
    inner = after_layer(sketch, linear(sketch, x))
    y = linear(sketch, inner, sketch.shape(x)[-1])
    if sketch.shape(y) != sketch.shape(x):
        raise UnfitError("residual: another shape")
    parts = [x, y]
    sketch.rng.shuffle(parts)
    sketch.add("Add", *parts)


def add_movement(sketch: Sketch, x: str) -> None:
    """Add transposes and reshapes in a row; some cancel."""
    rng = sketch.rng
    for _ in range(rng.choice((1, 2, 2, 3))):
        known = sketch.shape(x)
        match rng.randrange(5):
            case 0:
                x = sketch.add(
                    "Unsqueeze", x, sketch.ints(rng.randint(-len(known) - 1, len(known)))
                )
            case 1 if 1 in known:
                axis = rng.choice([k for k, size in enumerate(known) if size == 1])
                x = sketch.add("Squeeze", x, sketch.ints(rng.choice((axis, axis - len(known)))))
            case 2:
                x = sketch.add("Flatten", x, axis=rng.randint(-len(known), len(known)))
            case _ if len(known) > 1:
                order = list(range(len(known)))
                rng.shuffle(order)
                x = sketch.add("Transpose", x, perm=order)
                if rng.random() < 0.4:
                    back = [order.index(k) for k in range(len(known))]
                    x = sketch.add("Transpose", activation(sketch, x), perm=back)
            case _:
                x = fit(sketch, x, (math.prod(known),))


def add_product(sketch: Sketch, x: str) -> None:
    """A product of two values, either of them transposed, of any ranks that broadcast."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    known = sketch.shape(x)
    if rng.random() < 0.25:
        x = sketch.add("Transpose", x, perm=[*range(len(known) - 2), *range(len(known))[:-3:-1]])
        known = sketch.shape(x)
    batch = [1 if rng.random() < 0.2 else size for size in known[:-2]]
    batch = batch[rng.randint(0, len(batch)) :] if rng.random() < 0.4 else batch
    shape = [known[-1]] if rng.random() < 0.1 else [*batch, known[-1], rng.choice(WIDTHS)]
    other = fit(sketch, rng.choice(sketch.floats()), tuple(shape))
    if len(shape) > 1 and rng.random() < 0.3:
        turned = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        other = sketch.add("Transpose", other, perm=turned)
        other = sketch.add("Transpose", other, perm=turned)
    y = sketch.add("MatMul", x, other)
    if rng.random() < 0.3:
        sketch.add(rng.choice(("Mul", "Div")), y, sketch.real(rng.choice((0.5, 2.0, 3.0))))


def add_convolution(sketch: Sketch, x: str) -> None:
    """Add a convolution, and nodes that follow convolutions."""
    rng = sketch.rng
    x = image(sketch, x)
    _, channels, *space = sketch.shape(x)
    if not channels:
        raise UnfitError("convolution: no channels")
    group = channels if rng.random() < 0.25 else 1
    out = channels if group > 1 else rng.choice((1, 2, 4, 8))
    kernel = [rng.choice([k for k in (1, 1, 2, 3) if k <= max(1, s)]) for s in space]
    pads = [k // 2 for k in kernel] * 2 if rng.random() < 0.6 else [0] * 4
    attrs: dict[str, Any] = {"pads": pads, "group": group, "kernel_shape": kernel}
    if rng.random() < 0.3:
        attrs["strides"] = [rng.choice((1, 2)), rng.choice((1, 2))]
    bias = [sketch.weight(out)] if rng.random() < 0.5 else []
    w = weight(sketch, (out, channels // group, *kernel))
    y = sketch.add("Conv", x, w, *bias, **attrs)
    if rng.random() < 0.4:
        y = norm(sketch, y)
    if rng.random() < 0.6:
        y = after_layer(sketch, y)
    if rng.random() < 0.3 and sketch.shape(y) == sketch.shape(x):
        y = sketch.add("Add", *rng.sample([x, y], 2))
    if rng.random() < 0.35:
        pool(sketch, y)


def norm(sketch: Sketch, x: str) -> str:
    """A batch norm whose statistics are given, as one op or as its formula."""
    rng, channels = sketch.rng, sketch.shape(x)[1]
    one = (channels,)
    variance = np.abs(sketch.random(one)) + 0.5
    arrays = [
        sketch.random(one),
        sketch.random(one),
        sketch.random(one),
        variance.astype(sketch.dtype),
    ]
    names = [sketch.constant(a) if rng.random() < 0.6 else sketch.feed(a) for a in arrays]
    return str(sketch.add("BatchNormalization", x, *names))


def add_norm(sketch: Sketch, x: str) -> None:
    """A batch norm of any value that has channels."""
    norm(sketch, matrix(sketch, x))


def pool(sketch: Sketch, x: str) -> str:
    """A pool, or the mean over all pixels."""
    rng = sketch.rng
    op = rng.choice(("MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        return str(sketch.add(op, x))
    space = sketch.shape(x)[2:]
    kernel = [min(2, max(1, size)) for size in space]
    strides = kernel if rng.random() < 0.6 else [1] * len(kernel)
    return str(sketch.add(op, x, kernel_shape=kernel, strides=strides))


def add_pool(sketch: Sketch, x: str) -> None:
    """A pool of images."""
    x = image(sketch, x)
    if sketch.rng.random() < 0.5:
        x = sketch.add("Relu", x)
    pool(sketch, x)


def add_layer_norm(sketch: Sketch, x: str) -> None:
    """A layer norm, or one without a mean: as one op, or as the nodes that it is."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    known = sketch.shape(x)
    scale, bias = sketch.weight(known[-1]), sketch.weight(known[-1])
    if rng.random() < 0.35:
        sketch.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-3)
        return
    centred = x
    if rng.random() < 0.6:
        centred = sketch.add("Sub", x, reduce(sketch, "ReduceMean", x, [len(known) - 1], 1))
    square = (
        sketch.add("Mul", centred, centred)
        if rng.random() < 0.5
        else sketch.add("Pow", centred, sketch.real(2.0))
    )
    mean = reduce(sketch, "ReduceMean", square, [len(known) - 1], 1)
    root = sketch.add("Sqrt", sketch.add("Add", mean, sketch.real(1e-3)))
    if rng.random() < 0.5:
        y = sketch.add("Div", centred, root)
    else:
        y = sketch.add("Mul", centred, sketch.add("Reciprocal", root))
    y = sketch.add("Mul", *rng.sample([y, scale], 2))
    if rng.random() < 0.6:
        sketch.add("Add", y, bias)


def add_softmax(sketch: Sketch, x: str) -> None:
    """A softmax along any axis, or its logarithm."""
    x = _of_rank(sketch, x, 1)
    rank = len(sketch.shape(x))
    op = sketch.rng.choice(("Softmax", "Softmax", "LogSoftmax"))
    sketch.add(op, x, axis=sketch.rng.randint(-rank, rank - 1))


def add_attention(sketch: Sketch, x: str) -> None:
    """Attention of some heads, as exporters write it, or a part of it."""
    rng = sketch.rng
    known = sketch.shape(_of_rank(sketch, x, 3))
    batch, length = min(known[0], 3), min(known[1], 8)
    heads, width = rng.choice((1, 2, 4)), rng.choice((2, 4, 8))
    x = fit(sketch, x, (batch, length, rng.choice((known[2], heads * width))))
    other = x
    keys = length
    if rng.random() < 0.3:
        keys = rng.choice((1, 3, 5))
        other = fit(sketch, rng.choice(sketch.floats()), (batch, keys, rng.choice(WIDTHS)))
    q, k, v = (linear(sketch, source, heads * width) for source in (x, other, other))
    splits = [rng.choice((batch, 0)), -1 if rng.random() < 0.3 else keys, heads, width]
    q = sketch.add("Reshape", q, sketch.ints(splits[0], length, heads, width))
    q = sketch.add("Transpose", q, perm=[0, 2, 1, 3])
    k, v = (sketch.add("Reshape", value, sketch.ints(*splits)) for value in (k, v))
    v = sketch.add("Transpose", v, perm=[0, 2, 1, 3])
    if rng.random() < 0.5:
        k = sketch.add("Transpose", k, perm=[0, 2, 3, 1])
    else:
        k = sketch.add("Transpose", k, perm=[0, 2, 1, 3])
        k = sketch.add("Transpose", k, perm=[0, 1, 3, 2])
    scale = sketch.real(width**-0.5)
    where = rng.randrange(3)
    if where == 0:
        q = sketch.add("Mul", q, scale)
    scores = sketch.add("MatMul", q, k)
    if where == 1:
        scores = sketch.add("Mul", scores, scale)
    elif where == 2:
        scores = sketch.add("Div", scores, sketch.real(width**0.5))
    scores = _masked(sketch, scores, (batch, heads, length, keys))
    weights = sketch.add("Softmax", scores, axis=rng.choice((-1, 3)))
    y = sketch.add("MatMul", weights, v)
    if rng.random() < 0.8:
        y = sketch.add("Transpose", y, perm=[0, 2, 1, 3])
        y = sketch.add("Reshape", y, sketch.ints(0, 0, heads * width))
        if rng.random() < 0.5:
            linear(sketch, y)


def _masked(sketch: Sketch, scores: str, shape: tuple[int, int, int, int]) -> str:
    """Scores with a mask: added, chosen by Where, or none."""
    rng = sketch.rng
    wide = tuple(1 if rng.random() < 0.4 else size for size in shape[:3]) + shape[3:]
    wide = wide[rng.randint(0, 2) :]
    kind = rng.randrange(4)
    if kind == 0:
        mask = np.where(sketch.numbers.random(wide) < 0.3, -1e9 if rng.random() < 0.3 else -3.0, 0)
        mask = mask.astype(sketch.dtype)
        mask = np.clip(mask, -900, 0)
        name = sketch.feed(mask) if rng.random() < 0.5 else sketch.constant(mask)
        return str(sketch.add("Add", scores, name))
    if kind == 1:
        allowed = sketch.numbers.random(wide) < 0.7
        name = sketch.feed(allowed) if rng.random() < 0.5 else sketch.constant(allowed)
        return str(sketch.add("Where", name, scores, sketch.real(-900.0)))
    return scores


def add_embedding(sketch: Sketch, x: str) -> None:
    """Rows of a table, picked by numbers that are fed or constant, and often picked twice."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    length = sketch.shape(x)[0]
    if not length:
        raise UnfitError("embedding: an empty table")
    shape = tuple(rng.choice((1, 2, 5)) for _ in range(rng.choice((0, 1, 2))))
    picked = np.array(sketch.numbers.integers(-length, length, shape))
    name = sketch.feed(picked) if rng.random() < 0.6 else sketch.constant(picked)
    sketch.add("Gather", x, name, axis=0)


def add_reduction(sketch: Sketch, x: str) -> None:
    """A reduction over some axes, or over all."""
    rng = sketch.rng
    op = rng.choice(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2",
                     "ReduceSumSquare", "ReduceLogSumExp", "ReduceProd"))  # fmt: skip
    rank = len(sketch.shape(x))
    axes = sorted(rng.sample(range(rank), rng.randint(min(1, rank), rank)))
    if not axes:
        sketch.add(op, x, keepdims=rng.randint(0, 1))
        return
    reduce(sketch, op, x, axes, rng.randint(0, 1))


def add_choice(sketch: Sketch, x: str) -> None:
    """Where, by a comparison of values."""
    rng = sketch.rng
    other = fit(sketch, rng.choice(sketch.floats()), sketch.shape(x))
    op = rng.choice(("Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
    condition = sketch.add(op, x, rng.choice([other, sketch.real(0.1)]))
    if rng.random() < 0.3:
        condition = sketch.add("Not", condition)
    if rng.random() < 0.3:
        sketch.add("Cast", condition, to=1 if sketch.dtype == np.float32 else 11)
    parts = [rng.choice([x, other, sketch.real(0.0)]), other]
    rng.shuffle(parts)
    sketch.add("Where", condition, *parts)


def add_quantised(sketch: Sketch, x: str) -> None:
    """A value through a quantiser and back, or a weight that is kept in 8 bits."""
    rng = sketch.rng
    scale = sketch.constant(np.array(0.05, sketch.dtype))
    zero = sketch.constant(np.array(rng.choice((0, 3, 128)), np.uint8))
    if rng.random() < 0.5:
        q = sketch.add("QuantizeLinear", x, scale, zero)
        sketch.add("DequantizeLinear", q, scale, zero)
        return
    x = matrix(sketch, x)
    depth, width = sketch.shape(x)[-1], rng.choice((8, 16, 32))
    is_turned = rng.random() < 0.4
    shape = (width, depth) if is_turned else (depth, width)
    numbers = sketch.numbers.integers(0, 255, shape).astype(np.uint8)
    q = sketch.constant(numbers) if rng.random() < 0.7 else sketch.feed(numbers)
    if rng.random() < 0.5:
        axis = rng.randrange(2)
        scales = (np.abs(sketch.random((shape[axis],), 0.01)) + 0.01).astype(sketch.dtype)
        zeros = sketch.numbers.integers(100, 150, shape[axis]).astype(np.uint8)
        w = sketch.add(
            "DequantizeLinear", q, sketch.constant(scales), sketch.constant(zeros), axis=axis
        )
    else:
        w = sketch.add("DequantizeLinear", q, scale, zero)
    if is_turned:
        w = sketch.add("Transpose", w, perm=[1, 0])
    sketch.add("MatMul", x, w)


def add_join(sketch: Sketch, x: str) -> None:
    """Two or three values side by side along any axis; a value may be there twice."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    known = sketch.shape(x)
    axis = rng.randrange(len(known))
    parts = [x]
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.2:
            parts.append(x)
            continue
        shape = (*known[:axis], rng.choice((1, 2, 4, known[axis])), *known[axis + 1 :])
        parts.append(fit(sketch, rng.choice(sketch.floats()), shape))
    rng.shuffle(parts)
    sketch.add("Concat", *parts, axis=axis - len(known) if rng.random() < 0.4 else axis)


def add_sizes(sketch: Sketch, x: str) -> None:
    """A reshape by what Shape tells, as exporters write it for batches of any size."""
    rng = sketch.rng
    x = matrix(sketch, x)
    sizes = sketch.add("Shape", x)
    first = sketch.add("Gather", sizes, sketch.constant(np.array([0])), axis=0)
    if rng.random() < 0.5:
        target = sketch.add("Concat", first, sketch.ints(-1), axis=0)
    else:
        target = sketch.add("Concat", sketch.ints(-1), first, axis=0)
    sketch.add("Reshape", x, target)


def add_broadcast(sketch: Sketch, x: str) -> None:
    """A value of fewer axes, or of axes of one element, repeated against a larger one."""
    rng = sketch.rng
    known = sketch.shape(x)
    shape = [1 if rng.random() < 0.5 else size for size in known][rng.randint(0, len(known)) :]
    small = sketch.weight(*shape) if rng.random() < 0.5 else fit(sketch, x, tuple(shape))
    op = rng.choice(("Add", "Mul", "Sub"))
    parts = [x, small]
    rng.shuffle(parts)
    sketch.add(op, *parts)


def add_foreign(sketch: Sketch, x: str) -> None:
    """Nodes as onnxruntime-training writes them: passes replace them by those declared here."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    known = sketch.shape(x)
    match rng.randrange(3):
        case 0:  # its gradient reads what Relu reads
            y = sketch.add("Relu", x)
            sketch.add("ReluGrad", fit(sketch, y, known), x, domain=MS)
        case 1:
            small = tuple(1 if rng.random() < 0.4 else size for size in known)
            other = fit(sketch, rng.choice(sketch.floats()), small[rng.randint(0, len(small)) :])
            other = sketch.add("Add", sketch.add("Abs", other), sketch.real(0.5))
            sketch.add("DivGrad", activation(sketch, x), x, other, outs=2, domain=MS)
        case _:
            axis = rng.randrange(len(known))
            shape = (*known[:axis], rng.choice((1, 2, 5)), *known[axis + 1 :])
            other = fit(sketch, rng.choice(sketch.floats()), shape)
            outs = rng.choice((1, 2))
            sketch.add("ConcatTraining", x, other, outs=outs, domain=MS, axis=axis)


def add_recurrent(sketch: Sketch, x: str) -> None:
    """An LSTM in the form in which onnxruntime-training keeps it, mostly with peepholes."""
    rng = sketch.rng
    steps, rows, width, hidden = (rng.randint(1, 4) for _ in range(4))
    x = fit(sketch, x, (steps, rows, width))
    w, r = sketch.weight(1, 4 * hidden, width), sketch.weight(1, 4 * hidden, hidden)
    bias = sketch.weight(1, 8 * hidden) if rng.random() < 0.5 else ""
    states = [sketch.feed(sketch.random((1, rows, hidden))) for _ in range(2)]
    if rng.random() < 0.5:
        states = ["", ""]
    peepholes = sketch.weight(1, 3 * hidden) if rng.random() < 0.8 else ""
    inputs = [x, w, r, bias, "", *states, peepholes]
    while not inputs[-1]:
        inputs.pop()
    outs = [True, rng.random() < 0.5, rng.random() < 0.5]
    sketch.add("LSTMTraining", *inputs, outs=outs, domain=MS, hidden_size=hidden)


MOST_TRIPS = 100  # of a Scan: each becomes calls in all of the plans that are compared


def add_control_flow(sketch: Sketch, x: str) -> None:
    """If by a condition that is fed or known, Loop or Scan, whose bodies read values outside."""
    rng = sketch.rng
    x = _of_rank(sketch, x, 1)
    first_axis, *item_shape = sketch.shape(x)
    known = (min(first_axis, MOST_TRIPS), *item_shape)
    if first_axis > MOST_TRIPS:
        x = fit(sketch, x, known)
    w = sketch.weight(*known) if rng.random() < 0.5 else fit(sketch, x, known)
    of = f"{'double' if sketch.dtype == np.float64 else 'float'}[{','.join(map(str, known))}]"
    element = of.partition("[")[0]
    item = f"{element}[{','.join(map(str, known[1:]))}]" if known[1:] else element
    t = f"{x}_in"  # what begins the names of values in the bodies
    first, second = (rng.choice(("Tanh", "Sigmoid", "Sin", "Relu")) for _ in range(2))
    outer = f"{of} {x}" + (f", {of} {w}" if w != x else "")
    match rng.randrange(3):
        case 0:
            flag = np.array(rng.random() < 0.5)
            c = sketch.feed(flag) if rng.random() < 0.6 else sketch.constant(flag)
            text = f"""g (bool {c}, {outer}) => ({of} y) {{ y = If({c}) <
                then_branch = a () => ({of} {t}a) {{ {t}b = {first}({x}) {t}a = Mul({t}b, {w}) }},
                else_branch = b () => ({of} {t}c) {{ {t}d = Add({x}, {w}) {t}c = {second}({t}d) }}
            >}}"""
            sketch.add("If", c, **_body(text, sketch))
        case 1:
            trips = sketch.constant(np.array(rng.choice((0, 1, 2, 3))))
            go = sketch.constant(np.array(True))
            seen = f"{of[:-1].replace('[', '[k,')}]"
            text = f"""g (int64 {trips}, bool {go}, {outer}) => ({of} y, {seen} z) {{
                y, z = Loop({trips}, {go}, {x}) <body = b (int64 {t}i, bool {t}c, {of} {t}s)
                    => (bool {t}k, {of} {t}u, {of} {t}p) {{
                        {t}k = Identity({t}c)
                        {t}q = Mul({t}s, {w})
                        {t}u = {first}({t}q)
                        {t}p = {second}({t}s)
            }}>}}"""
            sketch.add("Loop", trips, go, x, outs=2, **_body(text, sketch))
        case _:
            start = fit(sketch, x, known[1:])
            text = f"""g ({item} {start}, {of} {x}) => ({item} y, {of} z) {{
                y, z = Scan <num_scan_inputs = 1, body = b ({item} {t}h, {item} {t}x)
                    => ({item} {t}n, {item} {t}o) {{
                        {t}m = Add({t}h, {t}x)
                        {t}n = {first}({t}m)
                        {t}o = {second}({t}n)
            }}>({start}, {x}) }}"""
            sketch.add("Scan", start, x, outs=2, **_body(text, sketch))


def _body(text: str, sketch: Sketch) -> dict[str, Any]:
    """The attributes of the node of a model's text."""
    head = f'<ir_version: 8, opset_import: ["": {sketch.opset}]>\n'
    return onnx_io.load(parser.parse_model(head + text)).nodes[0].attrs


PATTERNS: tuple[Callable[[Sketch, str], None], ...] = (
    add_linear,
    add_linear,
    add_activation,
    add_joined_linear,
    add_parts,
    add_slice,
    add_sum,
    add_sum,
    add_residual,
    add_movement,
    add_movement,
    add_product,
    add_convolution,
    add_convolution,
    add_norm,
    add_pool,
    add_layer_norm,
    add_softmax,
    add_attention,
    add_embedding,
    add_reduction,
    add_choice,
    add_quantised,
    add_join,
    add_sizes,
    add_broadcast,
    add_control_flow,
    add_foreign,
    add_recurrent,
)

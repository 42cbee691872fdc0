"""Bringing a value into a shape, by nodes that move, cut, join, repeat or multiply."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tests.random_graphs.sketch import Sketch

Shape: TypeAlias = tuple[int, ...]
Way = Callable[[], str]


def fit(sketch: Sketch, name: str, shape: Shape) -> str:
    """A value of this shape that depends on the given one.

    Raises:
        UnfitError: a node cannot be added.
    """
    actual_shape = sketch.shape(name)
    if actual_shape == shape and sketch.rng.random() < 0.9:
        return name
    ways = _ways(sketch, name, actual_shape, shape)
    return sketch.rng.choice(ways or [lambda: gathered(sketch, name, shape)])()


def _ways(sketch: Sketch, name: str, found: Shape, shape: Shape) -> list[Way]:
    """Return ways from one shape to another in a step or two."""
    ways: list[Way] = []
    if count(found) == count(shape):
        ways.append(lambda: reshaped(sketch, name, shape))
    if len(found) == len(shape):
        if sorted(found) == sorted(shape):
            ways.append(lambda: transposed(sketch, name, shape))
        if all(a >= b for a, b in zip(found, shape, strict=True)):
            ways += [lambda: cut(sketch, name, shape)] * 2
        if all(a <= b for a, b in zip(found, shape, strict=True)):
            ways.append(lambda: padded(sketch, name, shape))
        longer = [k for k, (a, b) in enumerate(zip(found, shape, strict=True)) if a < b]
        if len(longer) == 1 and count(found):
            rest = [k for k, (a, b) in enumerate(zip(found, shape, strict=True)) if a != b]
            if rest == longer:
                ways.append(lambda: joined(sketch, name, shape, longer[0]))
    if found and shape and found[:-1] == shape[:-1] and count(found):
        ways += [lambda: multiplied(sketch, name, shape[-1])] * 2
    if _broadcasts(found, shape):
        ways.append(lambda: expanded(sketch, name, shape))
    if _broadcasts(shape, found) and found != shape:
        ways.append(lambda: reduced(sketch, name, shape))
    return ways


def count(shape: Shape) -> int:
    """The elements of a shape."""
    return math.prod(shape)


def _broadcasts(small: Shape, large: Shape) -> bool:
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


def reshaped(sketch: Sketch, name: str, shape: Sequence[int]) -> str:
    """The same elements in another shape; some sizes are left to the op."""
    rng, known = sketch.rng, sketch.shape(name)
    sizes = list(shape)
    if 0 not in sizes:
        for k, size in enumerate(sizes):
            if k < len(known) and known[k] == size and rng.random() < 0.3:
                sizes[k] = 0
        if sizes and rng.random() < 0.4:
            sizes[rng.randrange(len(sizes))] = -1
    return str(sketch.add("Reshape", name, sketch.ints(*sizes)))


def transposed(sketch: Sketch, name: str, shape: Shape) -> str:
    """The axes in an order that gives the shape."""
    known = sketch.shape(name)
    orders = [p for p in itertools.permutations(range(len(known))) if _turned(known, p) == shape]
    return str(sketch.add("Transpose", name, perm=list(sketch.rng.choice(orders))))


def _turned(shape: Shape, order: Sequence[int]) -> Shape:
    return tuple(shape[k] for k in order)


def cut(sketch: Sketch, name: str, shape: Shape) -> str:
    """A part of every axis that is longer: by Slice, Split or Gather."""
    rng = sketch.rng
    for axis, (length, wanted) in enumerate(zip(sketch.shape(name), shape, strict=True)):
        if length == wanted:
            continue
        begin = rng.randint(0, length - wanted)
        shown = axis - len(shape) if rng.random() < 0.4 else axis
        kind = rng.random()
        if kind < 0.6 or not wanted:
            ends = (begin, begin + wanted)
            if rng.random() < 0.2 and begin + wanted < length:
                ends = (begin - length, begin + wanted - length)
            inputs = [sketch.ints(ends[0]), sketch.ints(ends[1]), sketch.ints(shown)]
            if rng.random() < 0.3:
                inputs.append(sketch.ints(1))
            name = sketch.add("Slice", name, *inputs)
        elif kind < 0.8:
            parts = [begin, wanted, length - begin - wanted]
            at = 1 if begin else 0
            parts = [p for p in parts if p]
            every = sketch.add("Split", name, sketch.ints(*parts), outs=len(parts), axis=shown) \
                if len(parts) > 1 else [name]  # fmt: skip
            name = every[at] if len(parts) > 1 else name
        else:
            picked = sketch.numbers.integers(-length, length, wanted)
            name = sketch.add("Gather", name, sketch.constant(picked), axis=shown)
    return name


def padded(sketch: Sketch, name: str, shape: Shape) -> str:
    """Zeros around, to this shape."""
    more = [b - a for a, b in zip(sketch.shape(name), shape, strict=True)]
    begin = [sketch.rng.randint(0, m) for m in more]
    rest = [m - b for m, b in zip(more, begin, strict=True)]
    return str(sketch.add("Pad", name, sketch.ints(*begin, *rest)))


def joined(sketch: Sketch, name: str, shape: Shape, axis: int) -> str:
    """Joined along an axis with another value, made of a value that has the other sizes."""
    rng, length = sketch.rng, sketch.shape(name)[axis]
    more = shape[axis] - length
    rest = [*shape[:axis], more, *shape[axis + 1 :]]
    same = [n for n in sketch.floats() if sketch.shape(n) == tuple(rest)]
    if sketch.values[name].dtype != sketch.dtype:
        other = gathered(sketch, name, tuple(rest))
    elif same:
        other = rng.choice(same)
    elif more <= length and rng.random() < 0.5:
        other = cut(sketch, name, tuple(rest))
    else:
        other = sketch.feed(sketch.random(rest))
    parts = [name, other] if rng.random() < 0.5 else [other, name]
    shown = axis - len(shape) if rng.random() < 0.4 else axis
    return str(sketch.add("Concat", *parts, axis=shown))


def multiplied(sketch: Sketch, name: str, length: int) -> str:
    """A product with a matrix gives the last axis this length."""
    if sketch.values[name].dtype != sketch.dtype:
        return gathered(sketch, name, (*sketch.shape(name)[:-1], length))
    return str(sketch.add("MatMul", name, sketch.weight(sketch.shape(name)[-1], length)))


def expanded(sketch: Sketch, name: str, shape: Shape) -> str:
    """Repeated by broadcasting."""
    return str(sketch.add("Expand", name, sketch.ints(*shape)))


def reduced(sketch: Sketch, name: str, shape: Shape) -> str:
    """The mean, or another reduction, over the axes that are too long."""
    known = sketch.shape(name)
    extra = len(known) - len(shape)
    kept = [extra + k for k, size in enumerate(shape) if size != known[extra + k]]
    op = sketch.rng.choice(("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax"))
    if kept:
        name = reduce(sketch, op, name, kept, keepdims=1)
    if extra:
        name = reduce(sketch, op, name, range(extra), keepdims=0)
    return name


def reduce(sketch: Sketch, op: str, name: str, axes: Sequence[int], keepdims: int) -> str:
    """A reduction, in the form of the opset."""
    rank = len(sketch.shape(name))
    shown = [a - rank if sketch.rng.random() < 0.3 else a for a in axes]
    if op == "ReduceSum" or sketch.opset >= 18:
        return str(sketch.add(op, name, sketch.ints(*shown), keepdims=keepdims))
    return str(sketch.add(op, name, axes=shown, keepdims=keepdims))


def gathered(sketch: Sketch, name: str, shape: Shape) -> str:
    """Elements by chance, in any shape; zeros of a value without elements."""
    if not sketch.values[name].size:
        dtype = sketch.values[name].dtype
        return sketch.feed(np.zeros(shape, dtype))
    flat = sketch.add("Reshape", name, sketch.ints(-1))
    picked = sketch.numbers.integers(0, sketch.values[name].size, shape)
    return str(sketch.add("Gather", flat, sketch.constant(picked)))


def tame(sketch: Sketch, name: str, low: float, high: float) -> str:
    """Return a value with elements in [low, high): itself if they are, otherwise squeezed into
    it.
    """
    array = sketch.values[name]
    if array.dtype.kind != "f" or np.all((array >= low) & (array < high)):
        return name
    part = sketch.add("Sigmoid", name)
    scaled = sketch.add("Mul", part, sketch.real(high - low))
    return str(sketch.add("Add", scaled, sketch.real(low)))

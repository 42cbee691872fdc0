"""Shape rules that many families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.kernels.vocabulary.op import Dim, Site, TensorType


def same_as(i: int) -> Callable[[Site], tuple[TensorType, ...]]:
    """Return a shape rule: one output of the type of input i."""
    return lambda site: (site.type(i).but(),)


def normalise_axis(site: Site, axis: int, rank: int) -> int:
    """Return an axis counted from the front.  Raises ShapeError outside [-rank, rank)."""
    if not -rank <= axis < rank:
        site.wrong(f"axis is {axis}, but the tensor has rank {rank}")
    return axis % rank


def make_symbol(site: Site, i: int) -> str:
    """Return a new symbol for dimension i of the first output of this node.

    Inference gives it another name where some other node has the same.
    """
    return f"{site.name}_d{i}"


def broadcast(site: Site, *types: TensorType) -> tuple[Dim, ...]:
    """Broadcast shapes as ONNX does, in all directions.

    A symbolic dimension may be 1.  Where it meets a number other than 1, the size is this number.
    Where it meets another symbol, either may be 1, so the size is a new symbol.
    """
    rank = max(t.rank for t in types)
    if all(t.rank == rank and t.shape == types[0].shape for t in types):
        return types[0].shape
    out: list[Dim] = []
    for axis in range(-rank, 0):
        sizes: list[Dim] = []
        for t in types:
            if t.rank >= -axis and (d := t.shape[axis]) != 1 and d not in sizes:
                sizes.append(d)
        numbers = [d for d in sizes if isinstance(d, int)]
        if len(numbers) > 1:
            site.wrong(f"the shapes do not broadcast: {' and '.join(map(str, types))}")
        known = numbers or sizes or [1]
        out.append(known[0] if len(known) == 1 else make_symbol(site, rank + axis))
    return tuple(out)


def broadcast_dims(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which known shapes broadcast; they must."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for axis, d in enumerate(shape, rank - len(shape)):
            if d != 1:
                out[axis] = d
    return tuple(out)


def fits(t: TensorType, shape: Sequence[Dim]) -> bool:
    """Return whether a tensor may broadcast to a shape, as far as both are known."""
    if t.rank > len(shape):
        return False
    pairs = zip(reversed(t.shape), reversed(shape), strict=False)
    return all(isinstance(a, str) or isinstance(b, str) or a in (1, b) for a, b in pairs)

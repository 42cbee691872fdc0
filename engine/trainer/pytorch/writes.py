"""Values that are written by index, each with the gradient that torch gives it.

    Before   x.scatter(1, index, u)
    After    the same, where the gradient of u is dy.gather(1, index)

If an index names a place twice, one of the values is there afterwards, and the derivative of the
others is 0; so does a scatter of ONNX.  torch gives each of them the gradient of the place.  While
a module is traced, such writes become an `autograd.Function` that does what torch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.trainer.pytorch.shorthand import Rule, read_arguments

Write = Callable[[Any, Any], Any]
Read = Callable[[Any], Any]


@functools.cache
def _make_function(torch: Any) -> Any:
    class WrittenPlaces(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
        """x with u at some places.  write: does that; read: returns what is at these places."""

        @staticmethod
        def forward(ctx: Any, x: Any, u: Any, write: Write, read: Read) -> Any:
            ctx.shape, ctx.write, ctx.read = u.shape, write, read
            return write(x, u)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            du = ctx.read(dy)
            return ctx.write(dy, du.new_zeros(())), du.sum_to_size(ctx.shape), None, None

    return WrittenPlaces


def _write_values(torch: Any, x: Any, u: Any, write: Write, read: Read) -> Any:
    """Return write(x, u) with torch's gradients; None if no gradient flows to u."""
    if not (isinstance(u, torch.Tensor) and u.requires_grad and torch.is_grad_enabled()):
        return None
    return _make_function(torch).apply(x, u, write, read)


def _write_scatter(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("input dim index src", args, kwargs)
    x, dim, index, u = (given[name] for name in ("input", "dim", "index", "src"))
    if given.get("reduce") is not None or not isinstance(u, torch.Tensor):
        return None

    def write(x: Any, u: Any) -> Any:
        if not u.dim() and index.dim():
            u = u.expand(index.shape)
        return x.scatter(dim, index, u)

    if u.shape != index.shape:  # the exporter is to say that it takes a part of u
        return None
    return _write_values(torch, x, u, write, lambda dy: dy.gather(dim, index))


def _write_copy(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, dim, index, u = read_arguments("input dim index source", args, kwargs).values()

    def write(x: Any, u: Any) -> Any:
        if not u.dim():
            u = u.expand(*x.shape[: dim % x.dim()], *index.shape, *x.shape[dim % x.dim() + 1 :])
        return x.index_copy(dim, index, u)

    return _write_values(torch, x, u, write, lambda dy: dy.index_select(dim, index))


def _write_put(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("input indices values accumulate", args, kwargs)
    x, index, u = given["input"], tuple(given["indices"]), given["values"]
    if given["accumulate"] or not _may_repeat(torch, index):
        return None

    def write(x: Any, u: Any) -> Any:
        return x.index_put(index, u.to(x.dtype))

    return _write_values(torch, x, u, write, lambda dy: dy[index])


def _write_item(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Write x[index] = u in place.  Returns x, which torch's own function does not."""
    x, index, u = args
    if not isinstance(x, torch.Tensor) or not _may_repeat(torch, index):
        return None

    def write(x: Any, u: Any) -> Any:
        y = x.clone()
        y[index] = u
        return y

    made = _write_values(torch, x, u, write, lambda dy: dy[index])
    return None if made is None else x.copy_(made)


def _may_repeat(torch: Any, index: Any) -> bool:
    """Return whether an index may name a place twice: it has integers of unknown values."""
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, torch.Tensor) and part.dim() and part.dtype != torch.bool:
            return True
        if isinstance(part, list) and len({str(i) for i in part}) < len(part):
            return True
    return False


def _make_unpool(dims: int) -> Rule:
    """Return the rule for values at the places that a pool has taken them from."""

    def write_unpool(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        names = "input indices kernel_size stride padding output_size"
        given = read_arguments(names, args, kwargs, padding=0)
        x, index, lead = given["input"], given["indices"], given["input"].dim() - dims
        options = [
            [value] * dims if isinstance(value, int) else list(value)
            for value in (given["kernel_size"], given["stride"] or given["kernel_size"],
                          given["padding"])
        ]  # fmt: skip
        size = given["output_size"]
        if size is None:
            size = [
                (n - 1) * stride - 2 * padding + kernel
                for n, kernel, stride, padding in zip(x.shape[lead:], *options, strict=True)
            ]
        size = list(size)[-dims:]
        empty = x.new_zeros(*x.shape[:lead], *size).flatten(lead)
        rows = (empty, lead, index.flatten(lead), x.flatten(lead))
        made = _write_scatter(torch, rows, {})
        return None if made is None else made.unflatten(lead, size)

    return write_unpool


def _make_in_place(rule: Rule) -> Rule:
    def write(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        made = rule(torch, args, kwargs)
        return None if made is None else args[0].copy_(made)

    return write


RULES: dict[str, Rule] = {
    "scatter": _write_scatter, "scatter_": _make_in_place(_write_scatter),
    "index_copy": _write_copy, "index_copy_": _make_in_place(_write_copy),
    "index_put": _write_put, "index_put_": _make_in_place(_write_put), "__setitem__": _write_item,
    **{f"max_unpool{n}d": _make_unpool(n) for n in (1, 2, 3)},
}  # fmt: skip

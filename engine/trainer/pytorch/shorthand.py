"""Attention, pools, distances and selections that torch's exporter lacks, as other functions.

    Before   F.adaptive_max_pool1d(x, 3), of an x of 7 columns
    After    F.max_pool1d(x[..., [0, 1, 2, 2, 3, 4, 4, 5, 6]], 3)

Each rule returns what the function does, with the same gradients, or None where it is not needed.
`engine.trainer.pytorch.functions` calls them while a module is traced.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError

Rule = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def _read(names: str, args: Sequence[Any], kwargs: Mapping[str, Any], **given: Any) -> Any:
    """Return the arguments of a call by name.  given: defaults; arguments without one are None."""
    known = names.split()
    return {**dict.fromkeys(known), **given, **dict(zip(known, args, strict=False)), **kwargs}


# --- attention


@contextlib.contextmanager
def without_guesses(torch: Any) -> Iterator[None]:
    """Let decoders of torch.nn take masks as they are given.

    Without `is_causal`, they compare a mask with a causal one, to choose a kernel, and a traced
    mask has no values to compare.  The mask itself is applied in any case.
    """
    owner, name = torch.nn.modules.transformer, "_detect_is_causal_mask"
    before = getattr(owner, name)
    setattr(owner, name, lambda mask, is_causal=None, size=None: is_causal is True)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _write_attention(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return attention of queries of any rank, as attention of rank 4.

    The result is written in the order of its axes.  torch's kernels choose other strides than what
    the exporter computes with, and a `contiguous()` that does nothing in one leaves a view in the
    other that is none.
    """
    given = _read("query key value attn_mask dropout_p is_causal", args, kwargs)
    q, k, v, mask = (given.pop(name) for name in ("query", "key", "value", "attn_mask"))
    given = {name: value for name, value in given.items() if value is not None}
    lead = q.shape[:-2]
    if k.shape[:-2] != lead or v.shape[:-2] != lead:
        if q.dim() != 4 or not k.dim() == v.dim() == 4:
            return None
    elif q.dim() == 3:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
    elif q.dim() > 4:
        if mask is not None and mask.dim() > 2:
            mask = mask.expand(*lead, *mask.shape[-2:]).reshape(-1, lead[-1], *mask.shape[-2:])
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
    elif q.dim() != 4:
        return None
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **given)
    y = y.clone(memory_format=torch.contiguous_format)
    return y if len(lead) == 2 else y.reshape(*lead, *y.shape[-2:])


# --- pools


def _list_windows(size: int, count: int) -> list[range]:
    """Return the elements that each of `count` outputs of an adaptive pool reads."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _list_counts(x: Any, size: Any, dims: int) -> list[int] | None:
    """Return the sizes of an adaptive pool's output; None if the input has others than numbers."""
    sizes = list(x.shape[-dims:])
    if not all(isinstance(n, int) for n in sizes):
        return None
    wanted = [size] * dims if isinstance(size, int) else list(size)
    return [int(n) if want is None else int(want) for n, want in zip(sizes, wanted, strict=True)]


def _make_max_pool(dims: int) -> Rule:
    """Return the rule for adaptive maxima over the last `dims` axes.

    Windows of different lengths become equally long by their last element again, so that the first
    of equal elements has the gradient, as in torch.
    """

    def write_pool(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = _read("input output_size return_indices", args, kwargs)
        x, counts = given["input"], _list_counts(given["input"], given["output_size"], dims)
        if given["return_indices"] or counts is None:
            return None
        kernel = []
        for axis, count in zip(range(-dims, 0), counts, strict=True):
            windows = _list_windows(x.shape[axis], count)
            longest = max(map(len, windows))
            kernel.append(longest)
            places = [min(w.start + k, w.stop - 1) for w in windows for k in range(longest)]
            if places != list(range(x.shape[axis])):
                x = x.index_select(axis, torch.tensor(places))
        return getattr(torch.nn.functional, f"max_pool{dims}d")(x, kernel, kernel)

    return write_pool


def _make_mean_pool(dims: int) -> Rule:
    """Return the rule for adaptive means over the last `dims` axes, as products with matrices."""

    def write_pool(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = _read("input output_size", args, kwargs)
        x, counts = given["input"], _list_counts(given["input"], given["output_size"], dims)
        if counts is None:
            return None
        for axis, count in zip(range(-dims, 0), counts, strict=True):
            size = x.shape[axis]
            weights = torch.zeros(size, count, dtype=x.dtype)
            for i, window in enumerate(_list_windows(size, count)):
                weights[window.start : window.stop, i] = 1 / len(window)
            x = (x.movedim(axis, -1) @ weights).movedim(-1, axis)
        return x

    return write_pool


# --- distances, signs, selections


def _write_distances(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the distance of each row of one matrix from each row of another."""
    given = _read("x1 x2 p", args, kwargs, p=2.0)
    p, off = float(given["p"]), given["x1"].unsqueeze(-2) - given["x2"].unsqueeze(-3)
    if p == 2:
        squares = (off * off).sum(-1)
        apart = squares > 0  # the square root has no gradient at 0, and torch's distance has 0
        return torch.where(apart, torch.where(apart, squares, 1.0).sqrt(), 0.0)
    if p == 1:
        return off.abs().sum(-1)
    return off.abs().amax(-1) if math.isinf(p) else None


def _write_copysign(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the size of one number with the sign of another, which -0.0 has, too."""
    given = _read("input other", args, kwargs)
    x, sign = given["input"], given["other"]
    if not (isinstance(sign, torch.Tensor) and sign.is_floating_point()):
        return None
    return torch.where((sign < 0) | ((sign == 0) & (1 / sign < 0)), -x.abs(), x.abs())


def _count_below(torch: Any, edges: Any, values: Any, is_right: bool, is_short: bool) -> Any:
    """Return how many of the last axis of `edges` are before each of the values."""
    values, edges = values.unsqueeze(-1), edges.unsqueeze(-2)
    before = edges <= values if is_right else edges < values
    return before.sum(-1, dtype=torch.int32 if is_short else torch.int64)


def _write_bucketize(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = _read("input boundaries out_int32 right", args, kwargs)
    values = given["input"]
    if not isinstance(values, torch.Tensor):
        return None
    return _count_below(
        torch, given["boundaries"], values, bool(given["right"]), bool(given["out_int32"])
    )


def _write_searchsorted(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = _read("sorted_sequence input out_int32 right side sorter", args, kwargs)
    edges, values = given["sorted_sequence"], given["input"]
    if given["sorter"] is not None or not isinstance(values, torch.Tensor):
        return None
    is_right = bool(given["right"]) or given["side"] == "right"
    return _count_below(torch, edges, values, is_right, bool(given["out_int32"]))


def _select_smallest(torch: Any, x: Any, k: Any, dim: Any, keepdim: Any, kind: str) -> Any:
    """Return the k-th smallest elements along an axis and where they are."""
    values, places = (y.narrow(dim, k - 1, 1) for y in x.topk(k, dim, largest=False))
    if not keepdim:
        values, places = values.squeeze(dim), places.squeeze(dim)
    return getattr(torch.return_types, kind)((values, places))


def _write_kthvalue(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = _read("input k dim keepdim", args, kwargs, dim=-1)
    x, k, dim, keepdim = (given[name] for name in ("input", "k", "dim", "keepdim"))
    return _select_smallest(torch, x, k, dim, keepdim, "kthvalue")


def _write_median(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the lower median, along an axis or of all elements."""
    given = _read("input dim keepdim", args, kwargs)
    x, dim = given["input"], given["dim"]
    flat = x.reshape(-1) if dim is None else x
    size = flat.shape[-1 if dim is None else dim]
    if not isinstance(size, int):
        return None
    if dim is None:
        return flat.topk((size + 1) // 2, largest=False)[0][-1]
    return _select_smallest(torch, x, (size + 1) // 2, dim, given["keepdim"], "median")


def _write_scatter_mean(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return means of scattered values, which the exporter writes as their last one."""
    given = _read("input dim index src reduce include_self", args, kwargs, include_self=True)
    x, dim, index, src = (given[name] for name in ("input", "dim", "index", "src"))
    if given["reduce"] != "mean" or not x.is_floating_point():
        return None
    own = bool(given["include_self"])
    ones = torch.ones_like(index, dtype=x.dtype)
    count = torch.full_like(x, float(own)).scatter_add(dim, index, ones)
    total = (x if own else torch.zeros_like(x)).scatter_add(dim, index, src)
    mean = total / count.clamp(min=1)
    return mean if own else torch.where(count > 0, mean, x)


def _refuse_packing(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    raise UnsupportedOpError(
        "pack_padded_sequence makes a list of values whose length depends on the values of "
        "`lengths`; supported: padded batches, whose layers run over the padding, too. Give the "
        "padded batch to the layer, and read its outputs up to each length, as "
        "y[torch.arange(len(y)), lengths - 1] does for the last ones; where it is bidirectional, "
        "reverse the sequences within their lengths by gather, for a layer of their own"
    )


RULES: dict[str, Rule] = {
    "scaled_dot_product_attention": _write_attention,
    **{f"adaptive_max_pool{n}d": _make_max_pool(n) for n in (1, 2, 3)},
    "adaptive_avg_pool3d": _make_mean_pool(3),
    "cdist": _write_distances, "copysign": _write_copysign,
    "bucketize": _write_bucketize, "searchsorted": _write_searchsorted,
    "kthvalue": _write_kthvalue, "median": _write_median,
    "scatter_reduce": _write_scatter_mean, "_pack_padded_sequence": _refuse_packing,
}  # fmt: skip

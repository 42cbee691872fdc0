"""Attention, pools, distances and selections that torch's exporter lacks, as other functions.

    Before   F.adaptive_max_pool1d(x, 3), of an x of 7 columns
    After    F.max_pool1d(x[..., [0, 1, 2, 2, 3, 4, 4, 5, 6]], 3)

Each rule returns what the function does, with the same gradients, or None where it is not needed.
`engine.trainer.pytorch.functions` calls them while a module is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rule = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


def read_arguments(names: str, args: Sequence[Any], kwargs: Mapping[str, Any], **given: Any) -> Any:
    """Return the arguments of a call by name.  given: defaults; arguments without one are None."""
    known = names.split()
    return {**dict.fromkeys(known), **given, **dict(zip(known, args, strict=False)), **kwargs}


# --- attention


def _write_attention(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return attention of queries of any rank, as attention of rank 4.

    The result is written in the order of its axes.  torch's kernels choose other strides than what
    the exporter computes with, and a `contiguous()` that does nothing in one leaves a view in the
    other that is none.
    """
    given = read_arguments("query key value attn_mask dropout_p is_causal", args, kwargs)
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
        given = read_arguments("input output_size return_indices", args, kwargs)
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
        given = read_arguments("input output_size", args, kwargs)
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
    given = read_arguments("x1 x2 p", args, kwargs, p=2.0)
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
    given = read_arguments("input other", args, kwargs)
    x, sign = given["input"], given["other"]
    if not isinstance(sign, torch.Tensor):
        size = x.abs() if x.is_floating_point() else x.abs().to(torch.get_default_dtype())
        return -size if math.copysign(1.0, sign) < 0 else size
    if not sign.is_floating_point():
        return None
    return torch.where((sign < 0) | ((sign == 0) & (1 / sign < 0)), -x.abs(), x.abs())


def _count_below(torch: Any, edges: Any, values: Any, is_right: bool, is_short: bool) -> Any:
    """Return how many of the last axis of `edges` are before each of the values."""
    values, edges = values.unsqueeze(-1), edges.unsqueeze(-2)
    before = edges <= values if is_right else edges < values
    return before.sum(-1, dtype=torch.int32 if is_short else torch.int64)


def _write_bucketize(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("input boundaries out_int32 right", args, kwargs)
    values = given["input"]
    if not isinstance(values, torch.Tensor):
        return None
    return _count_below(
        torch, given["boundaries"], values, bool(given["right"]), bool(given["out_int32"])
    )


def _write_searchsorted(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = read_arguments("sorted_sequence input out_int32 right side sorter", args, kwargs)
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
    given = read_arguments("input k dim keepdim", args, kwargs, dim=-1)
    x, k, dim, keepdim = (given[name] for name in ("input", "k", "dim", "keepdim"))
    return _select_smallest(torch, x, k, dim, keepdim, "kthvalue")


def _write_median(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the lower median, along an axis or of all elements."""
    given = read_arguments("input dim keepdim", args, kwargs)
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
    given = read_arguments(
        "input dim index src reduce include_self", args, kwargs, include_self=True
    )
    x, dim, index, src = (given[name] for name in ("input", "dim", "index", "src"))
    if given["reduce"] != "mean" or not x.is_floating_point():
        return None
    own = bool(given["include_self"])
    ones = torch.ones_like(index, dtype=x.dtype)
    count = torch.full_like(x, float(own)).scatter_add(dim, index, ones)
    total = (x if own else torch.zeros_like(x)).scatter_add(dim, index, src)
    mean = total / count.clamp(min=1)
    return mean if own else torch.where(count > 0, mean, x)


def _write_put(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a tensor with other elements, or sums, at some places among all."""
    given = read_arguments("input index source accumulate", args, kwargs)
    x, index, source = given["input"], given["index"].reshape(-1), given["source"].reshape(-1)
    flat = x.reshape(-1)
    index = torch.where(index < 0, index + flat.shape[0], index)
    put = flat.scatter_add if given["accumulate"] else flat.scatter
    return put(0, index, source).reshape(x.shape)


def _make_running(kind: str) -> Rule:
    """Return the rule for the largest or the smallest elements up to each one, and their places.

    Of equal elements, the last one has the gradient.  Each round doubles how many are compared.
    """

    def run(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = read_arguments("input dim", args, kwargs)
        x, dim = given["input"], given["dim"]
        if not x.dim():
            return None
        size = x.shape[dim]
        if not isinstance(size, int):
            return None
        shape = [1] * x.dim()
        shape[dim] = size
        places = torch.arange(size).reshape(shape).expand(x.shape)
        best, step = x.detach(), 1
        while step < size:
            early = best.narrow(dim, 0, size - step), places.narrow(dim, 0, size - step)
            late = best.narrow(dim, step, size - step), places.narrow(dim, step, size - step)
            is_early = early[0] > late[0] if kind == "cummax" else early[0] < late[0]
            best, places = (
                torch.cat([old.narrow(dim, 0, step), torch.where(is_early, a, b)], dim)
                for old, a, b in zip((best, places), early, late, strict=True)
            )
            step *= 2
        return getattr(torch.return_types, kind)((x.gather(dim, places), places))

    return run


def _write_greater(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the greater of two numbers, or the one that is a number."""
    x, y = read_arguments("input other", args, kwargs).values()
    return torch.where((x >= y) | y.isnan(), x, y)


def _write_less(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the smaller of two numbers, or the one that is a number."""
    x, y = read_arguments("input other", args, kwargs).values()
    return torch.where((x <= y) | y.isnan(), x, y)


def _make_extreme(name: str) -> Rule:
    """Return the rule for the largest or smallest of all elements, without a list of axes."""

    def write_extreme(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        given = read_arguments("input dim keepdim", args, kwargs, dim=(), keepdim=False)
        x, axes = given["input"], given["dim"]
        if axes not in (None, (), []) or not x.dim():
            return None
        return getattr(x, name)(tuple(range(x.dim())), bool(given["keepdim"]))

    return write_extreme


def _write_extremes(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the smallest and the largest elements, of all or along an axis."""
    given = read_arguments("input dim keepdim", args, kwargs, keepdim=False)
    x, dim, keepdim = given["input"], given["dim"], given["keepdim"]
    if not x.dim():
        return None
    axes = tuple(range(x.dim())) if dim is None else (dim,)
    return torch.return_types.aminmax((x.amin(axes, keepdim), x.amax(axes, keepdim)))


def _write_cumprod(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return products of all elements up to each one.  Each round doubles how many they are of."""
    given = read_arguments("input dim dtype", args, kwargs)
    x, dim, step = given["input"], given["dim"], 1
    if not x.dim() or not isinstance(x.shape[dim], int):
        return None
    x = x if given["dtype"] is None else x.to(given["dtype"])
    while step < (size := x.shape[dim]):
        late = x.narrow(dim, step, size - step) * x.narrow(dim, 0, size - step)
        x = torch.cat([x.narrow(dim, 0, step), late], dim)
        step *= 2
    return x


def _write_sort(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a stable sort as any sort: ONNX's TopK keeps the order of equal elements."""
    if "stable" not in kwargs:
        return None
    return torch.sort(*args, **{k: v for k, v in kwargs.items() if k != "stable"})


def _write_argsort(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if "stable" not in kwargs:
        return None
    return torch.argsort(*args, **{k: v for k, v in kwargs.items() if k != "stable"})


def _write_covariance(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the covariances of rows, without weights."""
    given = read_arguments("input correction fweights aweights", args, kwargs, correction=1)
    x = given["input"]
    if given["fweights"] is not None or given["aweights"] is not None or x.dim() not in (1, 2):
        return None
    off = x - x.mean(-1, keepdim=True)
    return (
        off @ off.mT / (x.shape[-1] - given["correction"])
        if x.dim() == 2
        else ((off * off).sum() / (x.shape[-1] - given["correction"]))
    )


def _write_correlations(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the correlations of rows."""
    x = read_arguments("input", args, kwargs)["input"]
    if x.dim() != 2:
        return None
    covariances = _write_covariance(torch, (x,), {})
    deviations = covariances.diagonal().sqrt()
    return (covariances / deviations.unsqueeze(1) / deviations).clamp(-1, 1)


def _make_divided_pool(dims: int) -> Rule:
    """Return the rule for means over the last `dims` axes with `divisor_override`."""

    def write_pool(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        names = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
        given = read_arguments(names, args, kwargs, padding=0, ceil_mode=False)
        divisor = given["divisor_override"]
        if divisor is None or given["ceil_mode"]:
            return None
        kernel = given["kernel_size"]
        count = kernel**dims if isinstance(kernel, int) else math.prod(kernel)
        pool = getattr(torch.nn.functional, f"avg_pool{dims}d")
        return pool(given["input"], kernel, given["stride"], given["padding"]) * (count / divisor)

    return write_pool


def _write_cross_entropy(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the cross entropy of smoothed labels, of probabilities or of each element."""
    names = "input target weight size_average ignore_index reduce reduction label_smoothing"
    given = read_arguments(
        names, args, kwargs, ignore_index=-100, reduction="mean", label_smoothing=0.0
    )  # fmt: skip
    x, target, smoothing = given["input"], given["target"], given["label_smoothing"]
    is_soft = target.is_floating_point()
    if given["size_average"] is not None or given["reduce"] is not None:
        return None
    if not is_soft and not smoothing:
        if given["reduction"] != "none":
            return None
        scores = x.log_softmax(1 if x.dim() > 1 else 0)
        return _list_class_losses(torch, scores, target, given["weight"], given["ignore_index"])
    axis = 1 if x.dim() > 1 else 0
    count = x.shape[axis]
    weight = x.new_ones(count) if given["weight"] is None else given["weight"]
    spread = weight.reshape(count, *[1] * (x.dim() - axis - 1))
    terms = -x.log_softmax(axis) * spread
    if is_soft:
        losses = (terms * (target * (1 - smoothing) + smoothing / count)).sum(axis)
        of = losses.numel()
    else:
        is_own = target != given["ignore_index"]
        own = torch.where(is_own, target, 0)
        losses = terms.gather(axis, own.unsqueeze(axis)).squeeze(axis) * (1 - smoothing)
        losses = torch.where(is_own, losses + terms.sum(axis) * (smoothing / count), 0.0)
        of = torch.where(is_own, weight[own], 0.0).sum()
    if given["reduction"] == "none":
        return losses
    return losses.sum() / of if given["reduction"] == "mean" else losses.sum()


def _list_class_losses(torch: Any, x: Any, target: Any, weight: Any, ignored: int) -> Any:
    """Return the loss of each element, of log-probabilities.

    The exporter takes the result of torch's own function for one number if the batch may have any
    size, and leaves out its sum.
    """
    axis = 1 if x.dim() > 1 else 0
    is_own = target != ignored
    own = torch.where(is_own, target, 0)
    losses = -x.gather(axis, own.unsqueeze(axis)).squeeze(axis)
    return torch.where(is_own, losses if weight is None else losses * weight[own], 0.0)


def _write_nll_loss(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the negative log-likelihood of each element; None if these are reduced."""
    names = "input target weight size_average ignore_index reduce reduction"
    given = read_arguments(names, args, kwargs, ignore_index=-100, reduction="mean")
    if given["size_average"] is not None or given["reduce"] is not None:
        return None
    if given["reduction"] != "none":
        return None
    x, target = given["input"], given["target"]
    return _list_class_losses(torch, x, target, given["weight"], given["ignore_index"])


def _write_gaussian_loss(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the loss of a normal distribution, without a look at whether variances are below 0."""
    given = read_arguments(
        "input target var full eps reduction", args, kwargs, eps=1e-6, reduction="mean"
    )  # fmt: skip
    x, target, variance = given["input"], given["target"], given["var"]
    if not isinstance(variance, torch.Tensor):
        return None
    if variance.dim() == x.dim() - 1:
        variance = variance.unsqueeze(-1)
    # The variance passes its gradient on where it is too small as well.
    variance = variance + (variance.clamp(min=given["eps"]) - variance).detach()
    losses = 0.5 * (variance.log() + (x - target) ** 2 / variance)
    if given["full"]:
        losses = losses + 0.5 * math.log(2 * math.pi)
    reduce = {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}
    return reduce[given["reduction"]]()


# --- numbers beside integers


def _widen(torch: Any, x: Any, y: Any) -> Any:
    """Return integers x as floats if the number y is one; None if x needs no such change."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, float) or x.dtype == torch.bool:
        return None
    return None if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())


def _write_difference(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return y - x of integers x and a float y, which the exporter has no operator for."""
    given = read_arguments("input other alpha", args, kwargs, alpha=1)
    wide = _widen(torch, given["input"], given["other"])
    return None if wide is None else given["other"] - wide * given["alpha"]


def _make_floor_division(is_swapped: bool) -> Rule:
    """Return the rule for rounded-down quotients of integers and a float.

    is_swapped: whether the float is divided.
    """

    def write_quotient(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        x, y = read_arguments("input other", args, kwargs).values()
        wide = _widen(torch, x, y)
        if wide is None:
            return None
        pair = (torch.full_like(wide, y), wide) if is_swapped else (wide, y)
        return torch.div(*pair, rounding_mode="floor")

    return write_quotient


# --- pictures of another size


def _write_interpolate(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a picture that is scaled with its corners in place, by the size that it gets.

    The scale says no more then: of outputs, the first and the last are the first and the last
    input.  The exporter would keep the scale and place the outputs by it.
    """
    names = "input size scale_factor mode align_corners recompute_scale_factor antialias"
    given = read_arguments(names, args, kwargs, mode="nearest", antialias=False)
    x, scales = given["input"], given["scale_factor"]
    if scales is None or not given["align_corners"]:
        return None
    sizes = x.shape[2:]
    if not isinstance(scales, tuple | list):
        scales = [scales] * len(sizes)
    given["size"] = [math.floor(n * scale) for n, scale in zip(sizes, scales, strict=True)]
    given["scale_factor"] = given["recompute_scale_factor"] = None
    return torch.nn.functional.interpolate(**given)


def _write_rrelu(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a Relu with a slope below zero that training draws for each element."""
    given = read_arguments(
        "input lower upper training inplace", args, kwargs, lower=1 / 8, upper=1 / 3
    )
    x, low, high = given["input"], given["lower"], given["upper"]
    slope: Any = (low + high) / 2
    if given["training"]:
        slope = low + (high - low) * torch.rand_like(x)
    y = torch.where(x > 0, x, x * slope)
    return x.copy_(y) if given["inplace"] else y


def _write_instance_norm(torch: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the normalisation of each channel of each sample, with running statistics.

    These are of a sample on average, and evaluation uses them as a batch normalisation does.
    """
    names = "input running_mean running_var weight bias use_input_stats momentum eps"
    given = read_arguments(names, args, kwargs, use_input_stats=True, momentum=0.1, eps=1e-5)
    x, mean, var = given["input"], given["running_mean"], given["running_var"]
    scale, shift, eps = given["weight"], given["bias"], given["eps"]
    if mean is None:
        return None
    if not given["use_input_stats"]:
        return torch.nn.functional.batch_norm(x, mean, var, scale, shift, eps=eps)
    with torch.no_grad():
        axes = tuple(range(2, x.dim()))
        own = x.detach()
        mean.lerp_(own.mean(axes).mean(0), given["momentum"])
        var.lerp_(own.var(axes).mean(0), given["momentum"])
    return torch.nn.functional.instance_norm(x, None, None, scale, shift, eps=eps)


RULES: dict[str, Rule] = {
    "rrelu": _write_rrelu, "rrelu_": _write_rrelu, "instance_norm": _write_instance_norm,
    "scaled_dot_product_attention": _write_attention,
    **{f"adaptive_max_pool{n}d": _make_max_pool(n) for n in (1, 2, 3)},
    "adaptive_avg_pool3d": _make_mean_pool(3),
    "cdist": _write_distances, "copysign": _write_copysign,
    "bucketize": _write_bucketize, "searchsorted": _write_searchsorted,
    **{kind: _make_running(kind) for kind in ("cummax", "cummin")}, "put": _write_put,
    "fmax": _write_greater, "fmin": _write_less, "cumprod": _write_cumprod, "sort": _write_sort,
    "argsort": _write_argsort, "cov": _write_covariance, "corrcoef": _write_correlations,
    **{f"avg_pool{n}d": _make_divided_pool(n) for n in (2, 3)},
    "cross_entropy": _write_cross_entropy, "nll_loss": _write_nll_loss,
    "gaussian_nll_loss": _write_gaussian_loss,
    "amax": _make_extreme("amax"), "amin": _make_extreme("amin"), "aminmax": _write_extremes,
    "kthvalue": _write_kthvalue, "median": _write_median,
    "scatter_reduce": _write_scatter_mean, "interpolate": _write_interpolate,
    **dict.fromkeys(("rsub", "__rsub__"), _write_difference),
    **dict.fromkeys(("floor_divide", "__floordiv__"), _make_floor_division(False)),
    "__rfloordiv__": _make_floor_division(True),
}  # fmt: skip

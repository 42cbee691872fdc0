"""Sums, means, extremes and losses over selected rows."""

from __future__ import annotations

import inspect
import math
from typing import Any

from engine.trainer.pytorch.selected_rows import FunctionCall, Marks, SelectedRows
from engine.trainer.pytorch.shorthand import read_arguments

REDUCED = frozenset({"sum", "mean", "amax", "amin", "max", "min", "all", "any"})
CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_LOSSES_NAMES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div soft_margin_loss "
    "binary_cross_entropy_with_logits poisson_nll_loss gaussian_nll_loss"
)
LOSSES = CLASS_LOSSES | frozenset(_LOSSES_NAMES.split())


class RowSums:
    """Functions that read all rows that count, for one number or one row."""

    def __init__(self, torch: Any, marks: Marks) -> None:
        self._torch, self._marks = torch, marks

    def reduce(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return a sum, a mean or an extreme over axes with the rows among them or not."""
        given = read_arguments("input dim keepdim dtype", call.args, call.kwargs, keepdim=False)
        x, axes, keepdim = given["input"], given["dim"], bool(given["keepdim"])
        if isinstance(axes, self._torch.Tensor):
            return None
        axes = [axes] if isinstance(axes, int) else list(axes or range(x.dim()))
        axes = [axis % x.dim() for axis in axes]
        if 0 not in axes:
            return self._marks.mark(call.run(), rows)
        if given["dtype"] is not None:
            return None
        if call.plain in ("max", "min") and len(axes) < x.dim():
            return None
        return self._reduce_rows(call.plain, x, rows, axes, keepdim)

    def _reduce_rows(
        self, name: str, x: Any, rows: SelectedRows, axes: list[int], keepdim: bool = False
    ) -> Any:
        torch, keep = self._torch, rows.keep(x)
        if name == "all":
            return (x.bool() | ~keep).to(torch.int64).amin(axes, keepdim) > 0
        if name == "any":
            return (x.bool() & keep).to(torch.int64).amax(axes, keepdim) > 0
        if name in ("amax", "amin", "max", "min"):
            if not x.is_floating_point():
                return None
            is_max = name in ("amax", "max")
            own = torch.where(keep, x, -math.inf if is_max else math.inf)
            return own.amax(axes, keepdim) if is_max else own.amin(axes, keepdim)
        x = x.to(torch.int64) if x.dtype == torch.bool else x
        total = torch.where(keep, x, 0).sum(axes, keepdim)
        if name == "sum":
            return total
        count = rows.count * math.prod(x.shape[axis] for axis in axes if axis)
        return total / (count.clamp(min=1) if rows.is_asked else count)

    def compute_loss(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return a loss of torch.nn.functional of the rows that count."""
        torch = self._torch
        given = inspect.signature(call.function).bind(*call.args, **call.kwargs)
        given.apply_defaults()
        options = dict(given.arguments)
        if options.get("size_average") is not None or options.get("reduce") is not None:
            return None
        reduction, options["reduction"] = options["reduction"], "none"
        x, target = options["input"], options["target"]
        if x not in self._marks or target not in self._marks:
            return None
        classes = call.name in CLASS_LOSSES and not target.is_floating_point()
        if classes:
            target = torch.where(rows.keep(target), target, options["ignore_index"])
            options["target"] = target
        losses = self._marks.mark(call.compute(call.function, (), options), rows)
        if reduction == "none":
            return losses
        axes = list(range(losses.dim()))
        if reduction == "batchmean":
            return self._reduce_rows("sum", losses, rows, axes) / rows.count
        if reduction == "sum" or not classes:
            return self._reduce_rows(reduction, losses, rows, axes)
        own, weight = target != options["ignore_index"], options["weight"]
        count = own.sum() if weight is None else torch.where(
            own, weight[torch.where(own, target, 0)], 0.0
        ).sum()  # fmt: skip
        return losses.sum() / (count.clamp(min=1e-9) if rows.is_asked else count)

    def compute_ctc(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return a CTC loss of the labels that a mask [batch, length] has joined to one list."""
        torch = self._torch
        given = inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments
        labels = given["targets"]
        marked = [v for v in given.values() if v in self._marks]
        if len(rows.shape) != 2 or labels.dim() != 1 or len(marked) != 1 or marked[0] is not labels:
            return None
        mask, labels = rows.mask.reshape(rows.shape), labels.reshape(rows.shape)
        place = (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)
        own = torch.where(mask, labels, 0)
        joined = torch.zeros_like(own).scatter_add(1, place, own)
        return call.compute(call.function, (), {**given, "targets": joined})

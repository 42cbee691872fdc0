"""Reads and writes by a mask, as all rows and the mask.

Before   y = x[mask]; x[mask] = 0
After    y = x with a selected row in the place of each other one; x = where(mask, 0, x)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.trainer.pytorch.masks import BatchMasks
from engine.trainer.pytorch.selected_rows import FunctionCall, Marks, SelectedRows
from engine.trainer.pytorch.shorthand import read_arguments


class MaskReads:
    """Reads and writes of a trace by masks of the batch."""

    def __init__(self, torch: Any, marks: Marks, masks: BatchMasks) -> None:
        self._torch, self._marks, self._masks = torch, marks, masks

    def select(self, call: FunctionCall) -> Any:
        """Return what a mask selects, as all rows; None if it selects none."""
        torch, args = self._torch, call.args
        if call.name == "__getitem__":
            return self._read(call)
        if call.name == "__setitem__":
            return self._write(args)
        if call.name == "masked_select":
            return self._select_elements(call)
        if call.name in ("masked_scatter", "masked_scatter_"):
            return self._scatter(call)
        if call.name == "nonzero" and self._masks.is_mask(args[0]):
            columns = self._list_places(args[0])
            if call.kwargs.get("as_tuple"):
                return tuple(columns)
            rows = self._masks.find_rows(args[0])
            return self._marks.mark(torch.stack(columns, 1), rows, call.run)
        if call.name == "where" and len(args) == 1 and self._masks.is_mask(args[0]):
            return tuple(self._list_places(args[0]))
        return None

    def write_rows(self, args: Sequence[Any], rows: SelectedRows) -> Any:
        """Write x[mask] = rows that the same mask has selected."""
        torch, (x, index, value) = self._torch, args
        mask = self._find_whole(index)
        if mask is None or x in self._marks or self._masks.find_rows(mask) is not rows:
            return None
        wide = mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
        x.copy_(torch.where(wide, value.reshape(x.shape).to(x.dtype), x))
        return x

    def _select_elements(self, call: FunctionCall) -> Any:
        torch = self._torch
        x, mask = read_arguments("input mask", call.args, call.kwargs).values()
        if not self._masks.is_mask(mask):
            return None
        x, wide = torch.broadcast_tensors(x, mask)
        rows = self._masks.find_rows(mask if wide.shape == mask.shape else wide)
        return self._marks.mark(rows.fill(torch, x.reshape(-1)), rows, call.run)

    def _scatter(self, call: FunctionCall) -> Any:
        """Return x with the next element of a source at each place of a mask."""
        torch = self._torch
        x, mask, source = read_arguments("input mask source", call.args, call.kwargs).values()
        if not self._masks.is_mask(mask):
            return None
        mask = mask.expand_as(x)
        place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
        values = source.reshape(-1)
        y = torch.where(mask, values[place].reshape(x.shape), x)
        return x.copy_(y) if call.name.endswith("_") else y

    def _list_places(self, mask: Any) -> list[Any]:
        """Return the indices of the selected elements along each axis of a mask."""
        torch, rows = self._torch, self._masks.find_rows(mask)
        flat, made = rows.fill(torch, torch.arange(rows.mask.shape[0])), []
        for size in reversed(mask.shape[1:]):
            made.append(flat % size)
            flat = flat // size
        return [self._marks.mark(place, rows) for place in (flat, *reversed(made))]

    def _read(self, call: FunctionCall) -> Any:
        """Return x[mask], or x[mask, ...] with whole axes after it, or one place along the next."""
        torch, (x, index) = self._torch, call.args
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not self._masks.is_mask(first) or not isinstance(x, torch.Tensor):
            return None
        if any(not (v is Ellipsis or v == slice(None) or type(v) is int) for v in rest):
            return None
        rows = self._masks.find_rows(first)
        whole = rows.fill(torch, x.reshape(-1, *x.shape[first.dim() :]))
        if any(type(v) is int for v in rest):
            whole = whole[(slice(None), *rest)]
        return self._marks.mark(whole, rows, call.run)

    def _write(self, args: Sequence[Any]) -> Any:
        """Write x[mask] = value in place, as a choice for each element."""
        torch, (x, index, value) = self._torch, args
        mask = self._find_whole(index)
        if mask is None:
            return None
        tail = x.shape[mask.dim() :]
        if isinstance(value, torch.Tensor):
            if value.dim() > len(tail):
                if value.shape[0] != 1:
                    return None
                value = value[0]
            value = value.to(x.dtype)
        x.copy_(torch.where(mask.reshape(*mask.shape, *[1] * len(tail)), value, x))
        return x  # which `__setitem__` does not return

    def _find_whole(self, index: Any) -> Any:
        """Return the mask of an index that has whole axes after it; None for other indices."""
        first, *rest = index if isinstance(index, tuple) else (index,)
        is_whole = all(v is Ellipsis or v == slice(None) for v in rest)
        return first if is_whole and self._masks.is_mask(first) else None

"""Rows that a mask selects, as all rows and a mask: how many they are is not known before.

    Before   F.mse_loss(x[mask], y[mask])
    After    F.mse_loss(x', y', reduction="none"), its sum over the rows of the mask / their number

x' is x whose other rows are copies of a selected one: their results are as finite as the results of
selected rows, and no sum counts them, so that no gradient is NaN.  Functions of single rows keep
the mask, means and sums over rows apply it.  Any other function reads the selected rows themselves,
as torch's exporter writes them.

`engine.trainer.pytorch.functions` asks this file for each call of a function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch.mask_reads import MaskReads
from engine.trainer.pytorch.masks import BatchMasks
from engine.trainer.pytorch.row_functions import COUNTED, RowFunctions
from engine.trainer.pytorch.selected_rows import FunctionCall, Marks

_FALSE_OF_SOME = {("eq", 0), ("lt", 1), ("le", 0)}
_TRUE_OF_SOME = {("ne", 0), ("gt", 0), ("ge", 1)}


class MaskedRows:
    """The calls of a trace whose arguments a mask selects, or has selected."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marks, self._masks = Marks(torch), BatchMasks(torch)
        self._reads = MaskReads(torch, self._marks, self._masks)
        self._functions = RowFunctions(torch, self._marks, self._reads)

    def compute(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compute: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any],
    ) -> Any:
        """Return what a function makes of its arguments; None if no mask selects any of them.

        compute: computes it without this class.
        """
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = f"get {getattr(function.__self__, '__name__', '')}"
        self._masks.note_changes(name)
        call = FunctionCall(name, function, args, kwargs, compute)
        leaves = call.list_leaves()
        marked = [v for v in leaves if v in self._marks]
        if any(self._marks.find_counted(v) is not None for v in leaves):
            made = self._answer(call)
            if made is not None:
                return made
            if marked:
                call = self._replace_counts(call)
        if not marked:
            made = self._reads.select(call)
            return self._masks.compute(call) if made is None else made
        rows = self._marks.find_rows(marked[0])
        if all(self._marks.find_rows(v) is rows for v in marked):
            made = self._functions.follow(call, rows)
            if made is not None:
                return made
        replace = self._torch.utils._pytree.tree_map
        args, kwargs = (
            replace(self.finish, given) for given in (tuple(call.args), dict(call.kwargs))
        )
        return compute(function, args, kwargs)

    def finish(self, value: Any) -> Any:
        """Return the rows that count of a tensor, and other values as they are."""
        return self._marks.finish(value)

    def _answer(self, call: FunctionCall) -> Any:
        """Return whether there are any rows, for a call that compares their number with 0."""
        args = call.args
        rows = self._marks.find_counted(args[0]) if args else None
        if call.plain in ("bool", "int", "index", "float", "item", "len"):
            if call.plain == "bool" and rows is not None:
                rows.is_asked = True
                return True
            raise UnsupportedOpError(COUNTED)
        if rows is not None and len(args) == 2 and not self._torch.is_tensor(args[1]):
            asked = (call.plain, args[1])
            if asked in _TRUE_OF_SOME or asked in _FALSE_OF_SOME:
                rows.is_asked = True
                return asked in _TRUE_OF_SOME
        return None

    def _replace_counts(self, call: FunctionCall) -> FunctionCall:
        """Return a call with the number of all rows in the place of the selected ones'."""
        own = {key: rows.mask.shape[0] for key, rows in self._marks.list_counts()}
        replace = self._torch.utils._pytree.tree_map
        args = tuple(replace(lambda v: own.get(id(v), v), tuple(call.args)))
        return FunctionCall(call.name, call.function, args, call.kwargs, call.compute)

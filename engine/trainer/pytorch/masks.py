"""The masks of a trace: equal ones select the same rows."""

from __future__ import annotations

from typing import Any

from engine.trainer.pytorch.selected_rows import FunctionCall, SelectedRows

_RESHAPES = frozenset({"view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "unsqueeze"})
_COMPARES_NAMES = "eq ne lt le gt ge isnan isfinite logical_not invert bool"
_COMPARES = frozenset(_COMPARES_NAMES.split())


class BatchMasks:
    """The masks of a trace, by how each of them is computed; changes in place end that."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._rows: dict[Any, SelectedRows] = {}
        self._keys: dict[int, tuple[Any, Any]] = {}
        self._changes = 0

    def is_mask(self, value: Any) -> bool:
        """Return whether a value is a mask of the batch: others have the same rows always."""
        torch = self._torch
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.bool
            and value.dim() > 0
            and any(not isinstance(n, int) for n in value.shape)
        )

    def find_rows(self, mask: Any) -> SelectedRows:
        """Return the rows that a mask selects: the same for equal masks."""
        key = self._find_key(mask)
        if key not in self._rows:
            flat = mask.reshape(-1)
            self._rows[key] = SelectedRows(flat, flat.sum(), tuple(mask.shape))
            self._keys.setdefault(id(mask), (mask, key))
        return self._rows[key]

    def note_changes(self, name: str) -> None:
        """Note that a function of this name may change tensors in place."""
        is_in_place = name.endswith("_") and not name.endswith("__")
        if is_in_place or name == "__setitem__" or name.startswith("__i"):
            self._changes += name != "__invert__"

    def compute(self, call: FunctionCall) -> Any:
        """Return a mask that is noted with what it is computed by; None for other functions."""
        torch, args = self._torch, call.args
        if not args or not isinstance(args[0], torch.Tensor) or call.kwargs:
            return None
        if call.plain not in _RESHAPES and call.plain not in _COMPARES:
            return None
        made = call.run()
        if not isinstance(made, torch.Tensor):
            return made
        key = self._find_key(args[0])  # of reshaped elements as of the elements
        if call.plain in _COMPARES:
            if any(isinstance(v, torch.Tensor) and v.dim() for v in args[1:]):
                return made
            key = (call.plain, key, *(self._find_key(v) for v in args[1:]))
        self._keys[id(made)] = made, key
        # The value that is read has to keep its id, too.
        self._keys.setdefault(id(args[0]), (args[0], self._find_key(args[0])))
        return made

    def _find_key(self, value: Any) -> Any:
        torch = self._torch
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, int | float | bool | str | None) else object()
        kept = self._keys.get(id(value))
        return (self._changes, id(value)) if kept is None else kept[1]

"""Functions of selected rows that compute each row by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch.mask_reads import MaskReads
from engine.trainer.pytorch.row_sums import LOSSES, REDUCED, RowSums
from engine.trainer.pytorch.selected_rows import FunctionCall, Marks, SelectedRows

COUNTED = (
    "the module asks how many rows a mask selects, as a number of Python; supported: to ask "
    "whether there are any, and to compute with mask.sum()"
)
# Functions of single elements, without the underscores of their forms.
_POINTWISE_NAMES = (
    "abs acos add addcdiv addcmul and asin atan atan2 bfloat16 bitwise_and bitwise_not bitwise_or "
    "bool ceil celu clamp clamp_max clamp_min clip clone contiguous cos cosh detach div divide "
    "dropout elu eq erf erfc exp exp2 expm1 float floor floor_divide ge gelu greater gt half "
    "hardsigmoid hardswish hardtanh iadd imul int invert isfinite isinf isnan isub itruediv le "
    "leaky_relu lerp less log log10 log1p log2 logical_and logical_not logical_or logical_xor "
    "logit logsigmoid long lt masked_fill maximum minimum mish mod mul multiply nan_to_num ne neg "
    "negative not_equal ones_like or pow radd rdiv reciprocal relu relu6 remainder rmul round "
    "rpow rsqrt rsub rtruediv selu sigmoid sign silu sin sinh softplus sqrt square sub subtract "
    "tan tanh to true_divide truediv trunc type type_as where xor zeros_like double"
)
_POINTWISE = frozenset(_POINTWISE_NAMES.split())
# Functions along one axis, and the place of the axis among their arguments.
_ALONG = {
    "softmax": 1, "log_softmax": 1, "normalize": 2, "cumsum": 1, "cumprod": 1, "argmax": 1,
    "argmin": 1, "logsumexp": 1, "softmin": 1, "glu": 1, "prod": 1, "flip": 1, "topk": 2, "sort": 1,
    "std": 1, "var": 1, "norm": 2, "vector_norm": 2, "unflatten": 1, "cosine_similarity": 2,
    "chunk": 2, "split": 2,
}  # fmt: skip
_DEFAULT_AXES = {"normalize": 1, "cosine_similarity": 1, "topk": -1, "sort": -1, "glu": -1,
                 "chunk": 0, "split": 0}  # fmt: skip


class RowFunctions:
    """Functions of marked tensors, as far as they can keep all rows."""

    def __init__(self, torch: Any, marks: Marks, reads: MaskReads) -> None:
        self._torch, self._marks, self._reads = torch, marks, reads
        self._sums = RowSums(torch, marks)

    def follow(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return what a function makes of all rows; None if that is not known here."""
        name, plain, args = call.name, call.plain, call.args
        x: Any = args[0] if args else None
        if name.startswith("get "):
            return self._read_property(name[4:], call, rows)
        if name in ("size", "numel", "nelement", "dim", "ndimension", "stride", "__len__"):
            return self._measure(call, rows)
        if name == "__setitem__":
            return self._reads.write_rows(args, rows) if args[2] in self._marks else None
        if name in LOSSES:
            return self._sums.compute_loss(call, rows)
        if name == "ctc_loss":
            return self._sums.compute_ctc(call, rows)
        if plain in _POINTWISE:
            return self._compute_elements(call, rows)
        if name == "__getitem__":
            return self._take_parts(call, rows)
        if x not in self._marks:
            return self._look_up(call, rows)
        if plain in REDUCED:
            return self._sums.reduce(call, rows)
        if plain in ("view", "reshape", "expand", "flatten", "squeeze", "unsqueeze"):
            return self._reshape(call, rows)
        return self._marks.mark(call.run(), rows) if self._is_of_rows(call) else None

    def _is_of_rows(self, call: FunctionCall) -> bool:
        """Return whether a function of a marked tensor computes each row by itself."""
        plain, args, kwargs = call.plain, call.args, call.kwargs
        x: Any = args[0]
        if plain in ("linear", "layer_norm", "one_hot"):
            is_row = x.dim() > (len(args[1]) if plain == "layer_norm" else plain == "linear")
            return is_row and not any(v in self._marks for v in call.list_leaves(1))
        if plain in _ALONG:
            place = _ALONG[plain]
            axis = kwargs.get("dim", args[place] if len(args) > place else _DEFAULT_AXES.get(plain))
            return isinstance(axis, int) and bool(axis % x.dim()) and self._are_alike(call, x)
        if plain in ("matmul", "mm"):
            return args[1] not in self._marks and x.dim() >= 2 and args[1].dim() <= 2
        return False

    def _list_tensors(self, call: FunctionCall) -> list[Any]:
        return [v for v in call.list_leaves() if isinstance(v, self._torch.Tensor)]

    def _are_alike(self, call: FunctionCall, x: Any) -> bool:
        """Return whether all tensors that are given have marks and as many axes."""
        return all(v in self._marks and v.dim() == x.dim() for v in self._list_tensors(call))

    def _compute_elements(self, call: FunctionCall, rows: SelectedRows) -> Any:
        tensors = self._list_tensors(call)
        rank = max(v.dim() for v in tensors)
        for value in tensors:
            if value in self._marks:
                if value.dim() != rank:
                    return None
            elif value.dim() == rank and (not rank or value.shape[0] != 1):
                return None
        return self._marks.mark(call.run(), rows)

    def _take_parts(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return x[places], or parts of each row of x."""
        torch, (x, index) = self._torch, call.args
        parts = index if isinstance(index, tuple) else (index,)
        if x in self._marks:
            return self._marks.mark(call.run(), rows) if _is_of_each_row(x, parts) else None
        chosen = [isinstance(v, torch.Tensor) for v in parts]
        count = sum(chosen)
        if not all(chosen[:count]) or any(v not in self._marks for v in parts[:count]):
            return None
        if any(v.dim() != 1 for v in parts[:count]):
            return None
        if any(v is not Ellipsis and not isinstance(v, slice) for v in parts[count:]):
            return None
        return self._marks.mark(call.run(), rows)

    def _look_up(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return rows of a table at places that a mask has selected."""
        if call.name not in ("gather", "index_select", "embedding"):
            return None
        if call.name == "embedding":
            index, axis = call.args[0], 0
        else:
            _, axis, index = (*call.args, *call.kwargs.values())[:3]
        return self._marks.mark(call.run(), rows) if axis == 0 and index in self._marks else None

    def _reshape(self, call: FunctionCall, rows: SelectedRows) -> Any:
        """Return rows of another shape, or the parts of rows as rows."""
        name, mark, (x, *shape) = call.plain, self._marks.mark, call.args
        if call.kwargs:
            return None
        tail = list(x.shape[1:])
        if name in ("squeeze", "unsqueeze"):
            if name == "squeeze" and not shape:
                axes = [axis for axis in range(1, x.dim()) if x.shape[axis] == 1]
                return mark(x.squeeze(axes), rows)
            rank = x.dim() + (name == "unsqueeze")
            if not isinstance(shape[0], int) or shape[0] % rank == 0:
                return None
            return mark(call.run(), rows)
        if name == "flatten":
            if (shape or [0])[0] != 0:
                return mark(call.run(), rows)
            shape = [-1]
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = list(shape[0])
        if any(isinstance(n, self._torch.Tensor | self._torch.dtype) for n in shape):
            return None
        first, *rest = shape
        is_all = not isinstance(first, int) and str(first) == str(x.shape[0])
        if name == "expand":
            if len(shape) != x.dim() or not (is_all or first == -1):
                return None
            return mark(x.expand(-1, *rest), rows)
        if (is_all or first == -1) and -1 not in rest and math.prod(rest) == math.prod(tail):
            return mark(x.reshape(-1, *rest), rows)
        if is_all and rest.count(-1) == 1:
            return mark(x.reshape(*shape), rows)
        if first == -1 and all(isinstance(n, int) and n > 0 for n in (*tail, *rest)):
            count, left = divmod(math.prod(tail), math.prod(rest))
            return None if left else mark(x.reshape(*shape), rows.spread(count))
        return None

    def _read_property(self, name: str, call: FunctionCall, rows: SelectedRows) -> Any:
        if name == "shape":
            return (self._marks.count(rows), *call.args[0].shape[1:])
        made = call.run()
        if not isinstance(made, self._torch.Tensor):
            return made
        return self._marks.mark(made, rows) if name == "data" else None

    def _measure(self, call: FunctionCall, rows: SelectedRows) -> Any:
        x: Any = call.args[0]
        if call.name == "__len__":
            raise UnsupportedOpError(COUNTED)
        if call.name == "size":
            axis = call.args[1] if len(call.args) > 1 else None
            if axis is None:
                return (self._marks.count(rows), *x.shape[1:])
            return x.shape[axis] if axis % x.dim() else self._marks.count(rows)
        if call.name in ("numel", "nelement"):
            return self._marks.count(rows, math.prod(x.shape[1:]))
        return call.run()


def _is_of_each_row(x: Any, parts: Sequence[Any]) -> bool:
    """Return whether an index of x takes the same parts of each row."""
    if any(not (v is None or v is Ellipsis or isinstance(v, int | slice)) for v in parts):
        return False
    if parts[0] is Ellipsis:
        return bool(len(parts) - 1 < x.dim())
    return bool(parts[0] == slice(None))

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

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.base.errors import UnsupportedOpError
from engine.trainer.pytorch.shorthand import read_arguments

Call = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

_COUNTED = (
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
_REDUCED = frozenset({"sum", "mean", "amax", "amin", "max", "min", "all", "any"})
_LOSSES_NAMES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div soft_margin_loss "
    "binary_cross_entropy_with_logits poisson_nll_loss gaussian_nll_loss"
)
_LOSSES = frozenset(_LOSSES_NAMES.split())
_CLASS_LOSSES = frozenset({"cross_entropy", "nll_loss"})
_RESHAPES = frozenset({"view", "reshape", "flatten", "ravel", "contiguous", "squeeze", "unsqueeze"})
_COMPARES_NAMES = "eq ne lt le gt ge isnan isfinite logical_not invert bool"
_COMPARES = frozenset(_COMPARES_NAMES.split())
_FALSE_OF_SOME = {("eq", 0), ("lt", 1), ("le", 0)}
_TRUE_OF_SOME = {("ne", 0), ("gt", 0), ("ge", 1)}


@dataclass(eq=False)
class SelectedRows:
    """The rows that a mask selects.

    mask: bools [rows].  count: how many are selected, a tensor of one integer.
    shape: the mask's shape in the module.
    is_asked: whether the module has asked if there are any; then a mean of none is 0.
    """

    mask: Any
    count: Any
    shape: tuple[Any, ...] = ()
    is_asked: bool = False
    spreads: dict[int, SelectedRows] = field(default_factory=dict)

    def keep(self, x: Any) -> Any:
        """Return the mask with as many axes as x [rows, ...]."""
        return self.mask.reshape(-1, *[1] * (x.dim() - 1))

    def fill(self, torch: Any, x: Any) -> Any:
        """Return x [rows, ...] with a selected row in the place of each other one."""
        first = self.mask.to(torch.int64).argmax(0, keepdim=True)
        return torch.where(self.keep(x), x, x.index_select(0, first))

    def spread(self, count: int) -> SelectedRows:
        """Return the rows that each of these becomes if it is divided into `count`."""
        if count not in self.spreads:
            mask = self.mask.unsqueeze(1).expand(-1, count).reshape(-1)
            self.spreads[count] = SelectedRows(mask, self.count * count, (), self.is_asked)
        return self.spreads[count]


@dataclass(frozen=True)
class _Marked:
    """A tensor [rows, ...], the rows of it that count, and how to select them."""

    tensor: Any
    rows: SelectedRows
    select: Callable[[], Any]


class MaskedRows:
    """The tensors of a trace that have rows which do not count."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marked: dict[int, _Marked] = {}
        self._counts: dict[int, tuple[Any, SelectedRows]] = {}
        self._rows: dict[Any, SelectedRows] = {}
        # How each tensor is computed, so that equal masks are one; changes in place end that.
        self._keys: dict[int, tuple[Any, Any]] = {}
        self._changes = 0

    def compute(
        self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """Return what a function makes of its arguments; None if no mask selects any of them.

        call: computes it without this class.
        """
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = f"get {getattr(function.__self__, '__name__', '')}"
        self._note_changes(name)
        leaves = [v for v in _list_leaves((args, kwargs)) if id(v) in self._marked]
        if any(id(v) in self._counts for v in _list_leaves((args, kwargs))):
            made = self._answer(name, function, args, kwargs, call)
            if made is not None:
                return made
            args = self._replace_counts(args, bool(leaves))
        if not leaves:
            made = self._select(name, function, args, kwargs, call)
            if made is None:
                made = self._compute_keyed(name, function, args, kwargs, call)
            return made
        rows = self._marked[id(leaves[0])].rows
        if all(self._marked[id(v)].rows is rows for v in leaves):
            made = self._follow(name, function, args, kwargs, rows, call)
            if made is not None:
                return made
        args, kwargs = (
            self._torch.utils._pytree.tree_map(self.finish, given)
            for given in (tuple(args), dict(kwargs))
        )
        return call(function, args, kwargs)

    def finish(self, value: Any) -> Any:
        """Return the rows that count of a tensor, and other values as they are."""
        if id(value) not in self._marked:
            return value
        with self._torch._C.DisableTorchFunction():  # which would select all rows again
            return self._marked[id(value)].select()

    # --- marks

    def _mark(self, made: Any, rows: SelectedRows, select: Callable[[], Any] | None = None) -> Any:
        torch = self._torch
        if isinstance(made, tuple | list):
            for part in made:
                self._mark(part, rows)
        elif isinstance(made, torch.Tensor):
            self._marked[id(made)] = _Marked(made, rows, select or (lambda: made[rows.mask]))
        return made

    def _count(self, rows: SelectedRows, each: int = 1) -> Any:
        count = rows.count * each if each != 1 else rows.count
        self._counts[id(count)] = count, rows
        return count

    # --- masks

    def _note_changes(self, name: str) -> None:
        is_in_place = name.endswith("_") and not name.endswith("__")
        if is_in_place or name == "__setitem__" or name.startswith("__i"):
            self._changes += name != "__invert__"

    def _find_key(self, value: Any) -> Any:
        torch = self._torch
        if not isinstance(value, torch.Tensor):
            return value if isinstance(value, int | float | bool | str | None) else object()
        kept = self._keys.get(id(value))
        return (self._changes, id(value)) if kept is None else kept[1]

    def _compute_keyed(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """Return a mask that is noted with what it is computed by; None for other functions."""
        torch, plain = self._torch, name.strip("_")
        if not args or not isinstance(args[0], torch.Tensor) or kwargs:
            return None
        if plain not in _RESHAPES and plain not in _COMPARES:
            return None
        made = call(function, args, kwargs)
        if not isinstance(made, torch.Tensor):
            return made
        key = self._find_key(args[0])  # of reshaped elements as of the elements
        if plain in _COMPARES:
            if any(isinstance(v, torch.Tensor) and v.dim() for v in args[1:]):
                return made
            key = (plain, key, *(self._find_key(v) for v in args[1:]))
        self._keys[id(made)] = made, key
        # The value that is read has to keep its id, too.
        self._keys.setdefault(id(args[0]), (args[0], self._find_key(args[0])))
        return made

    def _find_rows(self, mask: Any) -> SelectedRows:
        key = self._find_key(mask)
        if key not in self._rows:
            flat = mask.reshape(-1)
            self._rows[key] = SelectedRows(flat, flat.sum(), tuple(mask.shape))
            self._keys.setdefault(id(mask), (mask, key))
        return self._rows[key]

    def _is_mask(self, value: Any) -> bool:
        """Return whether a value is a mask of the batch: others have the same rows always."""
        torch = self._torch
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.bool
            and value.dim() > 0
            and any(not isinstance(n, int) for n in value.shape)
        )

    # --- selections

    def _select(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """Return what a mask selects, as all rows; None if it selects none."""
        torch = self._torch
        if name == "__getitem__":
            return self._read(function, args, call)
        if name == "__setitem__":
            return self._write(args)
        if name == "masked_select":
            x, mask = read_arguments("input mask", args, kwargs).values()
            if not self._is_mask(mask):
                return None
            x, wide = torch.broadcast_tensors(x, mask)
            rows = self._find_rows(mask if wide.shape == mask.shape else wide)
            made = rows.fill(torch, x.reshape(-1))
            return self._mark(made, rows, lambda: call(function, args, kwargs))
        if name in ("masked_scatter", "masked_scatter_"):
            x, mask, source = read_arguments("input mask source", args, kwargs).values()
            if not self._is_mask(mask):
                return None
            mask = mask.expand_as(x)
            place = (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp(min=0)
            values = source.reshape(-1)
            y = torch.where(mask, values[place].reshape(x.shape), x)
            return x.copy_(y) if name.endswith("_") else y
        if name == "nonzero" and self._is_mask(args[0]):
            columns = self._list_places(args[0])
            if kwargs.get("as_tuple"):
                return tuple(columns)
            rows = self._find_rows(args[0])
            return self._mark(torch.stack(columns, 1), rows, lambda: call(function, args, kwargs))
        if name == "where" and len(args) == 1 and self._is_mask(args[0]):
            return tuple(self._list_places(args[0]))
        return None

    def _list_places(self, mask: Any) -> list[Any]:
        """Return the indices of the selected elements along each axis of a mask."""
        torch, rows = self._torch, self._find_rows(mask)
        flat, made = rows.fill(torch, torch.arange(rows.mask.shape[0])), []
        for size in reversed(mask.shape[1:]):
            made.append(flat % size)
            flat = flat // size
        return [self._mark(place, rows) for place in (flat, *reversed(made))]

    def _read(self, function: Any, args: Sequence[Any], call: Call) -> Any:
        """Return x[mask], or x[mask, ...] with whole axes after it, or one place along the next."""
        torch, (x, index) = self._torch, args
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not self._is_mask(first) or not isinstance(x, torch.Tensor):
            return None
        if any(not (v is Ellipsis or v == slice(None) or type(v) is int) for v in rest):
            return None
        rows = self._find_rows(first)
        whole = rows.fill(torch, x.reshape(-1, *x.shape[first.dim() :]))
        if any(type(v) is int for v in rest):
            whole = whole[(slice(None), *rest)]
        return self._mark(whole, rows, lambda: call(function, args, {}))

    def _write(self, args: Sequence[Any]) -> Any:
        """Write x[mask] = value in place, as a choice for each element."""
        torch, (x, index, value) = self._torch, args
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not self._is_mask(first) or any(v is not Ellipsis and v != slice(None) for v in rest):
            return None
        tail = x.shape[first.dim() :]
        if isinstance(value, torch.Tensor):
            if value.dim() > len(tail):
                if value.shape[0] != 1:
                    return None
                value = value[0]
            value = value.to(x.dtype)
        mask = first.reshape(*first.shape, *[1] * len(tail))
        x.copy_(torch.where(mask, value, x))
        return x  # which `__setitem__` does not return

    def _write_rows(self, args: Sequence[Any], rows: SelectedRows) -> Any:
        """Write x[mask] = rows that the same mask has selected."""
        torch, (x, index, value) = self._torch, args
        first, *rest = index if isinstance(index, tuple) else (index,)
        if not self._is_mask(first) or any(v is not Ellipsis and v != slice(None) for v in rest):
            return None
        if id(x) in self._marked or self._find_rows(first) is not rows:
            return None
        mask = first.reshape(*first.shape, *[1] * (x.dim() - first.dim()))
        x.copy_(torch.where(mask, value.reshape(x.shape).to(x.dtype), x))
        return x

    # --- counts

    def _answer(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """Return whether there are any rows, for a call that compares their number with 0."""
        plain = name.strip("_")
        if plain in ("bool", "int", "index", "float", "item", "len"):
            rows = self._counts[id(args[0])][1]
            if plain == "bool":
                rows.is_asked = True
                return True
            raise UnsupportedOpError(_COUNTED)
        if len(args) == 2 and id(args[0]) in self._counts and not self._torch.is_tensor(args[1]):
            asked = (plain, args[1])
            if asked in _TRUE_OF_SOME or asked in _FALSE_OF_SOME:
                self._counts[id(args[0])][1].is_asked = True
                return asked in _TRUE_OF_SOME
        return None

    def _replace_counts(self, args: Sequence[Any], is_marked: bool) -> Sequence[Any]:
        """Return arguments with the number of all rows in the place of the selected ones'."""
        if not is_marked:
            return args
        own = {id(v): rows.mask.shape[0] for v, rows in self._counts.values()}
        replace = self._torch.utils._pytree.tree_map
        return tuple(replace(lambda v: own.get(id(v), v), tuple(args)))

    # --- functions of marked rows

    def _follow(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
        rows: SelectedRows, call: Call,
    ) -> Any:  # fmt: skip
        """Return what a function makes of all rows; None if that is not known here."""
        x: Any = args[0] if args else None
        if name.startswith("get "):
            return self._read_property(name[4:], x, rows, function, args, call)
        if name in ("size", "numel", "nelement", "dim", "ndimension", "stride", "__len__"):
            return self._measure(name, x, rows, args, function, call)
        if name == "__setitem__":
            return self._write_rows(args, rows) if id(args[2]) in self._marked else None
        if name in _CLASS_LOSSES or name in _LOSSES:
            return self._compute_loss(name, function, args, kwargs, rows, call)
        if name == "ctc_loss":
            return self._compute_ctc(function, args, kwargs, rows, call)
        plain = name.strip("_")
        if plain in _POINTWISE:
            return self._compute_elements(function, args, kwargs, rows, call)
        if name == "__getitem__":
            return self._take_parts(function, args, rows, call)
        if id(x) not in self._marked:
            return self._look_up(name, function, args, kwargs, rows, call)
        if plain in _REDUCED:
            return self._reduce(plain, function, args, kwargs, rows, call)
        if plain in ("view", "reshape", "expand", "flatten", "squeeze", "unsqueeze"):
            return self._reshape(plain, function, args, kwargs, rows, call)
        if plain in ("linear", "layer_norm", "one_hot"):
            is_row = x.dim() > (len(args[1]) if plain == "layer_norm" else plain == "linear")
            others = [v for v in _list_leaves((args[1:], kwargs)) if id(v) in self._marked]
            return self._mark(call(function, args, kwargs), rows) if is_row and not others else None
        if plain in _ALONG:
            place = _ALONG[plain]
            axis = kwargs.get("dim", args[place] if len(args) > place else _DEFAULT_AXES.get(plain))
            if isinstance(axis, int) and axis % x.dim() and self._are_alike(args, x):
                return self._mark(call(function, args, kwargs), rows)
        if plain in ("matmul", "mm"):
            y = args[1]
            if id(y) not in self._marked and x.dim() >= 2 and y.dim() <= 2:
                return self._mark(call(function, args, kwargs), rows)
        return None

    def _are_alike(self, args: Sequence[Any], x: Any) -> bool:
        """Return whether all tensors that are given have marks and as many axes."""
        tensors = [v for v in _list_leaves(args) if isinstance(v, self._torch.Tensor)]
        return all(id(v) in self._marked and v.dim() == x.dim() for v in tensors)

    def _compute_elements(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rows: SelectedRows,
        call: Call,
    ) -> Any:
        tensors = [v for v in _list_leaves((args, kwargs)) if isinstance(v, self._torch.Tensor)]
        rank = max(v.dim() for v in tensors)
        for value in tensors:
            if id(value) in self._marked:
                if value.dim() != rank:
                    return None
            elif value.dim() == rank and (not rank or value.shape[0] != 1):
                return None
        return self._mark(call(function, args, kwargs), rows)

    def _take_parts(
        self, function: Any, args: Sequence[Any], rows: SelectedRows, call: Call
    ) -> Any:
        """Return x[places], or parts of each row of x."""
        torch, (x, index) = self._torch, args
        parts = index if isinstance(index, tuple) else (index,)
        if id(x) in self._marked:
            plain = all(v is None or v is Ellipsis or isinstance(v, int | slice) for v in parts)
            is_whole = parts[0] is Ellipsis or parts[0] == slice(None)
            if parts[0] is Ellipsis and len(parts) - 1 >= x.dim():
                is_whole = False
            return self._mark(call(function, args, {}), rows) if plain and is_whole else None
        chosen = [isinstance(v, torch.Tensor) for v in parts]
        count = sum(chosen)
        if not all(chosen[:count]) or any(id(v) not in self._marked for v in parts[:count]):
            return None
        if any(v.dim() != 1 for v in parts[:count]):
            return None
        if any(v is not Ellipsis and not isinstance(v, slice) for v in parts[count:]):
            return None
        return self._mark(call(function, args, {}), rows)

    def _look_up(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
        rows: SelectedRows, call: Call,
    ) -> Any:  # fmt: skip
        """Return rows of a table at places that a mask has selected."""
        if name not in ("gather", "index_select", "embedding"):
            return None
        if name == "embedding":
            index, axis = args[0], 0
        else:
            _, axis, index = (*args, *kwargs.values())[:3]
        if axis != 0 or id(index) not in self._marked:
            return None
        return self._mark(call(function, args, kwargs), rows)

    def _reduce(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
        rows: SelectedRows, call: Call,
    ) -> Any:  # fmt: skip
        """Return a sum, a mean or an extreme over axes with the rows among them or not."""
        torch = self._torch
        given = read_arguments("input dim keepdim dtype", args, kwargs, keepdim=False)
        x, axes, keepdim = given["input"], given["dim"], bool(given["keepdim"])
        if isinstance(axes, torch.Tensor):
            return None
        axes = [axes] if isinstance(axes, int) else list(axes or range(x.dim()))
        axes = [axis % x.dim() for axis in axes]
        if 0 not in axes:
            return self._mark(call(function, args, kwargs), rows)
        if given["dtype"] is not None or (name in ("max", "min") and len(axes) < x.dim()):
            return None
        keep, lowest = rows.keep(x), x.dtype.is_floating_point and -math.inf
        if name in ("all", "any"):
            whole = (x.bool() | ~keep) if name == "all" else (x.bool() & keep)
            whole = whole.to(torch.int64).amin(axes, keepdim) if name == "all" else (
                whole.to(torch.int64).amax(axes, keepdim)
            )  # fmt: skip
            return whole > 0
        if name in ("amax", "amin", "max", "min"):
            if not x.is_floating_point():
                return None
            is_max = name in ("amax", "max")
            own = torch.where(keep, x, lowest if is_max else -lowest)
            return own.amax(axes, keepdim) if is_max else own.amin(axes, keepdim)
        x = x.to(torch.int64) if x.dtype == torch.bool else x
        total = torch.where(keep, x, 0).sum(axes, keepdim)
        if name == "sum":
            return total
        count = rows.count * math.prod(x.shape[axis] for axis in axes if axis)
        return total / (count.clamp(min=1) if rows.is_asked else count)

    def _reshape(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
        rows: SelectedRows, call: Call,
    ) -> Any:  # fmt: skip
        """Return rows of another shape, or the parts of rows as rows."""
        x, *shape = args
        if kwargs:
            return None
        tail = list(x.shape[1:])
        if name in ("squeeze", "unsqueeze"):
            if name == "squeeze" and not shape:
                axes = [axis for axis in range(1, x.dim()) if x.shape[axis] == 1]
                return self._mark(x.squeeze(axes), rows)
            rank = x.dim() + (name == "unsqueeze")
            if not isinstance(shape[0], int) or shape[0] % rank == 0:
                return None
            return self._mark(call(function, args, kwargs), rows)
        if name == "flatten":
            if (shape or [0])[0] != 0:
                return self._mark(call(function, args, kwargs), rows)
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
            return self._mark(x.expand(-1, *rest), rows)
        if (is_all or first == -1) and -1 not in rest and math.prod(rest) == math.prod(tail):
            return self._mark(x.reshape(-1, *rest), rows)
        if is_all and rest.count(-1) == 1:
            return self._mark(x.reshape(*shape), rows)
        if first == -1 and all(isinstance(n, int) and n > 0 for n in (*tail, *rest)):
            count, left = divmod(math.prod(tail), math.prod(rest))
            return None if left else self._mark(x.reshape(*shape), rows.spread(count))
        return None

    def _read_property(
        self, name: str, x: Any, rows: SelectedRows, function: Any, args: Sequence[Any], call: Call
    ) -> Any:
        if name == "shape":
            return (self._count(rows), *x.shape[1:])
        made = call(function, args, {})
        if not isinstance(made, self._torch.Tensor):
            return made
        return self._mark(made, rows) if name == "data" else None

    def _measure(
        self, name: str, x: Any, rows: SelectedRows, args: Sequence[Any], function: Any, call: Call
    ) -> Any:
        if name == "__len__":
            raise UnsupportedOpError(_COUNTED)
        if name == "size":
            axis = args[1] if len(args) > 1 else None
            if axis is None:
                return (self._count(rows), *x.shape[1:])
            return x.shape[axis] if axis % x.dim() else self._count(rows)
        if name in ("numel", "nelement"):
            return self._count(rows, math.prod(x.shape[1:]))
        return call(function, args, {})

    def _compute_ctc(
        self,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        rows: SelectedRows,
        call: Call,
    ) -> Any:
        """Return a CTC loss of the labels that a mask [batch, length] has joined to one list."""
        torch = self._torch
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        labels = given["targets"]
        marked = [v for v in given.values() if id(v) in self._marked]
        if len(rows.shape) != 2 or labels.dim() != 1 or len(marked) != 1 or marked[0] is not labels:
            return None
        mask, labels = rows.mask.reshape(rows.shape), labels.reshape(rows.shape)
        place = (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)
        own = torch.where(mask, labels, 0)
        return call(
            function, (), {**given, "targets": torch.zeros_like(own).scatter_add(1, place, own)}
        )

    def _compute_loss(
        self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
        rows: SelectedRows, call: Call,
    ) -> Any:  # fmt: skip
        """Return a loss of torch.nn.functional of the rows that count."""
        torch = self._torch
        given = inspect.signature(function).bind(*args, **kwargs)
        given.apply_defaults()
        options = dict(given.arguments)
        if options.get("size_average") is not None or options.get("reduce") is not None:
            return None
        reduction, options["reduction"] = options["reduction"], "none"
        x, target = options["input"], options["target"]
        if id(x) not in self._marked or id(target) not in self._marked:
            return None
        classes = name in _CLASS_LOSSES and not target.is_floating_point()
        if classes:
            target = torch.where(rows.keep(target), target, options["ignore_index"])
            options["target"] = target
        losses = self._mark(call(function, (), options), rows)
        if reduction == "none":
            return losses
        if reduction == "batchmean":
            return self._reduce("sum", None, (losses,), {}, rows, call) / rows.count
        if reduction == "sum" or not classes:
            return self._reduce(reduction, None, (losses,), {}, rows, call)
        own, weight = target != options["ignore_index"], options["weight"]
        count = own.sum() if weight is None else torch.where(
            own, weight[torch.where(own, target, 0)], 0.0
        ).sum()  # fmt: skip
        return losses.sum() / (count.clamp(min=1e-9) if rows.is_asked else count)


def _list_leaves(value: Any) -> list[Any]:
    """Return the values in tuples, lists and mappings."""
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _list_leaves(part)]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in _list_leaves(part)]
    return [value]

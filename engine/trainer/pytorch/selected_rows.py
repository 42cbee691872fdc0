"""The rows that a mask selects, and the tensors of a trace that have rows which do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function of torch.

    name: the function's; a property `p` has the name "get p".
    compute: computes the call without a look at marks.
    """

    name: str
    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    compute: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

    @property
    def plain(self) -> str:
        """Return the name without the underscores of operators and of changes in place."""
        return self.name.strip("_")

    def run(self) -> Any:
        """Return what the function makes of its arguments."""
        return self.compute(self.function, self.args, self.kwargs)

    def list_leaves(self, first: int = 0) -> list[Any]:
        """Return the values of all arguments, or of the ones from a place on."""
        return list_leaves((self.args[first:], self.kwargs))


def list_leaves(value: Any) -> list[Any]:
    """Return the values in tuples, lists and mappings.

    Classes of lists are values: `engine.trainer.pytorch.packing` has one that nothing may read.
    """
    if isinstance(value, tuple) or type(value) is list:
        return [leaf for part in value for leaf in list_leaves(part)]
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in list_leaves(part)]
    return [value]


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


class Marks:
    """The tensors of a trace that have rows which do not count, and the numbers of such rows.

    Both are kept, so that their ids stay their own.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marked: dict[int, _Marked] = {}
        self._counts: dict[int, tuple[Any, SelectedRows]] = {}

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._marked

    def find_rows(self, value: Any) -> SelectedRows:
        """Return the rows that count of a marked tensor."""
        return self._marked[id(value)].rows

    def mark(self, made: Any, rows: SelectedRows, select: Callable[[], Any] | None = None) -> Any:
        """Mark a tensor, or each of several; returns it.  select: how to select the rows."""
        torch = self._torch
        if isinstance(made, tuple | list):
            for part in made:
                self.mark(part, rows)
        elif isinstance(made, torch.Tensor):
            self._marked[id(made)] = _Marked(made, rows, select or (lambda: made[rows.mask]))
        return made

    def finish(self, value: Any) -> Any:
        """Return the rows that count of a tensor, and other values as they are."""
        if value not in self:
            return value
        with self._torch._C.DisableTorchFunction():  # which would select all rows again
            return self._marked[id(value)].select()

    def count(self, rows: SelectedRows, each: int = 1) -> Any:
        """Return how many rows count, times `each`, as a tensor that is known to be that."""
        count = rows.count * each if each != 1 else rows.count
        self._counts[id(count)] = count, rows
        return count

    def find_counted(self, value: Any) -> SelectedRows | None:
        """Return the rows whose number a tensor is; None if it is another tensor."""
        kept = self._counts.get(id(value))
        return None if kept is None else kept[1]

    def list_counts(self) -> Iterator[tuple[int, SelectedRows]]:
        """Return the ids of all numbers of rows, and the rows."""
        return ((key, rows) for key, (_, rows) in self._counts.items())

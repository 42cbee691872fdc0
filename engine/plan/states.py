"""States: what an optimizer keeps between its steps, and where each lies in memory.

An optimizer declares a `State` for everything that it remembers.  The region "state" holds the
states one after another.  A state holds one tensor for each trained parameter, in the order of the
parameters.  Each tensor begins at a multiple of 64 bytes, and zeros fill the gap after it.  If a
state has the shapes and the element types of the parameters, it is laid out like the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from engine.base.element_types import FLOATS, ITEMSIZE
from engine.plan.plan import align

Shape = tuple[int, ...]

FORMS = ("parameter", "rows", "columns", "scalar")  # the C runtime knows them by their positions
MOST_STATES = 6  # that an optimizer may have


@dataclass(frozen=True, slots=True)
class State:
    """One row of the table of states of an optimizer: a tensor that it keeps for each parameter.

    name: the input of the optimizer model that holds it.
    form: its shape.  Of a parameter [..., r, c], "parameter" is [..., r, c], "rows" [..., r],
        "columns" [..., c] and "scalar" [].  A vector is its own columns and has no rows, [0].
        A parameter without elements has states without elements.
    dtype: f32, f64 or i64; None for the element type of the parameter.
    initial: the value of every element before the first step.
    """

    name: str
    form: str = "parameter"
    dtype: str | None = None
    initial: float = 0.0

    @classmethod
    def of(cls, row: Sequence[object]) -> State:
        """Return the state that a row of its four fields tells.

        Raises:
            ValueError, TypeError: it tells none.
        """
        name, form, dtype, initial = row
        if not isinstance(name, str) or not isinstance(initial, int | float):
            raise TypeError("the row of no state")
        if form not in ("parameter", "rows", "columns", "scalar"):
            raise ValueError(f"a state of form {form!r}")
        if dtype is not None and dtype not in (*FLOATS, "i64"):
            raise ValueError(f"a state of element type {dtype!r}")
        return cls(name, str(form), None if dtype is None else str(dtype), initial)

    def compute_shape(self, of: Shape) -> Shape:
        """Return the shape of the tensor that is kept for a parameter of shape `of`."""
        if self.form == "parameter":
            return of
        if 0 in of or (self.form == "rows" and len(of) < 2):
            return (0,)
        return {"rows": of[:-1], "columns": (*of[:-2], *of[-1:]), "scalar": ()}[self.form]


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor in region state; `offset` is in bytes from the start of the region."""

    dtype: str
    shape: Shape
    offset: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Where the states of an optimizer lie in region state.

    begins: the offset of each state in bytes, followed by the size of the region.
    tensors: for each state, the tensor that it keeps for each parameter.
    steps_before: the steps that the optimizer had done before it first updated a parameter, where
        there were any.
    """

    states: tuple[State, ...]
    begins: tuple[int, ...]
    tensors: tuple[Mapping[str, StateTensor], ...]
    steps_before: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> object:
        """The properties that decide a plan besides the parameters."""
        return self.states, tuple(self.steps_before.items())

    @property
    def nbytes(self) -> int:
        """The size of the region."""
        return self.begins[-1]

    def join_states(self, k: int, parameters: Sequence[str]) -> StateTensor:
        """Return state k of consecutive parameters as one flat tensor.

        *Requires* that there are some, and that it keeps the same element type for all of them.
        """
        slices = [self.tensors[k][name] for name in parameters]
        first, last = slices[0], slices[-1]
        end = last.offset + align(math.prod(last.shape) * ITEMSIZE[last.dtype])
        return StateTensor(
            first.dtype, ((end - first.offset) // ITEMSIZE[first.dtype],), first.offset
        )


def lay_out(states: Sequence[State], parameters: Mapping[str, tuple[str, Shape]]) -> StateLayout:
    """Place states one after another in region state.

    parameters: the element type and the shape of each trained parameter, in order.

    tools/trimmed/runtime/runtime.c places them in the same way.
    """
    begins, tensors = [0], []
    for state in states:
        kinds = {n: (state.dtype or d, state.compute_shape(s)) for n, (d, s) in parameters.items()}
        sizes = [align(math.prod(s) * ITEMSIZE[d]) for d, s in kinds.values()]
        offsets = list(accumulate(sizes, initial=begins[-1]))
        tensors.append(
            {
                n: StateTensor(d, s, at)
                for (n, (d, s)), at in zip(kinds.items(), offsets, strict=False)
            }
        )
        begins.append(offsets[-1])
    return StateLayout(tuple(states), tuple(begins), tuple(tensors))

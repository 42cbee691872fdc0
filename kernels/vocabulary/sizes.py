"""Sizes that remember what was asked of them, so that one answer serves many shapes.

While a plan is made, every size that a symbolic dimension decides is a `Size` instead of an int.
It computes and compares like the int that it stands for, and `Sizes` notes both: what is computed
as a term over the given sizes, and each question with its answer.  Where other sizes give the same
answers to all questions, the same would be done for them, and only the terms have other values.

    given     batch = 8
    asked     y.size > 1024                        noted: batch * 512 > 1024 is true
    result    a call with the words (8, 4096)      kept: (batch, batch * 512)

Nothing can be asked that is not noted: a `Size` is not an int to the interpreter and to numpy, so
anything that wants its number (an index, a range, a hash, a text, an array) has to ask for it, and
then it is noted that the size is this number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from engine.base.aliases import Array

Number = int | float
Function = Callable[..., Any]
Term = tuple[Function | None, tuple[int, ...]]  # None: a size that was given, or a constant
Noted = dict[int, bool]  # answers by the number of the question


class Sizes:
    """The sizes of a graph while plans are made: what was computed of them, and what was asked.

    Questions are asked inside `noting` alone, so that each belongs to a piece of work.

    given: the sizes by the names of their symbols.
    """

    def __init__(self, given: Mapping[str, int]) -> None:
        self._terms: list[Term] = []
        self._values: list[Number] = []  # of the terms, for the sizes that were taken last
        self._known: dict[tuple[Any, ...], int] = {}  # a term, or type and value of a constant
        self._questions: dict[tuple[Function, int, int], int] = {}
        self._truths: list[bool] = []  # of the questions, for the sizes that were taken last
        self._noted: Noted | None = None
        self.given = {name: self._put(("", name), (None, ()), n) for name, n in given.items()}

    def take(self, given: Mapping[str, int]) -> bool:
        """Let all sizes follow from other given ones; whether these have the same names."""
        if given.keys() != self.given.keys():
            return False
        values: list[Number] = [given[name] for name in self.given]
        for at in range(len(values), len(self._terms)):
            function, places = self._terms[at]
            if function is None:
                values.append(self._values[at])
                continue
            try:
                values.append(function(*(values[p] for p in places)))
            except Exception:  # an answer has kept the sizes from it that it was computed for
                values.append(math.nan)
        self._values = values
        self._truths = [bool(ask(values[a], values[b])) for ask, a, b in self._questions]
        return True

    @contextmanager
    def noting(self) -> Iterator[Noted]:
        """Note all questions within the block, with their answers, in the result."""
        before, self._noted = self._noted, {}
        try:
            yield self._noted
        finally:
            self._noted = before

    def note(self, answers: Noted) -> None:
        """Note questions that were asked before, as if they were asked now."""
        if self._noted is not None:
            self._noted.update(answers)

    def holds(self, answers: Noted) -> bool:
        """Return whether the sizes that were taken last give the same answers."""
        truths = self._truths
        return all(truths[question] is yes for question, yes in answers.items())

    def value(self, number: Any) -> Any:
        """Return the present value of a size, or of an array with sizes; anything else as it is.

        Nothing is noted: whoever takes it must do the same for all sizes.
        """
        if type(number) is Size:
            return self._values[number.place]
        if type(number) is SizedArray:
            return np.array([self.value(i) for i in number.items], number.dtype).reshape(
                number.shape
            )
        return number

    def compute(self, function: Function, *numbers: Any, name: object = None) -> Any:
        """Return the result of a function of numbers; one of them is a size.

        name: equal for functions that compute the same; by default the function itself.
        """
        places = tuple(map(self._place, numbers))
        if function in (operator.add, operator.mul):
            places = tuple(sorted(places))
        key = (name or function, places)
        if key in self._known:
            return Size(self, self._known[key])
        return self._put(key, (function, places), function(*(self._values[p] for p in places)))

    def ask(self, function: Function, a: Any, b: Any) -> bool:
        """Return how two numbers compare; one of them is a size.

        Raises:
            LookupError: nobody would note the answer.
        """
        question = (function, self._place(a), self._place(b))
        if question[1] == question[2]:
            return bool(function(0, 0))
        known = self._questions.setdefault(question, len(self._truths))
        if known == len(self._truths):
            self._truths.append(bool(function(*(self._values[p] for p in question[1:]))))
        if self._noted is None:
            raise LookupError("a question about a size is asked where nobody notes the answer")
        self._noted[known] = self._truths[known]
        return self._truths[known]

    def _place(self, number: Any) -> int:
        """Return the place of the term of a size, or of any other number."""
        if type(number) is Size:
            if number.sizes is not self:
                raise LookupError(f"sizes of two plans meet: {number.value}")
            return number.place
        key = number.hex() if type(number) is float else number  # -0.0 is another float than 0.0
        return int(self._put((type(number), key), (None, ()), number).place)

    def _put(self, key: tuple[Any, ...], term: Term, value: Number) -> Any:
        """Return the size that a term makes; every term is kept once."""
        place = self._known.setdefault(key, len(self._terms))
        if place == len(self._terms):
            self._terms.append(term)
            self._values.append(value)
        return Size(self, place)


# --- numbers


def is_size(value: object) -> bool:
    """Return whether a number is one that sizes of inputs decide."""
    return type(value) is Size


def make_shape_key(shape: Sequence[Any]) -> tuple[object, ...]:
    """Return a key that shapes share which are equal whatever the sizes are; asks nothing."""
    return tuple([(d.place,) if type(d) is Size else d for d in shape])


def note_number(value: Any) -> Any:
    """Return the number itself where it is a size, which is noted; anything else as it is."""
    if type(value) is Size:
        value.sizes.ask(operator.eq, value, value.value)
        return value.value
    return value


def _wrap_computing(function: Function, *, swapped: bool = False) -> Function:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return self.sizes.compute(function, *((other, self) if swapped else (self, other)))

    return method


def _wrap_asking(function: Function) -> Function:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return self.sizes.ask(function, self, other)

    return method


def _of_number(function: Function) -> Function:
    """Return a method that needs the number."""

    def method(self: Size, *args: Any) -> Any:
        return function(note_number(self), *map(note_number, args))

    return method


def _of_numbers(function: Function) -> Function:
    """Return a method that needs the numbers, with the operands swapped."""

    def method(self: Size, other: Any) -> Any:
        return function(note_number(other), note_number(self))

    return method


class Size:
    """A number that the sizes of inputs decide; for those who compute with it an int or a float.

    place: of its term.
    """

    __slots__ = ("place", "sizes")

    def __init__(self, sizes: Sizes, place: int) -> None:
        self.sizes, self.place = sizes, place

    @property
    def value(self) -> Number:
        """The number that it is now."""
        return self.sizes._values[self.place]

    @property  # type: ignore[misc]  # what it is to others cannot be set
    def __class__(self) -> Any:
        return type(self.value)

    __add__ = _wrap_computing(operator.add)
    __radd__ = _wrap_computing(operator.add, swapped=True)
    __sub__ = _wrap_computing(operator.sub)
    __rsub__ = _wrap_computing(operator.sub, swapped=True)
    __mul__ = _wrap_computing(operator.mul)
    __rmul__ = _wrap_computing(operator.mul, swapped=True)
    __floordiv__ = _wrap_computing(operator.floordiv)
    __rfloordiv__ = _wrap_computing(operator.floordiv, swapped=True)
    __truediv__ = _wrap_computing(operator.truediv)
    __rtruediv__ = _wrap_computing(operator.truediv, swapped=True)
    __mod__ = _wrap_computing(operator.mod)
    __rmod__ = _wrap_computing(operator.mod, swapped=True)

    __lt__ = _wrap_asking(operator.lt)
    __le__ = _wrap_asking(operator.le)
    __gt__ = _wrap_asking(operator.gt)
    __ge__ = _wrap_asking(operator.ge)
    __eq__ = _wrap_asking(operator.eq)
    __ne__ = _wrap_asking(operator.ne)

    def __neg__(self) -> Any:
        return 0 - self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __bool__(self) -> bool:
        return self.sizes.ask(operator.ne, self, 0)

    __hash__ = _of_number(hash)
    __index__ = _of_number(operator.index)
    __int__ = _of_number(int)
    __float__ = _of_number(float)
    __str__ = _of_number(str)
    __repr__ = _of_number(repr)
    __format__ = _of_number(format)
    __round__ = _of_number(round)
    __trunc__ = _of_number(math.trunc)
    __floor__ = _of_number(math.floor)
    __ceil__ = _of_number(math.ceil)
    __pos__ = _of_number(operator.pos)
    __invert__ = _of_number(operator.invert)
    __divmod__ = _of_number(divmod)
    __rdivmod__ = _of_numbers(divmod)
    __pow__ = _of_number(pow)
    __rpow__ = _of_numbers(pow)
    __and__ = _of_number(operator.and_)
    __rand__ = _of_numbers(operator.and_)
    __or__ = _of_number(operator.or_)
    __ror__ = _of_numbers(operator.or_)
    __xor__ = _of_number(operator.xor)
    __rxor__ = _of_numbers(operator.xor)
    __lshift__ = _of_number(operator.lshift)
    __rlshift__ = _of_numbers(operator.lshift)
    __rshift__ = _of_number(operator.rshift)
    __rrshift__ = _of_numbers(operator.rshift)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(note_number(self), name)

    def __copy__(self) -> Size:
        return self

    def __deepcopy__(self, memo: object) -> Size:
        return self

    def __reduce__(self) -> Any:
        return type(self.value), (note_number(self),)

    def __array__(self, dtype: Any = None, copy: object = None) -> Array:
        return np.array(note_number(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(note_number, inputs), **kwargs)


# --- arrays


class SizedArray(NDArrayOperatorsMixin):
    """A constant tensor some of whose elements are sizes.

    Operations that are not declared here use the array of its numbers, which is noted.

    items: its elements in order.
    """

    def __init__(self, items: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> None:
        self.items, self.shape, self.dtype = tuple(items), shape, np.dtype(dtype)
        self.ndim, self.size = len(shape), len(self.items)
        self.nbytes = self.size * self.dtype.itemsize

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for arrays that are equal whatever the sizes are."""
        return self.dtype.str, self.shape, make_shape_key(self.items)

    def reshape(self, *shape: Any) -> SizedArray:
        """Return the same elements in another shape."""
        return SizedArray(self.items, np.empty(self.size, bool).reshape(*shape).shape, self.dtype)

    def item(self) -> Any:
        """Return its only element."""
        (item,) = self.items
        return item

    def tolist(self) -> Any:
        """Return its elements, in lists of lists."""
        places: list[Any] = np.arange(self.size).reshape(self.shape).tolist()
        return _map_places(places, self.items)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        places = np.arange(self.size).reshape(self.shape)[index]
        if isinstance(places, np.ndarray):
            return fill_array([self.items[i] for i in places.flat], places.shape, self.dtype)
        return self.items[places]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __array__(self, dtype: Any = None, copy: object = None) -> Array:
        made = np.array([note_number(i) for i in self.items], self.dtype).reshape(self.shape)
        return made if dtype is None else made.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = (np.asarray(i) if isinstance(i, SizedArray) else note_number(i) for i in inputs)
        return getattr(ufunc, method)(*plain, **kwargs)


def _map_places(places: Any, items: Sequence[Any]) -> Any:
    if isinstance(places, list):
        return [_map_places(p, items) for p in places]
    return items[places]


def fill_array(items: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Make an array of these elements in order: one of NumPy's unless some are sizes."""
    if any(type(i) is Size for i in items):
        return SizedArray(items, shape, dtype)
    return np.array(items, dtype).reshape(shape)


def make_array(value: Any, dtype: Any) -> Any:
    """Do the same as `np.array`, for numbers, sequences and arrays that may contain sizes."""
    if isinstance(value, SizedArray) and value.dtype == dtype:
        return value
    if type(value) is Size:
        return fill_array([value], (), dtype)
    if isinstance(value, list | tuple) and any(type(i) is Size for i in value):
        return fill_array(value, (len(value),), dtype)
    return np.array(value, dtype)

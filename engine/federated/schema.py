"""Schema of answers to a round: one declaration for messages of Flower and for files.

    schema = Schema({"w": Tensor((3, 20), np.dtype("float32"))}, NUMBERS)
    schema.check_tensors(arrays)               # names, element types, shapes, ranges
    numbers = schema.checked(metrics)          # names, types, ranges

An answer comes from an untrusted device.  It is checked here before anything else uses its values;
if it does not fit the declaration, it is refused with the name of the field, the value found, and
the expected ones.  This file needs only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError, NonFiniteError, ShapeError

LARGEST = 2.0**60  # of parameters and of numbers: float32 holds the square of it
MAX_EXAMPLES = 1_000_000  # of one client in one round, unless `max-examples` sets another number
EXAMPLES = "num-examples"  # Flower's name for the number of samples of an answer
_MOST_NUMBERS = 64
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class NumberField:
    """Number of an answer.

    whole: it is an integer.  least, most: the range, both included. required: it must be present.
    """

    whole: bool = False
    least: float = -LARGEST
    most: float = LARGEST
    required: bool = False


@dataclass(frozen=True, slots=True)
class ArrayField:
    """An array of an answer.  least: of its elements, whose magnitudes are at most `LARGEST`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    least: float = -LARGEST

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


NUMBERS: Mapping[str, NumberField] = {EXAMPLES: NumberField(True, 1, MAX_EXAMPLES, True)}
_OTHER = NumberField()


@dataclass(frozen=True)
class AnswerSchema:
    """Arrays and numbers of an answer.

    tensors: the required tensors, by name.
    numbers: the declared numbers; others must be finite and at most `LARGEST`.
    """

    tensors: Mapping[str, ArrayField]
    numbers: Mapping[str, NumberField] = field(default_factory=lambda: NUMBERS)

    @classmethod
    def like(
        cls, arrays: Mapping[str, Array], numbers: Mapping[str, NumberField] = NUMBERS
    ) -> AnswerSchema:
        """Return the schema of arrays as they were sent."""
        return cls({n: ArrayField(a.shape, a.dtype) for n, a in arrays.items()}, numbers)

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Refuse arrays other than the declared ones.

        Raises:
            InputError: one is missing, or there is another one.
        """
        for name in self.tensors:
            if name not in names:
                raise InputError(f"it lacks the parameter {name!r}: another architecture")
        for name in names:
            if name not in self.tensors:
                raise InputError(f"it has the parameter {name!r:.200}: another architecture")

    def check_tensors(self, arrays: Mapping[str, Array]) -> None:
        """Refuse arrays that do not fit their declarations.

        Raises:
            InputError: see `check_names`; or an element is out of range.
            ShapeError, DTypeError, NonFiniteError: an array does not fit.
        """
        self.check_names(arrays)
        for name, array in arrays.items():
            check_tensor(name, array, self.tensors[name])

    def check_numbers(self, numbers: Mapping[str, Any]) -> dict[str, int | float]:
        """Return the numbers of an answer.

        Raises:
            InputError: one is missing, of another type or out of range, or there are too many.
            NonFiniteError: one is NaN or infinite.
        """
        if len(numbers) > _MOST_NUMBERS:
            raise InputError(f"it has {len(numbers)} numbers; supported: up to {_MOST_NUMBERS}")
        for name, known in self.numbers.items():
            if known.required and name not in numbers:
                raise InputError(f"{name} is missing; this number is required")
        for name, value in numbers.items():
            _check_number(name, value, self.numbers.get(name, _OTHER))
        return dict(numbers)


def _check_number(name: str, value: Any, known: NumberField) -> None:
    if type(name) is not str or len(name) > _LONGEST_NAME:
        raise InputError(f"a number is called {name!r:.50}; expected up to {_LONGEST_NAME} letters")
    if type(value) is not int and (known.whole or type(value) is not float):
        kind = "a whole number" if known.whole else "a number"
        raise InputError(f"{name} is {value!r:.80}; expected {kind}")
    if isinstance(value, float) and not math.isfinite(value):
        raise NonFiniteError(f"{name} is {value}")
    if not known.least <= value <= known.most:
        hint = ", by max-examples" * (name == EXAMPLES and value > known.most)
        raise InputError(
            f"{name} is {value!r:.80}; expected from {known.least:g} to {known.most:g}{hint}"
        )


def check_tensor(name: str, array: Array, known: ArrayField) -> None:
    """Refuse an array that does not fit its declaration.

    Raises:
        ShapeError, DTypeError, NonFiniteError: an array does not fit.
        InputError: an element is out of range.
    """
    if array.shape != known.shape:
        raise ShapeError(
            f"parameter {name!r}: shape {list(array.shape)}; expected {list(known.shape)}: another "
            "architecture"
        )
    if array.dtype != known.dtype:
        raise DTypeError(f"parameter {name!r}: {array.dtype}; expected {known.dtype}")
    if array.dtype.kind != "f" or not array.size:
        return
    low, high = float(array.min()), float(array.max())  # NaN, if one is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NonFiniteError(f"parameter {name!r} has values that are not finite")
    if low < known.least or high > LARGEST:
        value = low if low < known.least else high
        raise InputError(
            f"parameter {name!r} has {value:g}; expected from {known.least:g} to {LARGEST:g}"
        )

"""Encodings of an update, the change that local training made to the parameters.

An update is an ordered dict of float32 arrays, name -> array.  Its message is an ordered dict of
arrays, too, so that it fits an `ArrayRecord` of Flower as well as a file of safetensors:

    dense    name -> array of the parameter's shape, for every parameter
    sparse   "indices" -> uint32[k], "values" -> [k]

    float32    unchanged
    float16    IEEE binary16, rounded to nearest, ties to even
    bfloat16   uint16, the upper half of the float32, rounded to nearest, ties to even

A sparse message holds the k = max(1, round(fraction * n)) elements of largest magnitude of all n
elements; of equal magnitudes the one that comes first is taken.  Indices count through the
parameters in order, each flattened row by row, and increase strictly.  Elements that are not sent
are 0 for the receiver.

A value that would overflow is refused: binary16 holds magnitudes below 65520, bfloat16 those below
3.396e38.  The relative error is at most 2**-11 for binary16 and 2**-8 for bfloat16; below 6.1e-5,
where binary16 has fewer digits, its error is at most 3.0e-8.

The elements that a sparse message leaves out are not lost: `Encoding.compensated` returns them as
the residual, which the sender keeps and adds to its next update.  Without this error feedback
training need not converge.

Source: Stich, Cordonnier and Jaggi, Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Array, Shapes
from engine.base.element_types import round_to_bfloats, widen_bfloats
from engine.base.errors import (
    DTypeError,
    InputError,
    NameNotFoundError,
    NonFiniteError,
    ShapeError,
    suggest_nearest,
)
from engine.base.signatures import Range, check_arguments

Vector = npt.NDArray[np.float32]
Update = dict[str, npt.NDArray[np.float32]]

INDICES, VALUES = "indices", "values"
_ON_THE_WIRE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
_INDEX = np.dtype("<u4")


@check_arguments(fraction=Range(0, 1, above=True))
@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoding of an update; both sides have the same one, because messages do not repeat it.

    values: "float32", "float16" or "bfloat16".
    fraction: the share of the elements that is sent, 0 < fraction <= 1; 1 sends the dense format.

    Raises:
        InputError: other values, or a fraction for which a sparse message is no shorter than a
            dense one.
    """

    values: str = "float32"
    fraction: float = 1.0

    def __post_init__(self) -> None:
        if self.values not in _ON_THE_WIRE:
            raise InputError(
                f"values of an update: {self.values!r}; supported: {', '.join(_ON_THE_WIRE)}"
                f"{suggest_nearest(self.values, _ON_THE_WIRE)}"
            )
        size = _ON_THE_WIRE[self.values].itemsize
        pays = size / (size + _INDEX.itemsize)
        if pays <= self.fraction < 1:
            raise InputError(
                f"fraction of an update: {self.fraction}; with {self.values} values and their "
                f"indices a sparse message is shorter than a dense one below {pays:.3f}"
            )

    @property
    def lossless(self) -> bool:
        """True if the receiver gets exactly the values of the sender."""
        return self.values == "float32" and not self.sparse

    @property
    def sparse(self) -> bool:
        """True if only a part of the elements is sent."""
        return self.fraction < 1

    def count(self, shapes: Shapes) -> int:
        """Return how many elements of parameters of these shapes are sent."""
        total = _count_total(shapes)
        return max(1, round(self.fraction * total)) if self.sparse else total

    def nbytes(self, shapes: Shapes) -> int:
        """Return the bytes of the arrays of one message, without names and other framing."""
        element = _ON_THE_WIRE[self.values].itemsize + (_INDEX.itemsize if self.sparse else 0)
        return self.count(shapes) * element

    def wire(self, shapes: Shapes) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shapes and element types of the arrays of one message, by name."""
        element = _ON_THE_WIRE[self.values]
        if not self.sparse:
            return {name: (tuple(shape), element) for name, shape in shapes.items()}
        count = self.count(shapes)
        return {INDICES: ((count,), _INDEX), VALUES: ((count,), element)}

    def encode(self, update: Mapping[str, Array]) -> dict[str, Array]:
        """Return the arrays to send for an update of float32 arrays.

        Raises:
            DTypeError: an array is not float32.
            NonFiniteError: a value is not finite, or would not be as a 16-bit number.
            InputError: there is no element at all, or more than indices can name.
        """
        shapes = {name: array.shape for name, array in update.items()}
        for name, array in update.items():
            if array.dtype != np.float32:
                raise DTypeError(f"update of {name!r} is {array.dtype}; supported: float32")
            if not np.isfinite(array).all():
                raise NonFiniteError(f"update of {name!r} has values that are not finite")
        _count_total(shapes)
        if not self.sparse:
            return {name: self._narrow(array, name) for name, array in update.items()}
        vector = flatten(update)
        indices = _find_largest(vector, self.count(shapes))
        return {
            INDICES: indices.astype(_INDEX),
            VALUES: self._narrow(vector[indices], "the largest elements"),
        }

    def decode(self, message: Mapping[str, Array], shapes: Shapes) -> Update:
        """Return the update of another device's message: float32 arrays of `shapes`, in their
        order.

        Raises:
            NameNotFoundError: an array is missing, or there is one that does not belong.
            DTypeError: an array has another element type than this encoding sends.
            ShapeError: an array has another shape or, in a sparse message, another number of
                elements.
            InputError: indices are out of range, or do not increase strictly.
            NonFiniteError: a value is not finite.
        """
        total = _count_total(shapes)
        _check_names(message, (INDICES, VALUES) if self.sparse else shapes)
        if not self.sparse:
            return {name: self._widen(message[name], name, shape) for name, shape in shapes.items()}
        count = self.count(shapes)
        indices = message[INDICES]
        _check_type(indices, INDICES, _INDEX)
        _check_shape(indices, INDICES, (count,))
        values = self._widen(message[VALUES], VALUES, (count,))
        if indices[-1] >= total or (count > 1 and not (indices[1:] > indices[:-1]).all()):
            if indices.max() >= total:
                raise InputError(f"update: index {indices.max()}; there are {total} elements")
            at = int(np.argmin(indices[1:] > indices[:-1]))
            raise InputError(
                f"update: index {indices[at + 1]} follows {indices[at]}; indices increase strictly"
            )
        vector = np.zeros(total, np.float32)
        vector[indices] = values
        return split_vector(vector, shapes)

    def compensated(
        self, update: Mapping[str, Array], residual: Vector | None
    ) -> tuple[dict[str, Array], Vector]:
        """Return the message for an update plus the last residual, and the new residual.

        Args:
            update: name -> float32 array.
            residual: float32[n], from the last call of this function, or None at first.

        Raises:
            ShapeError: the residual has another number of elements than the model.  ...: see
            `encode`.
        """
        shapes = {name: array.shape for name, array in update.items()}
        wanted = flatten(update)
        if residual is not None:
            _check_shape(residual, "the residual", wanted.shape)
            wanted += residual
        message = self.encode(split_vector(wanted, shapes))
        return message, wanted - flatten(self.decode(message, shapes))

    def _narrow(self, array: Array, name: str) -> Array:
        """Return finite float32 values as they are sent."""
        sent: Array
        wire = _ON_THE_WIRE[self.values]
        if self.values == "float32":
            return np.asarray(array, wire)
        if self.values == "float16":
            with np.errstate(over="ignore"):  # found below, and reported by name
                sent = array.astype(wire)
            too_large = np.isinf(sent)
        else:
            sent = round_to_bfloats(array).view(wire)
            too_large = np.isinf(widen_bfloats(sent))
        if too_large.any():
            raise NonFiniteError(
                f"update of {name!r} has {np.abs(array).max():g}, which {self.values} cannot hold"
            )
        return sent

    def _widen(self, array: Array, name: str, shape: tuple[int, ...]) -> Vector:
        """Return the float32 array for a sent one, checked."""
        _check_type(array, name, _ON_THE_WIRE[self.values])
        _check_shape(array, name, shape)
        is_bfloat = self.values == "bfloat16"
        values: Vector = widen_bfloats(array) if is_bfloat else array.astype(np.float32)
        if not np.isfinite(values).all():
            raise NonFiniteError(f"update of {name!r} has values that are not finite")
        return values.reshape(shape)


def flatten(update: Mapping[str, Array]) -> Vector:
    """Return all elements in order as float32[n], a copy."""
    return np.concatenate([np.ravel(array) for array in update.values()], dtype=np.float32)


def split_vector(vector: Vector, shapes: Shapes) -> Update:
    """Return the arrays of `shapes`, views of a vector that holds their elements in order."""
    parts: Update = {}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        parts[name] = vector[start:end].reshape(shape)
        start = end
    return parts


def _find_largest(vector: Vector, count: int) -> npt.NDArray[np.intp]:
    """Return the places of the `count` largest magnitudes, increasing; ties go to the first."""
    magnitudes = np.abs(vector)
    limit = np.partition(magnitudes, vector.size - count)[vector.size - count]
    above = np.flatnonzero(magnitudes > limit)
    equal = np.flatnonzero(magnitudes == limit)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _count_total(shapes: Shapes) -> int:
    total = sum(math.prod(shape) for shape in shapes.values())
    if not 0 < total <= 1 << 32:
        raise InputError(f"update of {total} elements; supported: 1 to {1 << 32}")
    return total


def _check_names(message: Mapping[str, Array], wanted: Mapping[str, Any] | tuple[str, ...]) -> None:
    for name in wanted:
        if name not in message:
            raise NameNotFoundError(f"update has no {name!r}{suggest_nearest(name, message)}")
    for name in message:
        if name not in wanted:
            raise NameNotFoundError(
                f"update has {name!r}, which is not sent{suggest_nearest(name, wanted)}"
            )


def _check_type(array: Array, name: str, wanted: np.dtype[Any]) -> None:
    if array.dtype != wanted:
        raise DTypeError(f"update of {name!r} is {array.dtype}; expected {wanted}")


def _check_shape(array: Array, name: str, wanted: tuple[int, ...]) -> None:
    if array.shape != wanted:
        raise ShapeError(f"update of {name!r} has shape {array.shape}; expected {wanted}")

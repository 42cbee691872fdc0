"""Parameters that travel: arrays by name, their differences, and both as one buffer.

    sent = parameters.get(trainer, parameters.trainable(trainer))
    ...                                     # the device trains
    learned = parameters.difference(parameters.get(trainer, sent), sent)
    parameters.apply(trainer, parameters.add(sent, learned))

Names are in the order of the inputs of the training model, as `get_contiguous_parameters` of
onnxruntime has them, so that `flatten` of the trained ones makes the same buffer.  Everything here
takes a `Trainer`, a `Module`, or either of a trimmed build.  Returned arrays are copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import (
    DTypeError,
    InputError,
    NameNotFoundError,
    NonFiniteError,
    ShapeError,
    StateError,
    join_names,
    suggest_nearest,
)

Arrays = dict[str, Array]


class StateParameter(Protocol):
    """Parameter of a checkpoint state."""

    @property
    def requires_grad(self) -> bool:
        """True if it is trained."""

    @property
    def data(self) -> Array:
        """Its value as a view."""


def trainable(source: Any) -> list[str]:
    """Return the names of the trained parameters, in the order of the training model.

    source: a `Trainer` or a `Module`.
    """
    known = _list_parameters(source)
    trained = [name for name, parameter in known.items() if parameter.requires_grad]
    order = getattr(_get_training_model(source), "parameters", None)
    return trained if order is None else [name for name in order if name in set(trained)]


def list_statistics(source: Any, places: Collection[int] | None = None) -> list[str]:
    """Return the names of the running means, variances and ranges that a training step moves.

    places: as of `engine.training.statistics.list_statistics`.

    They are parameters that are not trained by a gradient.  A model without batch normalisation, or
    with a frozen one, has none, unless it is trained with moving ranges of rounded values.

    Raises:
        MissingPackageError: the model has to be read for it, and the package onnx is missing.
        StateError: a trimmed build does not hold its training model.
    """
    from engine.training import statistics

    model = _get_training_model(source)
    if model is None:
        raise StateError(
            "a trimmed build does not say which parameters are running statistics: take their "
            "names from a trainer of the artifacts that it was built from"
        )
    return statistics.list_statistics(model.graph, _list_parameters(source), places)


def get(source: Any, names: Iterable[str]) -> Arrays:
    """Return copies of parameters by name, in this order.

    Raises:
        NameNotFoundError: there is no parameter with one of the names.
        StateError: the checkpoint is nominal, so that there are no values.
    """
    known = _list_parameters(source)
    return {name: np.array(_find(known, name).data) for name in names}


def check(source: Any, arrays: Mapping[str, Any], names: Iterable[str] | None = None) -> Arrays:
    """Return arrays that can be the values of parameters, without writing them.

    arrays: the arrays by the names of parameters.  names: the required ones; by default the trained
        ones.

    Raises:
        InputError: one is missing.
        NameNotFoundError: there is no parameter with one of the names.
        ShapeError, DTypeError: one has another shape or element type than the parameter.
        NonFiniteError: one holds NaN or an infinity.
    """
    known = _list_parameters(source)
    missing = [name for name in (trainable(source) if names is None else names)
               if name not in arrays]  # fmt: skip
    if missing:
        raise InputError(
            f"the arrays lack the parameter {join_names(missing, 1)}; they are "
            f"{join_names(arrays) or 'none'}, from another architecture"
        )
    values = {}
    for name, value in arrays.items():
        data, new = _find(known, name).data, arguments.make_array(f"parameter {name!r}", value)
        if new.shape != data.shape:
            raise ShapeError(
                f"parameter {name!r}: shape {list(data.shape)}, got {list(new.shape)}: another "
                "architecture"
            )
        if new.dtype != data.dtype:
            raise DTypeError(f"parameter {name!r}: {data.dtype}, got {new.dtype}")
        if new.dtype.kind == "f" and not np.isfinite(new).all():
            at = np.unravel_index(np.argmin(np.isfinite(new)), new.shape)
            raise NonFiniteError(
                f"parameter {name!r}: element {[int(i) for i in at]} is {new[at]}; no parameter "
                "has changed"
            )
        values[name] = new
    return values


def apply(source: Any, arrays: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
    """Set parameters from arrays by name; on an error none changes.

    Raises:
        EngineError: see `check`.
    """
    known = _list_parameters(source)
    for name, value in check(source, arrays, names).items():
        known[name].data[...] = value


def subtract(new: Mapping[str, Array], base: Mapping[str, Array]) -> Arrays:
    """Return the change from `base` to `new`, by the names of `new`.

    Raises:
        InputError: `base` lacks one of them.
        ShapeError: an array has another shape.
    """
    return {name: value - _check_same(base, name, value) for name, value in new.items()}


def add(base: Mapping[str, Array], learned: Mapping[str, Array]) -> Arrays:
    """Return `base` plus a change, by the names of `learned`, in the element types of `base`.

    Raises:
        InputError: `base` lacks one of them.
        ShapeError: an array has another shape.
    """
    return {
        name: (_check_same(base, name, value) + value).astype(base[name].dtype, copy=False)
        for name, value in learned.items()
    }


def flatten(arrays: Mapping[str, Array]) -> npt.NDArray[np.float32]:
    """Return all arrays as one of one dimension, concatenated in their order.

    For `get(trainer, trainable(trainer))` this equals `get_contiguous_parameters(True)`.

    Raises:
        DTypeError: an array is not float32.
    """
    for name, array in arrays.items():
        if array.dtype != np.float32:
            raise DTypeError(f"parameter {name!r} is {array.dtype}: a buffer holds float32")
    parts = [array.reshape(-1) for array in arrays.values()]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def unflatten(buffer: npt.ArrayLike, like: Mapping[str, Array]) -> Arrays:
    """Return the arrays of a buffer of `flatten`, with the names and shapes of others.

    Raises:
        ShapeError: the buffer has another number of elements.
        DTypeError: it is not float32.
    """
    values = arguments.make_array("buffer", buffer).reshape(-1)
    if values.dtype != np.float32:
        raise DTypeError(f"the buffer is {values.dtype}: a buffer holds float32")
    size = sum(array.size for array in like.values())
    if values.size != size:
        raise ShapeError(f"the parameters have {size} elements, the buffer {values.size}")
    arrays, at = {}, 0
    for name, array in like.items():
        arrays[name] = values[at : at + array.size].reshape(array.shape)
        at += array.size
    return arrays


def _get_training_model(source: Any) -> Any:
    """Return the training model of a `Trainer` or `Module`; None for a trimmed build."""
    return getattr(getattr(_get_module(source), "session", None), "training", None)


def _get_module(source: Any) -> Any:
    """Return the `Module` of a `Trainer`, or the module itself."""
    return getattr(source, "module", source)


def _list_parameters(source: Any) -> dict[str, StateParameter]:
    """Return all parameters by name, in the order of their names."""
    session = getattr(_get_module(source), "session", None)  # a trimmed build has none
    state = getattr(session or source, "state", None) or getattr(source, "_state", None)
    if state is None or not hasattr(state, "parameters"):
        raise DTypeError(f"expected a Trainer or a Module, got {type(source).__name__}")
    return dict(iter(state.parameters))


def _find(known: Mapping[str, StateParameter], name: str) -> StateParameter:
    if name not in known:
        raise NameNotFoundError(
            f"the model has no parameter {name!r}{suggest_nearest(name, known)}; its "
            "parameters are "
            f"{join_names(known) or 'none'}"
        )
    return known[name]


def _check_same(base: Mapping[str, Array], name: str, value: Array) -> Array:
    """Return the array of a name in `base`, which must have the same shape."""
    if name not in base:
        raise InputError(f"parameter {name!r} is not in the base{suggest_nearest(name, base)}")
    if base[name].shape != value.shape:
        raise ShapeError(
            f"parameter {name!r}: shape {list(base[name].shape)} in the base, got "
            f"{list(value.shape)}"
        )
    return base[name]

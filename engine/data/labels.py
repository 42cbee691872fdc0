"""Labels of classes: from texts and one-hot rows to numbers, and the weights of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import (
    DTypeError,
    InputError,
    NameNotFoundError,
    ShapeError,
    join_names,
    suggest_nearest,
)

ClassWeight = str | Mapping[Any, float] | Sequence[float]
SHOWN = 20  # classes of a message
COUNTED = 1 << 20  # labels at a time: `numpy.bincount` copies them to 8 bytes each


def is_text(labels: Array) -> bool:
    """Return whether labels are texts, and not numbers."""
    return labels.dtype.kind in "US"


def encode_texts(
    labels: Array, classes: Sequence[str] | None, what: str
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the number of each label's class, and the names of the classes.

    classes: the names in the order of their numbers; None for the sorted labels themselves.
    what: the name of the labels in messages.

    Raises:
        ShapeError: the labels have several axes.
        InputError: a label is empty or none of the classes, or there are fewer than two classes.
    """
    if labels.ndim != 1:
        raise ShapeError(
            f"{what}: texts of shape {list(labels.shape)}; expected one label for each sample"
        )
    texts = labels.astype(str) if labels.dtype.kind == "S" else labels
    distinct, places = np.unique(texts, return_inverse=True)
    names = [str(name) for name in distinct]
    if "" in names:
        raise InputError(f"{what}: sample {int(np.flatnonzero(texts == '')[0])} has an empty label")
    known = names if classes is None else [str(name) for name in classes]
    if len(known) < 2:
        raise InputError(f"{what}: one class, {known[0]!r}; a classifier needs two or more")
    numbers = {name: number for number, name in enumerate(known)}
    for name in names:
        if name not in numbers:
            sample = int(np.flatnonzero(texts == name)[0])
            raise InputError(
                f"{what}: sample {sample} has the label {name!r}, which is not one of the classes "
                f"{join_names(known, SHOWN)}{suggest_nearest(name, known)}"
            )
    order = np.array([numbers[name] for name in names], np.int64)
    return order[places.reshape(-1)], known


def from_one_hot(labels: Array, what: str) -> npt.NDArray[np.int64]:
    """Return the numbers of the classes of rows that hold one 1 and otherwise 0.

    labels: (samples, classes).

    Raises:
        ShapeError: a row is another one, naming its sample.
    """
    right = (np.count_nonzero(labels, axis=1) == 1) & (labels.max(axis=1, initial=0) == 1)
    if not right.all():
        sample = int(np.flatnonzero(~right)[0])
        raise ShapeError(
            f"{what}: labels of shape {list(labels.shape)}, where the model takes one class "
            f"for each sample; they would be one-hot, but sample {sample} is "
            f"{labels[sample].tolist()[:SHOWN]}. Give the numbers of the classes (argmax); "
            "several classes for a sample take BCEWithLogitsLoss"
        )
    numbers: npt.NDArray[np.int64] = labels.argmax(axis=1).astype(np.int64)
    return numbers


def count_classes(
    labels: Array, classes: int, ignore_index: int | None = None
) -> npt.NDArray[np.int64]:
    """Count the labels of each class, without those that are `ignore_index`.

    Raises:
        DTypeError: the labels are not whole numbers.
        InputError: a label is negative or no class.
    """
    if labels.dtype.kind not in "iub":
        raise DTypeError(
            f"labels of type {labels.dtype} and shape {list(labels.shape)}; to weigh classes, "
            "each must be one whole number"
        )
    flat = labels.reshape(-1)
    if ignore_index is not None:
        flat = flat[flat != ignore_index]
    if flat.size and not 0 <= flat.min() <= flat.max() < classes:
        raise InputError(
            f"labels from {flat.min()} to {flat.max()}; the model has {classes} classes"
        )
    counts = np.zeros(classes, np.int64)
    for begin in range(0, flat.size, COUNTED):
        counts += np.bincount(flat[begin : begin + COUNTED], minlength=classes)
    return counts


def class_weights(
    given: ClassWeight,
    labels: Array | None,
    classes: int,
    names: Sequence[str] | None = None,
    ignore_index: int | None = None,
) -> npt.NDArray[np.float32]:
    """Return a factor for each class.

    Args:
        given: "balanced": samples / (classes * samples of the class), as in scikit-learn; a
            list of one factor for each class; or factors by name or number, where the other
            classes have 1.
        labels: the labels of the training samples; needed for "balanced".
        classes: how many there are.
        names: the names of the classes, in the order of their numbers.
        ignore_index: the label of positions that do not count; None if all do.

    Raises:
        InputError: a factor is missing, negative or not finite, or a class has no samples.
        NameNotFoundError: there is no such class.
        DTypeError: the labels or factors are of a wrong type.
    """
    if isinstance(given, str):
        if given != "balanced":
            raise InputError(
                f"class_weight={given!r}; expected 'balanced', a list of factors, or factors by "
                "class"
            )
        if labels is None:
            raise InputError(
                "class_weight='balanced' counts labels, and the training data yield batches one "
                "after another: give a list of factors, one for each class"
            )
        counts = count_classes(arguments.make_array("labels", labels), classes, ignore_index)
        if not counts.all():
            number = int(np.flatnonzero(counts == 0)[0])
            name = repr(names[number]) if names else f"class {number}"
            raise InputError(
                f"class_weight='balanced': no training sample has the class {name}, so its weight "
                "would be infinite: give a list of factors, or leave the class out"
            )
        return np.asarray(counts.sum() / (classes * counts), np.float32)
    if isinstance(given, Mapping):
        factors = np.ones(classes, np.float64)
        for key, factor in given.items():
            factors[_find_number(key, classes, names)] = arguments.check_real(
                f"class_weight[{key!r}]", factor
            )
    else:
        factors = arguments.make_array("class_weight", given).astype(np.float64)
        if factors.shape != (classes,):
            raise InputError(
                f"class_weight has the shape {list(factors.shape)}; expected {classes} factors, "
                "one for each class"
            )
    with np.errstate(over="ignore", under="ignore"):
        made = factors.astype(np.float32)
    if not np.isfinite(made).all() or made.min() < 0 or not made.any():
        raise InputError(
            f"class_weight={factors.tolist()[:SHOWN]}; expected finite factors of at least 0 in "
            "float32, some above 0"
        )
    return made


def _find_number(key: Any, classes: int, names: Sequence[str] | None) -> int:
    """Return the number of a class, given by it or by its name."""
    if isinstance(key, str) and names is not None and key in names:
        return list(names).index(key)
    if isinstance(key, str) and key.isdecimal():  # a key of TOML
        key = int(key)
    if isinstance(key, int | np.integer) and 0 <= key < classes:
        return int(key)
    known = [str(name) for name in names] if names else [str(i) for i in range(classes)]
    raise NameNotFoundError(
        f"class_weight: no class {key!r}; there are "
        f"{join_names(known, SHOWN)}{suggest_nearest(str(key), known)}"
    )

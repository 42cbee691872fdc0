"""A model by name: an architecture built for samples and classes, given or found in data."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.base.errors import DTypeError, InputError, ShapeError
from engine.data.dataset import Dataset
from engine.data.tokens import ByteTokenizer
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.loss_types.classes import CrossEntropyLoss
from engine.models import weights as files_of_weights
from engine.models.catalog import Architecture

_MOST_CLASSES = 1 << 24


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that was made by its name.

    kind: its architecture.
    graph: the forward model.
    classes: the names of the labels 0, 1, ...; None if unknown, or it predicts values.
    loss: the loss that fits it, or its name.
    loss_inputs: the output and the target of the loss, where these are not the usual ones.
    random: the parameters that a file of weights does not have in this shape.
    """

    kind: Architecture
    graph: Graph
    classes: Sequence[str] | None
    loss: str | CrossEntropyLoss
    loss_inputs: Sequence[str]
    random: Sequence[str]

    @property
    def content(self) -> bytes:
        """The model as the content of an ONNX file."""
        return onnx_io.to_bytes(self.graph)

    @property
    def parameters(self) -> int:
        """The number of values that it learns; running statistics are none."""
        moving = ("running_mean", "running_var")
        return sum(
            value.size
            for name, value in self.graph.initializers.items()
            if value.dtype.kind == "f" and value.ndim and not name.endswith(moving)
        )

    @property
    def summary(self) -> str:
        """Its sizes in a line."""
        sample = "x".join(map(str, self.graph.inputs["x"].shape[1:]))
        scores = "x".join(map(str, self.graph.types["scores"].shape[1:]))
        return f"{self.kind.name}: {sample} to {scores}, {self.parameters:,} parameters"


def make(
    kind: Architecture,
    *,
    classes: int | Sequence[str] | None = None,
    data: Dataset | None = None,
    input_shape: Sequence[int] | None = None,
    words: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> NamedModel:
    """Build an architecture; what is not given comes from the data, and then from the architecture.

    classes: how many, or their names.
    data: samples whose last array is the target, unless the model answers with its input.
    input_shape: the shape of a sample.
    words: how many numbers of words there are.
    weights: a file, see `weights.read`.

    Raises:
        InputError: the classes, the shape or the words are not known, or do not fit the data.
        ShapeError, DTypeError: the architecture does not take such samples.
        EngineError: as `weights.take_over`.
    """
    sample = None if data is None else data[0]
    shape = _find_shape(kind, input_shape, None if sample is None else sample[0])
    if sample is not None and len(sample) > 1:
        _check_target(kind, sample[0], sample[-1])
    options = dict(kind.options)
    if kind.takes("words"):
        options["words"] = _count_words(kind, words, data)
    elif words is not None:
        raise InputError(f"words={words}: {kind.name} takes no words")
    if kind.takes("pad"):
        options["pad"] = getattr(data, "pad", None if data is not None else ByteTokenizer.pad)
    names, outputs, is_values = _find_outputs(kind, classes, data)
    if kind.answers != "input":
        options["outputs"] = outputs
    graph = kind.build(shape, seed=seed, **options)
    random = [] if weights is None else files_of_weights.take_over(graph, kind, weights)
    return NamedModel(
        kind=kind,
        graph=graph,
        classes=names,
        loss="mse" if is_values else _choose_loss(data),
        loss_inputs=("scores", "x") if kind.answers == "input" else (),
        random=random,
    )


def _choose_loss(data: Dataset | None) -> str | CrossEntropyLoss:
    """Return the loss for classes, which leaves out positions that the data mark."""
    if data is None or data.ignore_index is None:
        return "cross_entropy"
    return CrossEntropyLoss(ignore_index=data.ignore_index)


def _find_shape(
    kind: Architecture, given: Sequence[int] | None, sample: np.ndarray | None
) -> tuple[int | str, ...]:
    """Return the shape of a sample.

    Raises:
        ShapeError: the architecture does not take such samples.
        InputError: it is not known.
    """
    if given is not None:
        shape: tuple[int | str, ...] = tuple(given)
    elif sample is not None:
        shape = sample.shape
    else:
        shape = kind.shape
        if kind.needs_shape:
            raise InputError(
                f"{kind.name}: the number of {shape[0]} is not known: give data=, or input_shape= "
                "as (20,)"
            )
    is_rows = kind.takes("hidden") and kind.answers != "input"  # any shape becomes a row
    if not shape or (len(shape) != len(kind.shape) and not is_rows):
        is_grey = len(kind.shape) == 3 and len(shape) == 2
        hint = "; x[:, None] gives pictures an axis of one channel" if is_grey else ""
        raise ShapeError(
            f"{kind.name}: a sample is {list(shape)}; expected {len(kind.shape)} axes, as "
            f"{list(kind.shape)}{hint}"
        )
    if any(isinstance(size, int) and size < 1 for size in shape):
        raise ShapeError(f"{kind.name}: a sample is {list(shape)}; expected sizes of 1 or more")
    channels, last = shape[0], shape[-1]
    if len(kind.shape) == 3 and isinstance(channels, int) and channels > 4 and last in (1, 3):
        raise ShapeError(
            f"{kind.name}: a sample is {list(shape)}, with its channels last; expected them first, "
            f"as {[last, *shape[:-1]]}: Images has layout='NCHW'"
        )
    if sample is not None:
        if given is not None and sample.shape != shape:
            raise ShapeError(
                f"input_shape={list(shape)}, and a sample of the data is {list(sample.shape)}: "
                "leave one of them out"
            )
        is_words = kind.takes("words")
        if (sample.dtype.kind in "iu") != is_words:
            wanted = (
                "whole numbers, one for each word"
                if is_words
                else "numbers of floating point, such as x.astype(np.float32) / 255 of pictures"
            )
            raise DTypeError(f"{kind.name}: samples are {sample.dtype}; expected {wanted}")
    return shape


def _check_target(kind: Architecture, features: np.ndarray, target: np.ndarray) -> None:
    """Refuse targets of another form than the architecture's answers.

    Raises:
        ShapeError: they are.
    """
    pixels, is_whole = features.shape[1:], target.dtype.kind in "iub"
    wrong = {
        "sample": is_whole and target.ndim > 1,  # of one axis: one-hot
        "position": target.shape != features.shape,
        "pixel": target.shape != pixels,
        "input": False,
    }
    if not wrong[kind.answers]:
        return
    wanted = {
        "sample": "a class for each sample",
        "position": f"a tag for each of its {features.shape[0]} words",
        "pixel": f"a mask of {' x '.join(map(str, pixels))} pixels",
        "input": "none",
    }
    other = ", as unet_small learns" if target.shape == pixels and len(pixels) == 2 else ""
    raise ShapeError(
        f"{kind.name}: the target of a sample is {list(target.shape)}{other}; expected "
        f"{wanted[kind.answers]}"
    )


def _count_words(kind: Architecture, given: int | None, data: Dataset | None) -> int:
    """Return how many numbers of words there are.

    Raises:
        InputError: it is not known, or too small.
    """
    count = given
    if count is None:
        count = ByteTokenizer.size if data is None else getattr(data, "words", None)
    if count is None:
        raise InputError(
            f"{kind.name}: the data does not say how many words there are: give words=, the size "
            "of the tokenizer's vocabulary"
        )
    if count < 1:
        raise InputError(f"words={count}: expected 1 or more")
    return count


def _find_outputs(
    kind: Architecture, classes: int | Sequence[str] | None, data: Dataset | None
) -> tuple[Sequence[str] | None, int, bool]:
    """Return the names of the classes, the number of outputs, and whether these are values.

    Raises:
        InputError: they are not known, or do not fit the data.
    """
    if kind.answers == "input":
        if classes is not None:
            raise InputError(
                f"classes={classes!r}: {kind.name} reconstructs its input, and has no classes"
            )
        return None, 0, True
    if classes is None and data is None:
        raise InputError(
            f'{kind.name}: the classes are not known: give classes=, such as ["cat", "dog"] '
            "or 2, or data= with labels"
        )
    names = None if classes is None or isinstance(classes, int) else list(classes)
    count = classes if isinstance(classes, int) else None if names is None else len(names)
    if count is not None:
        if not 2 <= count <= _MOST_CLASSES:
            raise InputError(f"classes={classes!r}: expected 2 to {_MOST_CLASSES} classes")
        if names is not None and len(set(names)) < len(names):
            raise InputError(f"classes={classes!r}: a name occurs twice")
    known = None if data is None or data.classes is None else list(data.classes)
    if known is not None and count is not None and (names or known) != known:
        raise InputError(f"classes={classes!r}, and the data have {known}: leave classes out")
    if known is not None and count is not None and count != len(known):
        raise InputError(f"classes={classes}, and the data have {len(known)}: leave classes out")
    if count is not None:
        return names or known, count, False
    assert data is not None
    if known is not None:
        return known, len(known), False
    if len(data[0]) < 2:
        raise InputError(f"{kind.name}: samples have no target: give classes=, or data with labels")
    target = data[0][-1]
    if target.dtype.kind in "iub":
        return None, max(2, int(data.labels().max()) + 1), False
    return None, math.prod(target.shape), True

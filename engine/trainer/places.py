"""Data at paths, and DataFrames, for a learner: prepared and numbered as in its training.

A learner remembers what is known of its training data; data that are evaluated or predicted later
are prepared by that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import InputError
from engine.data.array_files import is_data_path
from engine.data.dataset import find_root
from engine.data.description import DataDescription
from engine.data.files import DecodedFiles
from engine.data.folders import TEST, TRAIN, VALIDATION, choose_validation, split_of
from engine.data.frames import is_frame
from engine.data.kinds import KINDS, Loose, describe, make_sentences, make_texts
from engine.data.loader import Batches, DatasetBatches
from engine.data.masks import MOST, restore_mask
from engine.data.pictures import measure
from engine.data.places import check_sample, find_kind, fit_options
from engine.data.tables import Table
from engine.system import files

if TYPE_CHECKING:
    from engine.trainer.learner import TrainingModels

Rows = list[dict[str, Any]]


def remember(learner: TrainingModels, data: Batches) -> None:
    """Let a learner remember its training data, unless they were given as a path."""
    dataset = find_root(data.dataset) if isinstance(data, DatasetBatches) else None
    if dataset is not None and dataset is learner.opened:
        return
    kind, options = (None if dataset is None else describe(dataset)) or (None, {})
    learner.data_description = DataDescription(
        kind=kind,
        options=options,
        classes=list(data.classes or ()),
        preparation=dataset.preparation if isinstance(dataset, Table) else None,
        reader=dataset if kind is None and isinstance(dataset, DecodedFiles) else None,
    )


def open_training(
    learner: TrainingModels, data: Any, validation: Any, classes: Sequence[str]
) -> tuple[Any, Any]:
    """Return training and validation data, opened where they are paths.

    classes: the classes of the model, in the order of its scores; empty: as in the data.

    Raises:
        EngineError: they cannot be read, or do not fit the model.
    """
    if is_data_path(data):
        root = Path(data)
        files.check_exists(root)
        place = Path(split_of(root, TRAIN))
        known = replace(_settle_kind(learner, place), classes=classes)
        assert known.kind is not None
        dataset = KINDS[known.kind].open(known, place, {})
        name = learner.inputs[0]
        check_sample(dataset, name, learner.session.training.interface.inputs[name])
        learner.data_description = replace(
            known,
            classes=list(dataset.classes or ()),
            options={**known.options, **KINDS[known.kind].list_decided(dataset)},
        )
        learner.opened = dataset
        if validation is None:
            validation = choose_validation(root)
        data = dataset
    if isinstance(validation, int | float) and validation == 0:
        return data, None
    if is_data_path(validation) and (is_data_path(data) or learner.data_description is not None):
        validation = open_labelled(learner, validation, (VALIDATION, TEST))
    return data, validation


def _settle_kind(learner: TrainingModels, place: Path) -> DataDescription:
    """Return the kind of the data at a path, and options that the model decides."""
    kind = find_kind(place)
    if kind == "csv":
        raise InputError(
            f"{os.fspath(place)!r} is a table, which does not say what to predict: give "
            f"Table({os.fspath(place)!r}, label=...)"
        )
    inputs = learner.session.training.interface.inputs
    feature, target = inputs[learner.inputs[0]], inputs[learner.inputs[-1]]
    given = {"labelled": len(target.shape) == 1} if kind == "text" else {}
    return DataDescription(kind=kind, options=fit_options(kind, feature, given))


def _get_description(learner: TrainingModels, place: Path) -> DataDescription:
    """Return how files at a path become samples for a learner.

    Raises:
        InputError: it was trained on data of another form.
    """
    known = learner.data_description
    if known is None:
        return _settle_kind(learner, place)
    if known.kind is None and known.reader is None:
        raise InputError(
            f"{os.fspath(place)!r}: the trainer was not trained on files, so it does not know how "
            "to turn files into samples; give the data in the form of the training data"
        )
    return known


def open_labelled(
    learner: TrainingModels, data: Any, splits: Sequence[str] = (TEST, VALIDATION)
) -> Any:
    """Return data to evaluate on, prepared and numbered as the training data.

    Raises:
        EngineError: they cannot be read, or do not fit.
    """
    known = learner.data_description
    if is_frame(data) and known is not None and known.preparation is not None:
        targets = known.preparation.targets
        return Table(data, list(targets) or None, preparation=known.preparation)
    if not is_data_path(data):
        return data
    files.check_exists(Path(data))
    place = Path(split_of(data, *splits))
    known = _get_description(learner, place)
    if known.reader is not None:
        return known.reader.like(place)
    assert known.kind is not None
    return KINDS[known.kind].open(known, place, known.learned)


def open_unlabelled(learner: TrainingModels, data: Any) -> tuple[Any, list[dict[str, Any]] | None]:
    """Return data to predict for, and the file of each sample; None where they are not files.

    Raises:
        EngineError: they cannot be read, or do not fit.
    """
    known = learner.data_description
    if is_frame(data) and known is not None and known.preparation is not None:
        return Table(data, None, preparation=known.preparation), None
    if known is not None and known.kind == "text" and _are_texts(data):
        return make_texts(known, data), [{"text": text} for text in data]
    if known is not None and known.kind == "tagged" and _are_sentences(data):
        given = [{"words": text.split() if isinstance(text, str) else text} for text in data]
        places, samples = make_sentences(known, given, known.learned)
        return samples, places
    paths = _list_paths(data) if known is not None or is_data_path(data) else []
    if not paths:
        return data, None
    for path in paths:
        files.check_exists(path)
    known = _get_description(learner, paths[0])
    if known.reader is not None:
        loose = [known.reader.like(path, labelled=False) for path in paths]
        listed = [file for each in loose for file in each.paths]
        return Loose(listed, loose[0].read), [{"file": file} for file in listed]
    assert known.kind is not None
    places, samples = KINDS[known.kind].open_unlabelled(known, paths, known.learned)
    return samples, places


def _list_paths(data: Any) -> list[Path]:
    """Return the path of data, or the paths in a list; none: the data are something else."""
    if isinstance(data, list | tuple) and all(map(is_data_path, data)):
        return [Path(path) for path in data]
    return [Path(data)] if is_data_path(data) else []


def _are_texts(data: Any) -> bool:
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(x, str) for x in data)


def _are_sentences(data: Any) -> bool:
    """Return whether data are texts, or lists of words."""
    if _are_texts(data):
        return True
    return isinstance(data, list) and all(
        isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        for words in data
    )


def make_rows(
    places: Sequence[Mapping[str, Any]],
    outputs: Array,
    classes: Sequence[str],
) -> Rows:
    """Return a row for each sample: its place, and its class with all probabilities, or its values.

    Where each word has scores of the tags, a row has the tags of a sentence and their
    probabilities.  Where each pixel has scores of the classes, it has the mask, uint8 [height,
    width] of the picture's file, and the share of the pixels that each class has.

    outputs: scores, probabilities, or logarithms of them.
    """
    if outputs.ndim == 3 and outputs.shape[1] == len(classes) and places and "begin" in places[0]:
        return _make_sentence_rows(places, outputs, classes)
    if outputs.ndim == 4 and outputs.shape[1] == len(classes) and len(classes) <= MOST:
        return [
            _make_mask_row(place, scores, classes)
            for place, scores in zip(places, outputs, strict=True)
        ]
    if not classes or outputs.shape[1:] != (len(classes),):
        return [
            {**place, "values": row.tolist()} for place, row in zip(places, outputs, strict=True)
        ]
    shares = compute_probabilities(outputs)
    return [
        {
            **place,
            "class": classes[int(row.argmax())],
            "probability": float(row.max()),
            "probabilities": dict(zip(classes, row.tolist(), strict=True)),
        }
        for place, row in zip(places, shares, strict=True)
    ]


def _make_sentence_rows(
    places: Sequence[Mapping[str, Any]], outputs: Array, classes: Sequence[str]
) -> Rows:
    """Return a row for each sentence, whose parts follow one another."""
    rows: Rows = []
    for place, scores in zip(places, outputs, strict=True):
        shares = compute_probabilities(scores.T)[: len(place["words"]) - place["begin"]]
        if not place["begin"]:
            kept = {key: value for key, value in place.items() if key != "begin"}
            rows.append({**kept, "tags": [], "probabilities": []})
        rows[-1]["tags"] += [classes[int(number)] for number in shares.argmax(1)]
        rows[-1]["probabilities"] += shares.max(1).tolist()
    return rows


def _make_mask_row(
    place: Mapping[str, Any], scores: Array, classes: Sequence[str]
) -> dict[str, Any]:
    """Return the place, the mask as large as the picture, and the share of each class in it."""
    numbers = scores.argmax(0)
    size = measure(place["file"]) if "row" not in place else numbers.shape
    mask = restore_mask(numbers, (size[0], size[1]))
    shares = np.bincount(mask.reshape(-1), minlength=len(classes)) / max(mask.size, 1)
    return {**place, "mask": mask, "shares": dict(zip(classes, shares.tolist(), strict=True))}


def compute_probabilities(scores: Array) -> Array:
    """Return softmax(scores) over the last axis, in float64; probabilities as they are."""
    if (scores >= 0).all() and np.allclose(scores.sum(-1), 1, atol=1e-3):
        return scores.astype(np.float64)
    shifted = scores.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    grown = np.exp(shifted, out=shifted)
    shares: Array = grown / grown.sum(-1, keepdims=True)
    return shares

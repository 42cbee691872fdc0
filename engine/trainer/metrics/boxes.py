"""Mean average precision of boxes, as COCO defines it.

Source: pycocotools, cocoeval.py: `computeIoU`, `evaluateImg` and `accumulate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import DTypeError, InputError, LimitError, ShapeError
from engine.base.signatures import AT_LEAST_1, SHARE, check_arguments
from engine.trainer.metric import AveragedMetric, Declaration, Tensors
from engine.trainer.metrics.ranking import LIMIT, decode_array, encode_array

__all__ = ["MeanAveragePrecision"]

Form = Literal["xyxy", "xywh", "cxcywh"]
Area = Literal["all", "small", "medium", "large"]

OVERLAPS = tuple(float(each) for each in np.linspace(0.5, 0.95, 10))
_RECALLS = np.linspace(0, 1, 101)
_AREAS = {
    "all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}  # fmt: skip


class _Matches(NamedTuple):
    """The detections of some images, and how many objects of each class they were to find.

    scores (d,), classes (d,); right (d, overlaps), left_out (d, overlaps): whether a detection
    matches an object, and whether it counts neither as right nor as wrong.
    """

    scores: Array
    classes: Array
    right: Array
    left_out: Array
    objects: Array


class MeanAveragePrecision(AveragedMetric):
    """COCO's average precision of detected boxes: the mean over classes and overlaps.

    The output has the shape (n, d, 6): for each detection, the four numbers of a box, its score,
    and its class.  The targets have the shape (n, g, 5), a box and its class for each object, or
    (n, g, 6), with a sixth number that is 1 for a crowd: it may match any number of detections, and
    need not match one.  Rows with a class below 0 are padding.

    overlaps: the smallest intersection over union of a match; the result is the mean over all.
    form: the four numbers of a box: "xyxy", "xywh" (a corner, width, height) or "cxcywh" (the
        centre, width, height).
    area: the area of the objects that count, in pixels: "all", "small" (below 32²), "medium" (up
        to 96²) or "large" (above).
    average: "macro" for the mean over the classes that occur; None for a column for each class.
    detections: how many detections count per class and image, those with the highest scores.
    decode: a function that makes the array (n, d, 6) from the outputs by name; None if the output
        is one already.
    limit: the largest number of bytes that may be kept of all detections.
    """

    declared = Declaration(
        "map", mode="max", is_share=True,
        output="boxes (n, d, 6)",
        targets="boxes (n, g, 5) or (n, g, 6)",
        empty="NaN for a class without an object, which is left out of the mean",
        variants={
            "50": {"overlaps": (0.5,)}, "75": {"overlaps": (0.75,)},
            "_small": {"area": "small"}, "_medium": {"area": "medium"},
            "_large": {"area": "large"}, "_per_class": {"average": None},
        },
        other_names="map50-95 map5095 mean_average_precision",
    )  # fmt: skip

    @check_arguments(overlaps=SHARE, detections=AT_LEAST_1)
    def __init__(
        self,
        name: str | None = None,
        output: str | None = None,
        target: str | None = None,
        overlaps: Sequence[float] = OVERLAPS,
        form: Form = "xyxy",
        area: Area = "all",
        average: Literal["macro"] | None = "macro",
        detections: int = 100,
        decode: Callable[[Mapping[str, Any]], Any] | None = None,
        limit: int | str = LIMIT,
    ) -> None:
        if not overlaps:
            raise InputError("overlaps: expected one or more")
        self.overlaps, self.form, self.area = tuple(overlaps), form, area
        self.detections, self.decode = detections, decode
        if decode is not None:
            self.takes = ("target",)
        self.limit = arguments.check_nbytes("limit", limit)
        short = "map" + ("" if area == "all" else f"_{area}")
        if len(self.overlaps) == 1:
            short = f"map{100 * self.overlaps[0]:g}" + short[3:]
        super().__init__(self.settle(average, name, short), output, target)

    def reset(self) -> None:
        self._kept: list[_Matches] = []
        self._bytes = 0

    def update(self, outputs: Tensors, inputs: Tensors, loss: float, weight: int) -> None:
        if self.decode is None:
            detected = self.tensor("output", outputs, self.output, 0)
        else:
            detected = arguments.make_array(f"metric {self.name!r}: decode", self.decode(outputs))
        objects = self.tensor("input", inputs, self.target, -1)
        if not (
            detected.ndim == objects.ndim == 3
            and detected.shape[2] == 6
            and objects.shape[2] in (5, 6)
            and len(detected) == len(objects)
        ):
            raise ShapeError(
                f"metric {self.name!r}: expected boxes (n, d, 6) and targets (n, g, 5) or "
                f"(n, g, 6), got {list(detected.shape)} and {list(objects.shape)}"
            )
        self.refuse_nan(detected)
        self._refuse_parts(detected[:, :, 5], "classes of the output")
        self._refuse_parts(objects[:, :, 4], "classes of the targets")
        for boxes, wanted in zip(detected, objects, strict=True):
            self._take(boxes[boxes[:, 5] >= 0], wanted[wanted[:, 4] >= 0])

    def _refuse_parts(self, classes: Array, what: str) -> None:
        if not np.array_equal(classes, np.floor(classes)):
            raise DTypeError(f"metric {self.name!r}: expected whole numbers as the {what}")

    def _take(self, boxes: Array, wanted: Array) -> None:
        """Match the detections of an image with its objects."""
        boxes, wanted = boxes.astype(np.float64), wanted.astype(np.float64)
        detected = np.column_stack([_convert_to_corners(boxes[:, :4], self.form), boxes[:, 4:]])
        objects = np.column_stack([_convert_to_corners(wanted[:, :4], self.form), wanted[:, 4:]])
        for label in sorted({*detected[:, 5].tolist(), *objects[:, 4].tolist()}):
            mine = detected[detected[:, 5] == label]
            mine = mine[np.argsort(-mine[:, 4], kind="stable")][: self.detections]
            self._match(mine, objects[objects[:, 4] == label], int(label))

    def _match(self, detected: Array, objects: Array, label: int) -> None:
        """Match the detections of a class in an image, from the highest score on."""
        is_crowd = objects[:, 5] == 1 if objects.shape[1] == 6 else np.zeros(len(objects), bool)
        low, high = _AREAS[self.area]
        sizes = _compute_areas(objects)
        ignored = is_crowd | (sizes < low) | (sizes > high)
        order = np.argsort(ignored, kind="stable")
        objects, is_crowd, ignored = objects[order], is_crowd[order], ignored[order]
        overlap = _compute_overlaps(detected, objects, is_crowd)
        own = _compute_areas(detected)
        outside = (own < low) | (own > high)
        shape = len(detected), len(self.overlaps)
        right, left_out = np.zeros(shape, bool), np.zeros(shape, bool)
        for column, least in enumerate(self.overlaps):
            taken = np.zeros(len(objects), bool)
            for row in range(len(detected)):
                match = _find_best(overlap[row], min(least, 1 - 1e-10), taken & ~is_crowd, ignored)
                if match < 0:
                    left_out[row, column] = outside[row]
                    continue
                taken[match] = True
                right[row, column], left_out[row, column] = True, ignored[match]
        counts = np.array([[label, int((~ignored).sum())]], np.int64)
        classes = np.full(len(detected), label, np.int32)
        self._keep(_Matches(detected[:, 4], classes, right, left_out, counts))

    def _keep(self, matches: _Matches) -> None:
        self._bytes += sum(array.nbytes for array in matches)
        if self._bytes > self.limit:
            count = sum(len(each.scores) for each in self._kept) + len(matches.scores)
            raise LimitError(
                f"metric {self.name!r} keeps all detections, and {count:,} of them take "
                f"{self._bytes:,} bytes; its limit is {self.limit:,} bytes: give "
                "MeanAveragePrecision(limit=...), or fewer detections"
            )
        self._kept.append(matches)

    def partial(self) -> list[Any]:
        return [encode_array(array) for array in self._join_matches() or ()]

    def merge(self, partials: Sequence[list[Any]]) -> None:
        self.reset()
        for part in partials:
            if part:
                self._keep(_Matches(*(decode_array(*each) for each in part)))

    def _join_matches(self) -> _Matches | None:
        if not self._kept:
            return None
        return _Matches(*(np.concatenate(each) for each in zip(*self._kept, strict=True)))

    def _compute_values(self) -> dict[int, float]:
        """Return the average precision of each class that has objects."""
        kept = self._join_matches()
        if kept is None:
            return {}
        counts: dict[int, int] = {}
        for label, count in kept.objects.tolist():
            counts[label] = counts.get(label, 0) + count
        return {
            label: float(np.mean(_compute_precisions(kept, label, count)))
            for label, count in sorted(counts.items())
            if count
        }

    def result(self) -> float:
        values = list(self._compute_values().values())
        return float(np.mean(values)) if values else math.nan

    def each(self, classes: int) -> Array:
        values = self._compute_values()
        count = max([*values, classes - 1], default=-1) + 1
        return np.array([values.get(label, math.nan) for label in range(count)])


def _convert_to_corners(boxes: Array, form: Form) -> Array:
    """Return boxes by two corners."""
    if form == "xyxy":
        return boxes
    first, size = boxes[:, :2], boxes[:, 2:]
    if form == "cxcywh":
        first = first - size / 2
    return np.concatenate([first, first + size], axis=1)


def _compute_areas(boxes: Array) -> Array:
    sizes: Array = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return sizes


def _compute_overlaps(detected: Array, objects: Array, is_crowd: Array) -> Array:
    """Return the intersections over unions; of a crowd, over the detection alone."""
    low = np.maximum(detected[:, None, :2], objects[None, :, :2])
    high = np.minimum(detected[:, None, 2:4], objects[None, :, 2:4])
    common = np.prod(np.maximum(high - low, 0), axis=2)
    own = _compute_areas(detected)[:, None]
    whole = np.where(is_crowd, own, own + _compute_areas(objects) - common)
    overlaps: Array = np.zeros_like(common)
    np.divide(common, whole, out=overlaps, where=whole > 0)
    return overlaps


def _find_best(overlaps: Array, least: float, taken: Array, ignored: Array) -> int:
    """Return the object that a detection matches, -1 for none; the last of equal ones.

    Objects that count go before those that are ignored, also where these overlap more.
    """
    for group in (~ignored, ignored):
        chosen = np.where(group & ~taken, overlaps, -1.0)
        if len(chosen) and chosen.max() >= least:
            return int(len(chosen) - 1 - np.argmax(chosen[::-1]))
    return -1


def _compute_precisions(kept: _Matches, label: int, objects: int) -> list[float]:
    """Return the average precision of a class at each overlap, over 101 recalls."""
    mine = kept.classes == label
    order = np.argsort(-kept.scores[mine], kind="stable")
    matched, left_out = kept.right[mine][order], kept.left_out[mine][order]
    values = []
    for column in range(matched.shape[1]):
        counted = ~left_out[:, column]
        right = np.cumsum(matched[:, column] & counted)
        wrong = np.cumsum(~matched[:, column] & counted)
        recall = right / objects
        precision = right / np.maximum(right + wrong, np.spacing(1))
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, _RECALLS, side="left")
        values.append(float(np.append(envelope, 0.0)[at].mean()))
    return values

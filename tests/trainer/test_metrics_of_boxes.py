"""Mean average precision of boxes against COCO's own evaluation."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.base.aliases import Array
from engine.errors import DTypeError, LimitError, NonFiniteError, ShapeError
from engine.trainer.metrics import MeanAveragePrecision, metrics_of

IMAGES, CLASSES = 24, 3
NAMES = ["map", "map50", "map75", "map_small", "map_medium", "map_large"]


def scene(seed: int, crowds: bool) -> tuple[Array, Array]:
    """Return detections and objects of some images: near one another, missed, false, none."""
    rng = np.random.default_rng(seed)
    detected = np.full((IMAGES, 40, 6), -1.0, np.float32)
    objects = np.full((IMAGES, 12, 6 if crowds else 5), -1.0, np.float32)
    for image in range(1, IMAGES):  # the first has neither
        count = int(rng.integers(0, 13))
        low = rng.random((count, 2)) * 200
        size = np.exp(rng.uniform(1, 5.2, (count, 2)))
        boxes = np.concatenate([low, low + size], 1)
        labels = rng.integers(0, CLASSES, count)
        objects[image, :count, :4], objects[image, :count, 4] = boxes, labels
        if crowds:
            objects[image, :count, 5] = rng.random(count) < 0.2
        guesses = np.sort(rng.random((3, 2, 2)) * 200, axis=1).reshape(3, 4)
        actual_joined = np.concatenate([boxes, boxes]) + rng.normal(0, 2, (2 * count, 4))
        actual_joined[:, 2:] = np.maximum(actual_joined[:, 2:], actual_joined[:, :2] + 1)
        actual_joined = np.concatenate([actual_joined, guesses])
        kinds = np.concatenate([labels, labels, rng.integers(0, CLASSES, 3)])
        rows = rng.permutation(len(actual_joined))[: max(0, len(actual_joined) - 2)]
        detected[image, : len(rows), :4] = actual_joined[rows]
        detected[image, : len(rows), 4] = rng.permutation(1000)[: len(rows)] / 1000 + image / 1e6
        detected[image, : len(rows), 5] = kinds[rows]
    return detected, objects


def coco(detected: Array, objects: Array) -> list[float]:
    """Return the first six numbers of COCO's summary: the mean, at 0.5, at 0.75, by size."""
    pytest.importorskip("pycocotools", reason="needs pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, answers = COCO(), []
    annotations: list[dict[str, Any]] = []
    for image in range(len(objects)):
        for row in objects[image][objects[image][:, 4] >= 0].astype(np.float64):
            x, y, right, bottom, label = row[:5]
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": image, "category_id": int(label),
                    "bbox": [x, y, right - x, bottom - y], "area": (right - x) * (bottom - y),
                    "iscrowd": int(row[5]) if len(row) > 5 else 0,
                }
            )  # fmt: skip
        for row in detected[image][detected[image][:, 5] >= 0].astype(np.float64):
            x, y, right, bottom, score, label = row
            answers.append(
                {
                    "image_id": image, "category_id": int(label), "score": score,
                    "bbox": [x, y, right - x, bottom - y],
                }
            )  # fmt: skip
    truth.dataset = {
        "images": [{"id": image} for image in range(len(objects))],
        "categories": [{"id": label} for label in range(CLASSES)],
        "annotations": annotations, "info": {},
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(answers), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(each) for each in evaluation.stats[:6]]


def take(metric: Any, detected: Array, objects: Array, split: Sequence[int]) -> Any:
    at = 0
    for size in split:
        part = slice(at, at + size)
        metric.update({"y": detected[part]}, {"x": detected, "t": objects[part]}, 0.0, size)
        at += size
    return metric


@pytest.mark.parametrize("crowds", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_numbers_are_cocos(seed: int, crowds: bool) -> None:
    detected, objects = scene(seed, crowds)
    expected = coco(detected, objects)
    for split in ((IMAGES,), (5, 1, 18)):
        outcomes = [take(m, detected, objects, split).result() for m in metrics_of(NAMES)]
        assert outcomes == pytest.approx(expected, abs=1e-12)
    assert 0.05 < expected[0] < 0.95


def test_ranks_give_what_one_gives() -> None:
    detected, objects = scene(4, crowds=True)
    whole = take(MeanAveragePrecision(), detected, objects, (IMAGES,)).result()
    parts = [
        take(MeanAveragePrecision(), detected[part], objects[part], (size,)).partial()
        for part, size in ((slice(0, 7), 7), (slice(7, None), IMAGES - 7))
    ]
    joined = MeanAveragePrecision()
    joined.merge([*parts, MeanAveragePrecision().partial()])
    assert joined.result() == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_forms_of_boxes(form: Any) -> None:
    detected, objects = scene(5, crowds=False)
    expected = take(MeanAveragePrecision(), detected, objects, (IMAGES,)).result()
    for boxes in (detected, objects):
        low, high = boxes[..., :2].astype(np.float64), boxes[..., 2:4].astype(np.float64)
        first = (low + high) / 2 if form == "cxcywh" else low
        second = high if form == "xyxy" else high - low
        boxes[..., :4] = np.concatenate([first, second], -1)
    metric = take(MeanAveragePrecision(form=form), detected, objects, (IMAGES,))
    assert metric.result() == pytest.approx(expected, abs=1e-3)


def test_classes_and_what_is_empty() -> None:
    box = [0, 0, 10, 10]
    detected: Array = np.array([[[*box, 0.9, 0], [*box, 0.8, 2], [*box, 0.7, -1]]], np.float32)
    objects: Array = np.array([[[*box, 0], [20, 20, 30, 30, 1]]], np.float32)
    metric = take(MeanAveragePrecision(average=None), detected, objects, (1,))
    values = metric.results(["a", "b", "c", "d"])
    assert list(values) == ["map_a", "map_b", "map_c", "map_d"]
    assert list(values.values()) == pytest.approx([1, 0, math.nan, math.nan], nan_ok=True)
    assert metric.columns(["a"]) == ["map_a"]
    assert metric.result() == 0.5
    assert math.isnan(MeanAveragePrecision().result())
    assert math.isnan(take(MeanAveragePrecision(), detected, objects * 0 - 1, (1,)).result())


def test_outputs_in_other_forms_are_decoded() -> None:
    detected, objects = scene(6, crowds=False)
    expected = take(MeanAveragePrecision(), detected, objects, (IMAGES,)).result()

    def join(outputs: Any) -> Array:
        return np.concatenate([outputs["boxes"], outputs["marks"]], -1)

    metric = MeanAveragePrecision(decode=join)
    outputs = {"boxes": detected[..., :4], "marks": detected[..., 4:]}
    metric.update(outputs, {"t": objects}, 0.0, IMAGES)
    assert metric.result() == expected


def test_what_are_no_boxes() -> None:
    detected, objects = scene(7, crowds=False)
    with pytest.raises(ShapeError, match=r"'map': expected boxes \(n, d, 6\).*\[24, 40, 5\]"):
        take(MeanAveragePrecision(), detected[..., :5], objects, (IMAGES,))
    with pytest.raises(DTypeError, match="whole numbers as the classes of the targets"):
        take(MeanAveragePrecision(), detected, objects + 0.5, (IMAGES,))
    with pytest.raises(LimitError, match=r"'map' keeps all detections.* its limit is 500 bytes"):
        take(MeanAveragePrecision(limit=500), detected, objects, (IMAGES,))
    detected[3, 1, 4] = math.nan
    with pytest.raises(NonFiniteError, match=r"'map': .* first at \[3, 1, 4\]"):
        take(MeanAveragePrecision(), detected, objects, (IMAGES,))

"""Findings of a validation that reports keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.trainer.reports.findings import MAX_CLASSES, Findings
from engine.trainer.reports.sections.classes import ClassScores
from tests.support.report_runs import Array


def findings(labels: Any, scores: Any, **more: Any) -> Findings:
    made = Findings(features="x", target="t", output="y", **more)
    given = np.zeros((len(labels), 3), np.float32)
    made.add({"x": given, "t": np.asarray(labels)}, {"y": np.asarray(scores)})
    return made


def test_labels_outside_of_the_classes_are_left_out() -> None:
    actual_findings = findings([0, -100, 1, 7], np.eye(2, dtype=np.float32)[[0, 0, 0, 0]])
    assert actual_findings.counts is not None
    assert actual_findings.counts.tolist() == [[1, 0], [1, 0]]
    assert actual_findings.total == 2
    assert [s.expected for s in actual_findings.worst] == [(1,)]


@pytest.mark.parametrize("last", [False, True])
def test_labels_of_positions_are_counted_whichever_axis_has_the_classes(last: bool) -> None:
    labels = np.array([[0, 1, 2, 2], [1, 1, 0, 2]])
    scores = np.eye(3, dtype=np.float32)[labels]  # (2, 4, 3)
    scores[0, 0] = [0, 1, 0]
    actual_findings = findings(labels, scores if last else np.moveaxis(scores, -1, 1))
    assert actual_findings.counts is not None
    assert actual_findings.counts.tolist() == [[1, 1, 0], [0, 3, 0], [0, 0, 3]]
    assert not actual_findings.worst, "a sample has many labels, so no sample is shown"


def test_the_worst_samples_are_those_of_all_batches() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((300, 5)).astype(np.float32)
    labels = rng.integers(0, 5, 300)
    whole = findings(labels, scores, limit=7)
    parts = Findings(features="x", target="t", output="y", limit=7)
    for part in np.array_split(np.arange(300), 11):
        inputs: dict[str, Array] = {"x": np.zeros((len(part), 3)), "t": labels[part]}
        parts.add(inputs, {"y": scores[part]})
    error = scores.max(1) - scores[np.arange(300), labels]
    assert [s.error for s in parts.worst] == pytest.approx(sorted(error, reverse=True)[:7])
    assert [s.error for s in parts.worst] == [s.error for s in whole.worst]
    assert np.array_equal(parts.counts, whole.counts)  # type: ignore[arg-type]  # both are arrays
    assert len(parts.best) == 7
    assert max(np.bincount([int(s.expected[0]) for s in parts.best])) == 2, "of many classes"


def test_confidence_is_a_share_for_logits_and_for_probabilities() -> None:
    logits = np.log(np.array([[0.7, 0.2, 0.1]], np.float32))
    for scores in (logits, logits + 3, np.exp(logits)):
        (sample,) = findings([0], scores).best
        assert sample.confidence == pytest.approx(0.7, abs=1e-5)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("are_shares", [False, True])
def test_one_score_for_two_classes(shape: tuple[int, ...], kind: Any, are_shares: bool) -> None:
    """Class 1 is predicted above 0 of a logit, or above one half of a probability."""
    logits = np.array([-2.0, 3.0, 0.2, -0.1])
    scores = 1 / (1 + np.exp(-logits)) if are_shares else logits
    actual_findings = findings(
        np.array([0, 1, 0, 1]).astype(kind).reshape(shape), scores.reshape(shape)
    )
    assert actual_findings.counts is not None
    assert actual_findings.counts.tolist() == [[1, 1], [1, 1]]
    assert [s.expected for s in actual_findings.worst] == [(0,), (1,)]
    shares = {s.confidence for s in actual_findings.best}
    expected = {1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-3))}
    assert sorted(map(float, filter(None, shares))) == pytest.approx(sorted(expected))


def test_values_that_begin_with_zeros_and_ones_are_values() -> None:
    actual_findings = findings(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert actual_findings.counts is not None
    actual_findings.add(
        {"x": np.zeros((2, 3)), "t": np.array([5.0, 0.0])}, {"y": np.array([4.0, 0.0])}
    )
    assert actual_findings.counts is None
    assert actual_findings.total == 2
    assert [s.error for s in actual_findings.worst] == [1.0, 0.0]
    actual_findings.add({"x": np.zeros((1, 3)), "t": np.array([1.0])}, {"y": np.array([4.0])})
    assert [s.error for s in actual_findings.worst] == [3.0, 1.0, 0.0]


def test_too_many_classes_have_no_matrix() -> None:
    actual_findings = findings([1, 2], np.zeros((2, MAX_CLASSES + 1), np.float32))
    assert actual_findings.counts is None
    assert actual_findings.total == 2


def test_a_language_model_has_no_matrix_and_no_samples() -> None:
    actual_findings = findings(
        np.zeros((2, 3), np.int64), np.zeros((2, 3, MAX_CLASSES + 1), np.float32)
    )
    assert (
        actual_findings.counts,
        actual_findings.total,
        actual_findings.worst,
        actual_findings.best,
    ) == (None, 0, [], [])


def several(count: int = 300) -> tuple[Array, Array]:
    """Return targets of three labels, and scores that find the first best and the last not."""
    rng = np.random.default_rng(3)
    targets = (rng.random((count, 3)) < (0.5, 0.2, 0.4)).astype(np.float32)
    noise = rng.standard_normal((count, 3)).astype(np.float32)
    return targets, (targets * (4, 1, 0) + noise - 0.5).astype(np.float32)


def test_several_labels_have_the_scores_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    targets, scores = several()
    actual = ClassScores.of(findings(targets, scores, threshold=0.0))
    expected = metrics.precision_recall_fscore_support(targets, scores > 0, average=None)
    for mine, its in zip(
        (actual.precision, actual.recall, actual.f1, actual.there), expected, strict=True
    ):
        np.testing.assert_allclose(mine, its)
    np.testing.assert_allclose(actual.area, metrics.roc_auc_score(targets, scores, average=None))


def test_several_labels_are_counted_batch_by_batch() -> None:
    targets, scores = several()
    whole = findings(targets, scores, threshold=0.0)
    parts = Findings(features="x", target="t", output="y", threshold=0.0)
    for part in np.array_split(np.arange(300), 11):
        parts.add({"x": np.zeros((len(part), 3)), "t": targets[part]}, {"y": scores[part]})
    both = (targets == 1) & (scores > 0)
    by_hand = np.stack([targets.sum(0), (scores > 0).sum(0), both.sum(0)], 1)
    for actual in (whole, parts):
        assert actual.labels is not None
        np.testing.assert_array_equal(actual.labels, by_hand)
        assert actual.total == 900
        assert not len(actual.pairs.rows), "labels have no residuals"
    assert whole.worst[0].error == pytest.approx(np.abs((scores > 0) - targets).mean(1).max())
    assert set(whole.worst[0].predicted) <= {0.0, 1.0}


def test_labels_of_positions_are_on_axis_1_and_other_targets_are_left_out() -> None:
    targets = np.zeros((2, 3, 4, 4), np.float32)
    targets[:, 1] = 1
    targets[0, 2] = -100
    scores = np.ones_like(targets)
    actual_findings = findings(targets, scores, threshold=0.0)
    assert actual_findings.labels is not None
    assert actual_findings.labels.tolist() == [[0, 32, 0], [32, 32, 32], [0, 16, 0]]


def test_without_a_threshold_targets_are_values() -> None:
    actual_findings = findings(*several())
    assert actual_findings.labels is None
    assert len(actual_findings.pairs.rows)

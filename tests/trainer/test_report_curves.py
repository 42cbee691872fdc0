"""Curves and tables of a classifier, against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from engine.reports import HtmlReport
from engine.trainer.metrics.ranking import AUROC
from engine.trainer.reports.curves import BINS, Calibration, ThresholdCounts
from engine.trainer.reports.findings import MAX_ODDS, Findings
from engine.trainer.reports.record import Record
from engine.trainer.reports.sections import calibration, ranking
from engine.trainer.reports.sections.calibration import compute_calibration
from engine.trainer.reports.sections.classes import ClassScores, rank_samples
from engine.trainer.reports.thinned import Thinned
from tests.support.report_runs import Run


def classified(count: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    """Labels, and logits that know them somewhat; a few classes never appear or are predicted."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes - 1, count)
    logits = rng.standard_normal((count, classes)).astype(np.float32)
    logits[np.arange(count), labels] += 1.0
    logits[:, 1] -= 9.0
    return labels, logits.round(1)  # so that scores are tied


def found(labels: Any, scores: Any, parts: int = 1) -> Findings:
    made = Findings(features="x", target="t", output="y")
    for part in np.array_split(np.arange(len(labels)), parts):
        made.add({"x": np.zeros((len(part), 3)), "t": labels[part]}, {"y": scores[part]})
    return made


@pytest.mark.parametrize("ties", [1, 3])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_rankings_are_those_of_scikit_learn(ties: int, share: float) -> None:
    rng = np.random.default_rng(0)
    is_class = rng.random(500) < share
    scores = (rng.random(500) + 0.3 * is_class).round(ties)
    made = ThresholdCounts.of(is_class, scores)
    assert made is not None
    false, true, _ = metrics.roc_curve(is_class, scores, drop_intermediate=False)
    assert np.allclose(made.compute_roc(), (false, true))
    precision, recall, _ = metrics.precision_recall_curve(is_class, scores)
    assert np.allclose(
        [each[::-1] for each in made.compute_precision_recall()], (precision[:-1], recall[:-1])
    )
    assert made.area == pytest.approx(metrics.roc_auc_score(is_class, scores))
    assert made.average_precision == pytest.approx(
        metrics.average_precision_score(is_class, scores)
    )
    assert ThresholdCounts.of(np.ones(3, bool), np.arange(3)) is None
    assert ThresholdCounts.of(np.zeros(3, bool), np.arange(3)) is None


def test_calibration_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    confidence = np.concatenate([rng.random(400), np.arange(BINS + 1) / BINS])
    is_right = rng.random(len(confidence)) < confidence**2
    made = Calibration.of(is_right, confidence)
    accuracy, mean = calibration_curve(is_right, confidence, n_bins=BINS)
    assert np.allclose(made.accuracy, accuracy)
    assert np.allclose(made.confidence, mean)
    gaps = [abs(a - c) * n for a, c, n in zip(accuracy, mean, made.counts, strict=True)]
    assert made.error == pytest.approx(sum(gaps) / len(confidence))
    assert made.counts.sum() == len(confidence)
    assert made.error > 0.1


@pytest.mark.parametrize("parts", [1, 7])
def test_scores_of_classes_are_those_of_scikit_learn(parts: int) -> None:
    labels, logits = classified(600, 5)
    findings = found(labels, logits, parts)
    scores, powers = ClassScores.of(findings), np.exp(logits)
    shares = powers / powers.sum(1, keepdims=True)
    expected = metrics.precision_recall_fscore_support(
        labels, logits.argmax(1), labels=range(5), zero_division=np.nan
    )
    assert np.allclose(scores.precision, expected[0], equal_nan=True)
    assert np.allclose(scores.recall, expected[1], equal_nan=True)
    assert np.allclose(scores.f1, expected[2], equal_nan=True)
    assert np.isnan(scores.area[4]), "no sample has the class 4"
    for label in range(4):
        is_class = labels == label
        assert scores.area[label] == pytest.approx(
            metrics.roc_auc_score(is_class, shares[:, label]), abs=1e-5
        )
        average = metrics.average_precision_score(is_class, shares[:, label])
        assert scores.average_precision[label] == pytest.approx(average, abs=1e-5)
    made = compute_calibration(findings)
    assert made is not None
    accuracy, mean = calibration_curve(labels == logits.argmax(1), shares.max(1), n_bins=BINS)
    assert np.allclose(made.accuracy, accuracy)
    assert np.allclose(made.confidence, mean, atol=1e-6)


def test_one_score_for_two_classes_ranks_like_two() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    logits = (rng.standard_normal(300) + labels).astype(np.float32)
    expected = metrics.roc_auc_score(labels, logits)
    for scores in (logits, 1 / (1 + np.exp(-logits)), np.stack([-logits, logits], 1)):
        made = rank_samples(found(labels, scores), 1)
        assert made is not None
        assert made.area == pytest.approx(expected, abs=1e-4)


def test_curves_of_many_labels_are_of_every_nth_of_them() -> None:
    classes, count = 63, 40_000
    labels, logits = classified(count, classes)
    made = found(labels, logits, parts=11)
    assert made.total == count
    assert made.odds.stride == 4
    assert made.odds.rows.size <= MAX_ODDS
    assert np.array_equal(made.odds.rows[:, 0], labels[::4])
    assert made.counts is not None
    assert made.counts.sum() == count, "the matrix is of all of them"


def test_scores_stay_apart_where_shares_are_all_one() -> None:
    """The area agrees with the metric: softmax in 32 bits would tie most of these samples."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    logits = (rng.standard_normal((400, 3)) * 40 + 60 * np.eye(3)[labels]).astype(np.float32)
    metric = AUROC()
    metric.update({"y": logits}, {"t": labels}, 0.0, 400)
    scores = ClassScores.of(found(labels, logits))
    assert scores.area.mean() == pytest.approx(metric.result(), abs=1e-9)


def test_rows_are_thinned_evenly_however_they_come() -> None:
    rng = np.random.default_rng(0)
    made = Thinned(50)
    numbers, seen = np.arange(1000.0), 0
    while seen < 1000:
        part = numbers[seen : seen + int(rng.integers(0, 40))]
        made.add(part[made.pick(len(part)), np.newaxis])
        seen += len(part)
    assert made.rows[:, 0].tolist() == list(range(0, 1000, made.stride))
    assert 25 <= len(made.rows) <= 50


def test_scores_that_are_not_finite_are_in_no_curve() -> None:
    labels, logits = classified(60, 3)
    logits[::2] = np.nan
    made = found(labels, logits)
    assert len(made.odds.rows) == 30
    assert compute_calibration(made) is not None


def test_the_page_has_tables_and_curves(tmp_path: Path) -> None:
    labels, logits = classified(300, 4)
    names = ["cat", "<b>dog</b>", "owl", "never"]
    run = Run(HtmlReport(tmp_path / "report.html"), classes=names)
    run.epoch([1.0], [({"x": np.zeros((300, 3)), "labels": labels}, {"y": logits})])
    text = run.end()
    assert "This section failed" not in text
    parts = {
        n: text.split(f'<section id="{n}">')[1].split("</section>")[0]
        for n in ("classes", "ranking", "calibration")
    }
    for content in parts.values():
        assert 'data-epoch="0"' in content
        assert "<b>dog" not in content
    area = metrics.roc_auc_score(
        labels == 2, (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[:, 2]
    )
    assert f"{100 * area:.1f} %" in parts["classes"]
    assert f'data-label="owl, {area:.3f}"' in parts["ranking"]
    assert "never" not in parts["ranking"], "no sample has this class"
    assert parts["ranking"].count('class="line"') == 6
    made = compute_calibration(run.report._last)  # type: ignore[arg-type]  # there was a validation
    assert made is not None
    assert f"error is {100 * made.error:.1f} %" in parts["calibration"]
    assert parts["calibration"].count("predictions</title>") == len(made.counts)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_labels_have_curves_and_a_calibration(threshold: float) -> None:
    rng = np.random.default_rng(0)
    targets = (rng.random((400, 3)) < (0.1, 0.4, 0.8)).astype(np.float32)
    targets[::7, 1] = -1  # positions that do not count
    logits = (rng.standard_normal((400, 3)) + 2 * targets - 1).astype(np.float32).round(1)
    shares = 1 / (1 + np.exp(-logits.astype(np.float64)))
    scores = logits if threshold == 0 else shares.astype(np.float32)
    made = Findings(features="x", target="t", output="y", threshold=threshold)
    made.classes = ["sun", "<i>rain</i>", "wind"]
    made.add({"x": np.zeros((400, 2)), "t": targets}, {"y": scores})
    record = Record(
        title="", status="finished", epochs=1, step=1, samples=1, seconds=1, monitor="loss",
        findings=made,
    )  # fmt: skip
    counts = targets >= 0
    truth, share = targets[counts], shares[counts]
    binned = compute_calibration(made)
    assert binned is not None
    accuracy, mean = calibration_curve(truth, share, n_bins=BINS)
    assert np.allclose(binned.accuracy, accuracy)
    assert np.allclose(binned.confidence, mean, atol=1e-6)
    page = ranking.render(record)
    for label, name in enumerate(["sun", "&lt;i&gt;rain&lt;/i&gt;", "wind"]):
        known = counts[:, label]
        area = metrics.roc_auc_score(targets[known, label], logits[known, label])
        average = metrics.average_precision_score(targets[known, label], logits[known, label])
        assert f'data-label="{name}, {area:.3f}"' in page
        assert f'data-label="{name}, {average:.3f}"' in page
    assert "each label" in page
    assert "share of samples that have it" in calibration.render(record)
    assert "<i>" not in page

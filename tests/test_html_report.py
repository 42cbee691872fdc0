"""report.html: looked at in a headless browser, and fed with trainings of every kind."""

from __future__ import annotations

import errno
import html
import itertools
import json
import logging
import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.data.arrays import Arrays
from engine.errors import FileError, InputError
from engine.reports import HtmlReport, JsonLog, png
from engine.reports.axes import axis
from engine.reports.charts import Line, line_chart, scatter
from engine.reports.findings import MAX_CLASSES, MAX_PAIRS, Findings
from engine.reports.page import Section
from engine.reports.record import Record
from engine.reports.sections import SECTIONS
from engine.reports.trace import MAX_POINTS, Point, Trace
from engine.runtime import files
from engine.runtime.plan import Plan
from engine.trainer.callbacks import Callback
from engine.trainer.fit import EvaluationBatch, Fit
from engine.trainer.history import History
from tests import pictures
from tests.browser import Browser, Page, browser, needs_browser

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,1,8,8] image, float[64,16] w1, float[16] b1, float[16,4] w2) => (float[N,4] scores) {
    flat = Flatten(image)
    h = MatMul(flat, w1)
    b = Add(h, b1)
    r = Relu(b)
    scores = MatMul(r, w2)
}"""
CLASSES = ("north & south", "<script>alert(1)</script>", "east", "west")
EPOCHS, BATCHES, BATCH = 6, 10, 16
WIDTHS = (320, 480, 768, 1280, 1920)
NAMES = [section.name for section in SECTIONS]

Array = np.ndarray[Any, Any]


def forward() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = parser.parse_model(MODEL)
    for name, shape in (("w1", (64, 16)), ("b1", (16,)), ("w2", (16, 4))):
        values = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    kept = [value for value in model.graph.input if value.name == "image"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def samples(count: int, seed: int = 0) -> tuple[Array, Array]:
    """Pictures whose brighter half is the class, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    images = rng.standard_normal((count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(images[:, 0], labels, strict=True):
        np.split(image, 2, axis=label // 2)[label % 2][...] += 0.6
    return images, labels


class Run:
    """A training as `Trainer.fit` would tell of it, epoch by epoch."""

    def __init__(self, report: HtmlReport, trainer: Any = None, **more: Any) -> None:
        self.report = report
        module = SimpleNamespace(plans=list[Plan])  # that has none
        self.trainer = trainer or SimpleNamespace(
            features=["x"],
            inputs=["x", "labels"],
            outputs=["y"],
            module=module,
        )
        known = {"epochs": EPOCHS, "batches": BATCHES, "batch_size": BATCH, "monitor": "val_loss"}
        self.fit = Fit(trainer=self.trainer, **known | more)  # type: ignore[arg-type]  # of any kind
        report.on_fit_begin(self.fit)

    def epoch(self, losses: Sequence[float], batches: Sequence[Any] = (), **row: float) -> None:
        """An epoch with these losses, and a validation of `batches`: inputs and outputs by name."""
        fit, report = self.fit, self.report
        fit.batch = fit.samples = 0
        fit.logs = {"lr": 1e-3}
        report.on_epoch_begin(fit)
        for loss in losses:
            before = fit.logs.get("loss", 0.0) * fit.batch
            fit.batch, fit.samples = fit.batch + 1, fit.samples + BATCH
            fit.samples_total, fit.step = fit.samples_total + BATCH, fit.step + 1
            fit.logs["loss"] = (before + loss) / fit.batch
            report.on_step_end(fit)
        if batches:
            report.on_evaluate_begin(fit)
            for n, (inputs, outputs) in enumerate(batches):
                fit.evaluation = EvaluationBatch(n, len(batches), inputs, outputs, 1.0)
                report.on_evaluate_batch_end(fit)
            fit.evaluation = None
            report.on_evaluate_end(fit)
        loss = fit.logs["loss"]
        fit.history.rows.append({"epoch": fit.epoch, "loss": loss, **row})
        report.on_epoch_end(fit)
        fit.epoch += 1

    def end(self, error: BaseException | None = None) -> str:
        """The page, after the training has ended."""
        self.fit.error = error
        self.report.on_fit_end(self.fit)
        return self.report._path.read_text("utf-8")


def train(path: Path) -> tuple[Run, Array]:
    """Train a small model of pictures for real; also returns its last confusion matrix."""
    trainer = Trainer.from_onnx(forward(), CrossEntropyLoss(), AdamW(3e-3), seed=0)
    path.parent.mkdir(parents=True)
    request = {"epochs": EPOCHS, "data": {"path": "photos <old>", "batch_size": BATCH}, "x": None}
    (path.parent / "run.json").write_text(json.dumps(request))
    report = HtmlReport(path)
    run = Run(report, trainer, classes=CLASSES, folder=path.parent)
    report._trace.seconds = report._window.seconds = 0.0  # every step is a point
    images, labels = samples(BATCHES * BATCH)
    test = samples(64, seed=1)
    counts = np.zeros((4, 4), np.int64)
    for epoch in range(EPOCHS):
        parts = zip(np.split(images, BATCHES), np.split(labels, BATCHES), strict=True)
        losses = [trainer.step(*batch) for batch in parts]
        found = []
        counts[...] = 0
        for x, y in zip(np.split(test[0], 2), np.split(test[1], 2), strict=True):
            _, outputs = trainer.evaluate_batch(x, y)
            found.append(({"image": x, "labels": y}, outputs))
            np.add.at(counts, (y, outputs["scores"].argmax(1)), 1)
        row = {"val_loss": 1.0 / (epoch + 1), "val_accuracy": np.trace(counts) / 64, "lr": 3e-3}
        run.epoch(losses, found, **row, samples_per_second=1240.0, memory=118e6, seconds=4.2)
    return run, counts


class Made:
    """A report of a real training, and what must be found in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run, self.counts = train(path)
        self.text = self.run.end()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("runs") / "digits" / "report.html")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def page(made: Made, chromium: Browser) -> Iterator[Page]:
    found = chromium.page(made.path)
    yield found
    found.close()


# --- in a browser


@needs_browser
def test_every_section_is_there_and_linked(page: Page) -> None:
    assert page.ask("[...document.querySelectorAll('main > section')].map(s => s.id)") == NAMES
    links = "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))"
    assert page.ask(links) == [f"#{name}" for name in NAMES]
    assert page.ask("document.querySelector('h1').textContent") == "Training of digits"
    assert page.ask("document.querySelector('.status b').textContent") == "finished"
    assert page.ask("document.title") == "Training of digits"


@needs_browser
def test_the_browser_has_nothing_to_complain_of(page: Page) -> None:
    """No error, no message, and no request of another file: names of classes are no HTML."""
    page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.complaints() == []
    assert page.ask("document.querySelectorAll('script').length") == 1


@needs_browser
def test_the_policy_of_the_page_forbids_all_else(page: Page) -> None:
    """What a name could smuggle in would neither run nor fetch anything."""
    page.ask(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1/x.png\">')"
    )
    page.ask("document.body.append(Object.assign(document.createElement('script'), {text: 'w=1'}))")
    assert page.ask("typeof w") == "undefined"
    assert any("Content Security Policy" in text for text in page.complaints())


@needs_browser
def test_every_curve_has_an_extent_and_its_points(page: Page) -> None:
    titles = page.ask(
        "[...document.querySelectorAll('#curves figcaption')].map(c => c.firstChild.textContent)"
    )
    assert titles == [
        "Loss", "Training loss, step by step", "val_accuracy", "Learning rate", "Samples a second",
    ]  # fmt: skip
    boxes = page.ask(
        "[...document.querySelectorAll('path.line')].map(p => [p.dataset.label, p.getBBox().width,"
        " p.getBBox().height, p.dataset.y.split(' ').length])"
    )
    found = [(label, points) for label, _, _, points in boxes]
    steps = EPOCHS * BATCHES
    assert found == [
        ("loss", EPOCHS), ("val_loss", EPOCHS), ("loss", steps), ("val_accuracy", EPOCHS),
        ("learning rate", steps), ("samples a second", steps), ("resident", steps),
    ]  # fmt: skip
    flat = {"learning rate", "resident"}
    assert all(width > 300 for label, width, _, _ in boxes if label != "resident")
    assert all(height > 20 for label, _, height, _ in boxes if label not in flat)


OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')]
      .map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([name, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1)
        found.push(`${name} leaves its chart`);
      for (const [other, b] of texts.slice(i + 1))
        if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
          found.push(`${name} lies on ${other}`);
    });
  }
  return found;
})()"""
CUT_OFF = """[...document.querySelectorAll('main *, header *')].filter(e => {
  if (e.closest('.scroll') || e.closest('svg') || !e.getClientRects().length) return false;
  const box = e.getBoundingClientRect();
  return box.right > innerWidth + 0.5 || box.left < -0.5;
}).map(e => `${e.tagName} ${e.textContent.slice(0, 40)}`)"""


def check_layout(page: Page, width: int) -> None:
    page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.ask("document.documentElement.scrollWidth") <= width
    assert page.ask(CUT_OFF) == []
    assert page.ask(OVERLAPS) == []
    page.close()


@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_or_lies_on_other_text(
    made: Made, chromium: Browser, width: int
) -> None:
    check_layout(chromium.page(made.path, width), width)


def regression(path: Path) -> None:
    """Losses of many sizes, small metrics, an error of one long word."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 20))
    t = 100 + 30 * x[:, :1]
    run = Run(HtmlReport(path, title="a-very-long-word-" * 9))
    run.report._trace.seconds = run.report._window.seconds = 0.0
    losses = list(1e3 / np.arange(1, 300) ** 1.5)
    batch = ({"x": x, "labels": t}, {"y": t + rng.standard_normal(t.shape)})
    for epoch in range(1, 4):
        run.epoch(losses, [batch], val_mse=12345.678 * epoch, val_mae=1e-4 * epoch, val_top5=0.99)
    run.end(RuntimeError("x" * 300))


def long_names(path: Path) -> None:
    """Eighteen classes with long names, samples that are no pictures, one epoch of one batch."""
    names = [f"class number {i} of a very long name" for i in range(18)]
    labels = np.arange(90) % 18
    scores = np.eye(18)[(labels + labels % 5) % 18]
    run = Run(HtmlReport(path), classes=names)
    run.epoch([1.0], [({"x": np.ones((90, 40)), "labels": labels}, {"y": scores})])
    run.end()


def many_classes(path: Path) -> None:
    """A matrix of a hundred classes, and pictures in colour."""
    rng = np.random.default_rng(0)
    labels, x = np.arange(500) % 100, rng.uniform(size=(500, 3, 8, 8))
    run = Run(HtmlReport(path))
    run.epoch([1.0], [({"x": x, "labels": labels}, {"y": rng.uniform(size=(500, 100))})])
    run.end()


def far_on(path: Path) -> None:
    """A training that goes on after a million steps, and a long one."""
    run = Run(HtmlReport(path), step=123_456_789, seconds_before=86_400.0 * 3)
    run.report._trace.seconds = run.report._window.seconds = 0.0
    run.epoch([1.0] * 60)
    run.end()


@needs_browser
@pytest.mark.parametrize("kind", [regression, long_names, many_classes, far_on])
@pytest.mark.parametrize("width", [320, 1280])
def test_pages_of_other_trainings_are_as_tidy(
    kind: Callable[[Path], None], width: int, tmp_path: Path, chromium: Browser
) -> None:
    kind(tmp_path / "report.html")
    page = chromium.page(tmp_path / "report.html", width)
    assert page.complaints() == []
    assert "This section failed" not in page.ask("document.body.textContent")
    check_layout(page, width)


CONTRAST = """(() => {
  const channels = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number)
    .map(v => c.startsWith('color(srgb') ? v : v / 255)
    .map(s => s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
  const light = c => channels(c).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const worst = {};
  const compare = (kind, ...colours) => {
    const shades = colours.map(light);
    worst[kind] = (Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05);
  };
  const card = getComputedStyle(document.querySelector('section')).backgroundColor;
  for (const kind of ['h1', 'p', 'small', 'a', '.status b', '.tick', '.legend']) {
    const style = getComputedStyle(document.querySelector(kind));
    compare(kind, kind === '.tick' ? style.fill : style.color, card);
  }
  for (const cell of document.querySelectorAll('td.right, td.wrong')) {
    for (const shade of ['q1', 'q5', 'q9']) {
      cell.classList.replace(cell.classList.item(1), shade);
      const style = getComputedStyle(cell);
      compare(cell.className, style.color, style.backgroundColor);
    }
  }
  return worst;
})()"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_in_light_and_dark(made: Made, chromium: Browser, dark: bool) -> None:
    page = chromium.page(made.path, dark=dark)
    ground = page.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 3 * 60) == dark
    contrasts = page.ask(CONTRAST)
    assert min(contrasts.values()) >= 4.5, contrasts  # WCAG 2.2, criterion 1.4.3
    page.close()


@needs_browser
def test_the_mouse_on_a_chart_shows_the_values(made: Made, page: Page) -> None:
    box = page.ask(
        "(() => { const b = document.querySelector('#curves svg').getBoundingClientRect();"
        " return [b.left + b.width * 0.99 - 12, b.top + b.height / 2]; })()"
    )
    page.move(*box)
    tip = "getComputedStyle(document.querySelector('.tip')).display"
    assert page.ask(tip) == "block"
    rows = page.ask("document.querySelector('.tip').textContent").splitlines()
    assert rows[0] == f"epoch {EPOCHS}"
    assert rows[2] == "val_loss 0.1667"
    page.move(2, 2)
    assert page.ask(tip) == "none"


@needs_browser
def test_without_scripts_all_is_there(made: Made, chromium: Browser) -> None:
    page = chromium.page(made.path, scripts=False)
    assert page.ask("document.querySelectorAll('.tip').length") == 0, "no script has run"
    assert page.ask("document.querySelectorAll('path.line').length") == 7
    assert page.ask("document.querySelectorAll('#curves .tick').length") > 30
    title = "document.querySelector('#curves circle title').textContent"
    assert page.ask(title).startswith("loss ")
    page.close()


@needs_browser
def test_the_confusion_matrix_is_that_of_the_last_validation(made: Made, page: Page) -> None:
    cells = page.ask(
        "[...document.querySelectorAll('.matrix tbody tr')].map(r => "
        "[...r.querySelectorAll('td')].map(c => Number(c.textContent)))"
    )
    assert cells == made.counts.tolist()
    heads = "[...document.querySelectorAll('.matrix tbody th')].map(h => h.textContent)"
    assert page.ask(heads) == list(CLASSES)


@needs_browser
def test_predictions_are_pictures_that_can_be_seen(made: Made, page: Page) -> None:
    sizes = page.ask(
        "[...document.querySelectorAll('#predictions img')].map(i => [i.naturalWidth, i.alt])"
    )
    wrong = 64 - int(np.trace(made.counts))
    assert len(sizes) == min(wrong, 12) + 12
    assert {size for size, _ in sizes} == {8}
    named = page.ask("document.querySelector('#predictions figcaption').textContent")
    assert "expected" in named
    assert "%" in named


@needs_browser
def test_the_arena_is_drawn(page: Page) -> None:
    boxes = page.ask(
        "[...document.querySelectorAll('.arena rect')].map(r => [r.getBBox().width, "
        "r.getBBox().height, r.textContent])"
    )
    assert len(boxes) > 5
    assert all(width > 0 and height > 0 for width, height, _ in boxes)
    assert any(re.search(r"f32 16×16, .* calls \d+ to \d+", text) for _, _, text in boxes)
    rows = page.ask("[...document.querySelectorAll('#plan tbody th')].map(t => t.textContent)")
    assert "training_model" in rows


def test_what_it_says_of_the_run(made: Made) -> None:
    environment = made.text.split('id="environment"')[1].split("</section>")[0]
    request = made.text.split('id="request"')[1].split("</section>")[0]
    assert np.__version__ in environment
    assert "native" in environment, "the set of kernels"
    assert "data.path" in request
    assert "photos &lt;old&gt;" in request
    assert "6 of 6" in made.text
    assert made.text.count("http") == made.text.count("http-equiv") + made.text.count(
        "http://www.w3.org/2000/svg"
    ), "no address, but for the name of SVG in the script"


@pytest.mark.parametrize("kind", ["confusion", "predictions"])
def test_many_classes_have_a_drawing_or_tables(kind: str, tmp_path: Path) -> None:
    for count in (60, 300):
        run = Run(HtmlReport(tmp_path / f"{count}.html"))
        scores = np.eye(count, dtype=np.float32)
        labels = (np.arange(count) + (np.arange(count) < 5)) % count
        run.epoch([1.0], [({"x": np.zeros((count, 3)), "labels": labels}, {"y": scores})])
        text = run.end()
        assert ('<svg class="matrix"' in text) == (count == 60)
        assert f"{count - 5} of {count} right" in text
        assert "Most frequent confusions" in text
        assert "Most wrong" in text


# --- trainings of every kind


def findings(labels: Any, scores: Any, **more: Any) -> Findings:
    made = Findings(features="x", target="t", output="y", **more)
    given = np.zeros((len(labels), 3), np.float32)
    made.add({"x": given, "t": np.asarray(labels)}, {"y": np.asarray(scores)})
    return made


def test_labels_outside_of_the_classes_are_left_out() -> None:
    found = findings([0, -100, 1, 7], np.eye(2, dtype=np.float32)[[0, 0, 0, 0]])
    assert found.counts is not None
    assert found.counts.tolist() == [[1, 0], [1, 0]]
    assert found.total == 2
    assert [s.expected for s in found.worst] == [(1,)]


@pytest.mark.parametrize("last", [False, True])
def test_labels_of_positions_are_counted_whichever_axis_has_the_classes(last: bool) -> None:
    labels = np.array([[0, 1, 2, 2], [1, 1, 0, 2]])
    scores = np.eye(3, dtype=np.float32)[labels]  # (2, 4, 3)
    scores[0, 0] = [0, 1, 0]
    found = findings(labels, scores if last else np.moveaxis(scores, -1, 1))
    assert found.counts is not None
    assert found.counts.tolist() == [[1, 1, 0], [0, 3, 0], [0, 0, 3]]
    assert not found.worst, "a sample has many labels, so no sample is shown"


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
    found = findings(np.array([0, 1, 0, 1]).astype(kind).reshape(shape), scores.reshape(shape))
    assert found.counts is not None
    assert found.counts.tolist() == [[1, 1], [1, 1]]
    assert [s.expected for s in found.worst] == [(0,), (1,)]
    shares = {s.confidence for s in found.best}
    expected = {1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-3))}
    assert sorted(map(float, filter(None, shares))) == pytest.approx(sorted(expected))


def test_values_that_begin_with_zeros_and_ones_are_values() -> None:
    found = findings(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert found.counts is not None
    found.add({"x": np.zeros((2, 3)), "t": np.array([5.0, 0.0])}, {"y": np.array([4.0, 0.0])})
    assert found.counts is None
    assert found.total == 2
    assert [s.error for s in found.worst] == [1.0, 0.0]
    found.add({"x": np.zeros((1, 3)), "t": np.array([1.0])}, {"y": np.array([4.0])})
    assert [s.error for s in found.worst] == [3.0, 1.0, 0.0]


def test_too_many_classes_have_no_matrix() -> None:
    found = findings([1, 2], np.zeros((2, MAX_CLASSES + 1), np.float32))
    assert found.counts is None
    assert found.total == 2


def test_a_language_model_has_no_matrix_and_no_samples() -> None:
    found = findings(np.zeros((2, 3), np.int64), np.zeros((2, 3, MAX_CLASSES + 1), np.float32))
    assert (found.counts, found.total, found.worst, found.best) == (None, 0, [], [])


def test_a_regression_has_pairs_and_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 20)).astype(np.float32)
    t = x[:, :1] * 3
    batches = [
        ({"x": a, "labels": b}, {"y": b + 0.1})
        for a, b in zip(np.split(x, 9), np.split(t, 9), strict=True)
    ]
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0, 0.5], batches, val_mse=0.01)
    text = run.end()
    found = run.report._findings
    assert found is not None
    assert MAX_PAIRS / 2 <= len(found.pairs) <= MAX_PAIRS
    assert "Predicted over expected values" in text
    assert "Largest errors" in text
    assert "… 12 more" in text
    assert 'id="confusion"' not in text


KINDS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "no names": ({"a": np.zeros((2, 3))}, {"b": np.zeros((2, 3))}),
    "texts": (
        {"x": np.array(["a sentence", "b"], object), "labels": np.array([0, 1])},
        {"y": np.eye(2, dtype=np.float32)},
    ),
    "scalars": ({"x": np.zeros(()), "labels": np.array(1.0)}, {"y": np.array(2.0)}),
    "no samples": (
        {"x": np.zeros((0, 3)), "labels": np.zeros(0, np.int64)},
        {"y": np.zeros((0, 4), np.float32)},
    ),
    "no values": ({"x": np.zeros((2, 0)), "labels": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}),
    "other shapes": (
        {"x": np.zeros((2, 3)), "labels": np.zeros((2, 5))},
        {"y": np.zeros((2, 4), np.float32)},
    ),
    "NaN": (
        {"x": np.full((2, 3, 8, 8), np.nan), "labels": np.array([0, 1])},
        {"y": np.full((2, 2), np.nan, np.float32)},
    ),
    "booleans": (
        {"x": np.zeros((2, 3), bool), "labels": np.array([True, False])},
        {"y": np.zeros((2, 2), np.float32)},
    ),
    "features of another batch": (
        {"x": np.zeros((5, 3)), "labels": np.array([0, 1])},
        {"y": np.eye(2, dtype=np.float32)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_validation_of_any_kind_is_no_error(kind: str, tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0], [KINDS[kind]])
    text = run.end()
    assert "This section failed" not in text
    assert 'id="summary"' in text
    assert kind != "texts" or "<td>a sentence</td>" in text


@pytest.mark.parametrize("losses", [[1.0], [math.nan], [1.0, math.inf, 2.0], [0.0], [1e30, 1e-30]])
def test_losses_of_any_kind_are_drawn_or_left_out(losses: list[float], tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.report._window.seconds = 0.0
    run.epoch(losses)
    text = run.end()
    assert "This section failed" not in text
    assert not re.search(r'(?:d|[xy][12]?|width|height)="[^"]*(?:nan|inf)', text)


def test_a_training_without_validation_has_the_rest(tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"), monitor="loss")
    run.epoch([2.0, 1.0])
    text = run.end()
    assert 'id="curves"' in text
    assert 'id="confusion"' not in text
    assert 'href="#confusion"' not in text


# --- how it ends, and goes on


@pytest.mark.parametrize(
    ("error", "reason", "status", "said"),
    [
        (None, None, "finished", ""),
        (None, "val_loss has not become better", "stopped", "val_loss has not become better"),
        (KeyboardInterrupt(), None, "stopped", "interrupted"),
        (ValueError("a <b>"), None, "failed", "ValueError: a &lt;b&gt;"),
    ],
)
def test_the_page_says_how_the_training_ended(
    error: BaseException | None, reason: str | None, status: str, said: str, tmp_path: Path
) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.epoch([1.0])
    assert '<b class="running">running</b>' in (tmp_path / "report.html").read_text("utf-8")
    run.fit.stop_reason = reason
    text = run.end(error)
    assert f'<b class="{status}">{status}</b>' in text
    assert said in text


def test_an_error_in_the_first_batch_is_reported(tmp_path: Path) -> None:
    text = Run(HtmlReport(tmp_path / "report.html")).end(ValueError("broken"))
    assert "ValueError: broken" in text
    assert "0 of 6" in text


def test_a_training_that_is_resumed_goes_on_with_its_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = Run(HtmlReport(path), classes=["cat", "dog"])
    run.report._trace.seconds = run.report._window.seconds = 0.0
    labels, scores = np.array([0, 1]), np.eye(2, dtype=np.float32)
    batch = ({"x": np.zeros((2, 3)), "labels": labels}, {"y": scores})
    run.epoch([3.0, 2.0], [batch])
    run.end()
    state = json.loads(json.dumps(run.report.state()))
    report = HtmlReport(path)
    report.restore(state)
    history = History(run.fit.history.rows)
    again = Run(report, resumed_from=tmp_path, history=history, step=2, epoch=1)
    again.epoch([1.0, 0.5])
    text = again.end()
    assert [p.step for p in report._trace.points][:2] == [1, 2]
    assert [p.loss for p in report._trace.points][:2] == [3.0, 2.0]
    assert "2 of 6" in text
    assert "cat" in text.split('id="confusion"')[1], "no validation since: that of before stays"
    new = HtmlReport(path)
    assert "cat" not in Run(new).end(), "a new training has nothing of an earlier one"
    assert not new._trace.points


def test_a_page_is_written_in_one_step_and_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of microseconds must not have a page each; the last page has all of them."""
    written = []
    write = files.write

    def counted(path: str, pieces: Iterable[bytes | memoryview]) -> None:
        written.append(path)
        write(path, pieces)

    monkeypatch.setattr(files, "write", counted)
    run = Run(HtmlReport(tmp_path / "report.html"), epochs=200)
    for _ in range(200):
        run.epoch([1.0])
    assert 1 <= len(written) < 50
    assert "200 of 200" in run.end()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_size_of_a_page_is_bounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = Run(HtmlReport(tmp_path / "report.html"), epochs=300)
    run.report._trace.seconds = run.report._window.seconds = 0.0
    batches = []
    for _ in range(3):
        images = rng.standard_normal((30, 3, 300, 400)).astype(np.float32)
        scores = rng.standard_normal((30, 200)).astype(np.float32)
        batches.append(({"x": images, "labels": rng.integers(0, 200, 30)}, {"y": scores}))
    run.epoch([1.0] * 5000, batches)
    assert len(run.report._trace.points) < MAX_POINTS
    assert len(json.dumps(run.report.state())) < 100_000
    assert len(run.end()) < 1_500_000


def test_a_full_disk_ends_nothing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "edgegrad")
    path = tmp_path / "report.html"
    run = Run(HtmlReport(path))
    run.epoch([1.0])
    before = path.read_text("utf-8")

    def full(_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(3):
            run.report._cost = 0.0
            run.epoch([1.0])
    assert path.read_text("utf-8") == before, "the page is the last one that could be written"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"cannot write {os.fspath(path)!r}: No space left on device; the training goes on, and "
        "what is missing is written as soon as it can be"
    )
    assert "4 of 6" in run.end()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = HtmlReport(tmp_path / "file" / "report.html")
    with pytest.raises(FileError, match=r"cannot write the report .*give a folder"):
        Run(report)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        Run(HtmlReport(tmp_path / "report.html"))


def test_a_negative_number_of_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples=-1: expected 0 or more"):
        HtmlReport(tmp_path / "report.html", samples=-1)


def test_a_section_is_added_by_a_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(record: Record) -> str:
        raise ZeroDivisionError("a <defect>")

    mine = Section("profile", "Profile", lambda record: f"<p>step {record.step}</p>")
    sections = [*SECTIONS, mine, Section("broken", "Broken", broken)]
    run = Run(HtmlReport(tmp_path / "report.html", title="a < b", sections=sections))
    run.epoch([1.0, 1.0])
    text = run.end()
    assert '<section id="profile">\n<h2>Profile</h2>\n<p>step 2</p>\n</section>' in text
    assert "This section failed: ZeroDivisionError(&#x27;a &lt;defect&gt;&#x27;)" in text
    assert "section 'broken' of the report failed" in caplog.text
    assert "<title>Training of a &lt; b</title>" in text


# --- parts


def test_a_module_tells_its_plans(made: Made) -> None:
    plans: list[Plan] = made.run.trainer.module.plans()
    assert {plan.name for plan in plans} >= {"training_model", "evaluation"}
    shown = html.unescape(made.text)
    assert all(f"{len(plan.steps)}" in shown for plan in plans)


def decode(data: bytes) -> Array:
    """The pixels of a PNG file of 8 bits whose rows are not filtered; checks every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        content = data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size) == (zlib.crc32(kind + content),)
        parts[kind] = content
        at += 12 + size
    width, height, depth, colour = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3, 6: 4}[colour])


@pytest.mark.parametrize("shape", [(8, 9, 1), (5, 4, 3), (4, 4, 4)])
def test_pictures_are_png_files(shape: tuple[int, int, int]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(decode(png.encode(picture)), picture)


def test_what_looks_like_a_picture_is_one() -> None:
    image = np.linspace(-2, 3, 3 * 8 * 10, dtype=np.float32).reshape(3, 8, 10)
    pixels = png.pixels(image)
    assert pixels is not None
    assert pixels.shape == (8, 10, 3)
    assert (pixels.min(), pixels.max()) == (0, 255)
    last = png.pixels(np.moveaxis(image, 0, -1))
    assert last is not None
    assert np.array_equal(last, pixels)
    assert png.pixels(np.zeros((5, 8, 8))) is None, "five channels"
    assert png.pixels(np.zeros((1, 2, 8))) is None, "two rows"
    assert png.pixels(np.zeros(64)) is None
    octets = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    same = png.pixels(octets)
    assert same is not None
    assert np.array_equal(same, octets)
    assert same.base is None, "the batch that it is of is not kept"
    large = png.pixels(np.zeros((1, 500, 200)))
    assert large is not None
    assert max(large.shape) <= png.MAX_SIDE


def test_what_is_left_of_an_epoch_is_no_point_of_its_own() -> None:
    trace = Trace()
    trace.add(Point(9, 0.1, 90, 1.0, 900.0, 1e-3, 0))
    trace.add(Point(10, 0.101, 10, 5.0, 900.0, 1e-3, 0), is_rest=True)
    trace.add(Point(19, 0.201, 60, 2.0, 900.0, 1e-3, 0), is_rest=True)
    assert [(p.samples, p.loss) for p in trace.points] == [(100, 1.4), (60, 2.0)]


def test_an_epoch_begins_with_no_point_of_one_step(tmp_path: Path) -> None:
    run = Run(HtmlReport(tmp_path / "report.html"))
    run.report._trace.seconds = run.report._window.seconds = 3600.0
    for _ in range(3):
        run.epoch([4.0, 1.0, 1.0])
    points = run.report._trace.points
    assert [(p.step, p.loss) for p in points] == [(1, 4.0), (3, 1.0), (6, 2.0), (9, 2.0)]


def test_a_trace_keeps_sums_when_points_are_joined() -> None:
    trace = Trace()
    for n in range(5 * MAX_POINTS + 1):
        trace.add(Point(n, n * 0.1, 8, float(n), 80.0, 1e-3, n))
    points = trace.points
    assert len(points) < MAX_POINTS
    count = sum(p.samples for p in points)
    assert count == 8 * (5 * MAX_POINTS + 1)
    mean = sum(p.loss * p.samples for p in points) / count
    assert mean == pytest.approx(5 * MAX_POINTS / 2)
    assert points[-1].step == 5 * MAX_POINTS
    assert all(p.rate == pytest.approx(80.0) for p in points)
    again = Trace()
    again.restore(json.loads(json.dumps(trace.state())))
    assert [p.step for p in again.points] == [p.step for p in points]
    assert again.seconds == trace.seconds


@pytest.mark.parametrize("first", [0.0, 1.0, 1e6, 123456789.0])
@pytest.mark.parametrize("span", [3e-4, 0.01, 0.5, 7.0, 90.0, 4000.0, 1e6])
@pytest.mark.parametrize("kind", ["count", "seconds"])
def test_names_of_ticks_have_room(first: float, span: float, kind: Any) -> None:
    """On the axis across, in letters as wide as they are where windows are narrow."""
    x = [first, first + (span if kind == "seconds" else math.ceil(span))]
    drawn = line_chart("title", "x", [Line("line", x, [1.0, 2.0])], x_kind=kind)
    ticks = re.findall(r'<text class="tick x" x="([\d.]+)"[^>]*>([^<]+)<', drawn)
    assert ticks
    ends = [(float(at) - 4 * len(name), float(at) + 4 * len(name)) for at, name in ticks]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends)), ticks


@pytest.mark.parametrize("values", [(12345.678, 12345.679), (-1e-7, 0.0), (123456.5, 123457.5)])
def test_names_at_the_side_have_room(values: tuple[float, float]) -> None:
    lines = [Line("line", [1.0, 2.0], values)]
    for drawn in (line_chart("t", "x", lines), scatter("t", "x", "y", [values])):
        names = re.findall(r'<text class="tick y" x="([\d.]+)"[^>]*>([^<]+)<', drawn)
        assert names
        assert all(float(at) >= 8 * len(name) for at, name in names)


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5),
    st.sampled_from(["number", "share", "bytes", "seconds", "count"]),
    st.booleans(),
    st.booleans(),
)
def test_axes_hold_all_values_and_name_each_tick_once(
    values: list[float], kind: Any, may_be_log: bool, is_tight: bool
) -> None:
    if kind in ("bytes", "seconds"):
        values = [float(round(abs(v))) for v in values]
    may_be_log = may_be_log and kind == "number"
    found = axis(values, 0, 100, kind=kind, may_be_log=may_be_log, is_tight=is_tight)
    assert all(-0.01 <= found.place(v) <= 100.01 for v in values)
    assert (kind not in ("count", "bytes")) + 1 <= len(found.ticks) <= 12
    places = [found.place(t) for t in found.ticks]
    assert places == sorted(places)
    if max(values) - min(values) > 1e-3 * max(map(abs, values)) > 1e-6:
        assert len({found.name(t) for t in found.ticks}) == len(found.ticks)


def test_the_pictures_of_the_page_are_there() -> None:
    """`python -m tests.pictures` makes them; docs/reports.md shows them."""
    text = (pictures.PICTURES.parent / "reports.md").read_text("utf-8")
    shown = re.findall(r"\]\(pictures/([\w-]+\.png)\)", text)
    assert sorted(shown) == sorted(path.name for path in pictures.PICTURES.glob("report*.png"))
    for name in shown:
        data = (pictures.PICTURES / name).read_bytes()
        assert struct.unpack_from(">II", data, 16) == (pictures.WIDTH, pictures.HEIGHT)
        assert len(data) < 150_000


# --- with the real loop


def fit(folder: Path, epochs: int, **more: Any) -> History:
    trainer = Trainer.from_onnx(forward(), CrossEntropyLoss(), AdamW(3e-3), seed=0)
    source = Arrays(samples(BATCHES * BATCH), classes=CLASSES)
    return trainer.fit(
        source, validation=samples(64, seed=1), epochs=epochs, batch_size=BATCH, folder=folder,
        metrics="accuracy", **more,
    )  # fmt: skip


def test_fit_leaves_reports_and_a_resumed_one_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = fit(tmp_path, 2)
    line = r"epoch \d/2  loss \S+  val_loss \S+  val_accuracy \S+ %  \S+ samples/s  \d+ MB  \S+ s"
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(line, first)
    assert re.fullmatch(line, second)
    assert History.read(tmp_path / "history.csv").rows == history.rows
    history = fit(tmp_path, 4, resume=True, progress=False)
    assert capsys.readouterr() == ("", "")
    assert History.read(tmp_path / "history.csv")["epoch"] == [0, 1, 2, 3]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    kinds = [row["kind"] for row in log if row["kind"] != "step"]
    assert kinds == [
        "fit", "epoch", "checkpoint", "epoch", "checkpoint", "end",
        "fit", "epoch", "checkpoint", "epoch", "checkpoint", "end",
    ]  # fmt: skip
    text = (tmp_path / "report.html").read_text("utf-8")
    assert [text.count(f'<section id="{name}">') for name in NAMES] == [1] * len(NAMES)
    assert "4 of 4" in text
    assert "north &amp; south" in text, "classes of the training data name those of the validation"
    points = re.search(r'data-label="val_accuracy" data-x="([\d ]+)"', text)
    assert points is not None
    assert points[1] == "1 2 3 4"
    share = f"{100 * history['val_accuracy'][-1]:.1f} %"
    assert f"of 64 right ({share})" in text
    assert "running" not in text.split("</style>")[1]


def test_fit_that_fails_leaves_a_report_that_says_so(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_epoch_end(self, fit: Fit) -> None:
            raise ZeroDivisionError("a defect of the user's")

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, 3, callbacks=[Broken()], progress=False)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert '<b class="failed">failed</b><span>ZeroDivisionError: a defect of the user' in text
    last = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()][-2:]
    assert [row["kind"] for row in last] == ["error", "end"]


class Killed(BaseException):
    """Ends a training as abruptly as an exception can: no checkpoint is written."""


class Kill(Callback):
    def on_step_end(self, fit: Fit) -> None:
        if fit.step == 2 * BATCHES - 1:
            raise Killed


def test_a_training_that_is_killed_and_resumed_repeats_no_row(tmp_path: Path) -> None:
    """The last checkpoint is some steps behind what the logs have."""
    run, log = tmp_path / "run", tmp_path / "steps.jsonl"
    more = {"checkpoint_every": 4, "progress": False}
    with pytest.raises(Killed):
        fit(run, 3, callbacks=[JsonLog(log, seconds=0), Kill()], **more)
    fit(run, 3, callbacks=[JsonLog(log, seconds=0)], resume=True, **more)
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    (resumed,) = (row["step"] for row in rows if row["kind"] == "fit" and row["resumed"])
    assert BATCHES < resumed < 2 * BATCHES - 1
    steps = [row["step"] for row in rows if row["kind"] == "step"]
    assert steps == list(range(1, 3 * BATCHES + 1))
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [0, 1, 2]
    assert History.read(run / "history.csv")["epoch"] == [0, 1, 2]
    text = (run / "report.html").read_text("utf-8")
    assert "3 of 3" in text
    points = re.search(r'data-label="samples a second" data-x="([\d ]+)"', text)
    assert points is not None
    seen = list(map(int, points[1].split()))
    assert seen == sorted(set(seen)), "no step of the curves is drawn twice"

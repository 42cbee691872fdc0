"""report.html in a headless browser: at several widths, in light and dark, without scripts."""

from __future__ import annotations

import html
import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import Trainer
from engine.artifacts import AdamW, CrossEntropyLoss
from engine.plan.plan import Plan
from engine.reports import HtmlReport
from engine.tools.dev import pictures
from engine.tools.dev.browser import Browser, Page, browser
from tests.support.needs import needs_browser
from tests.support.report_runs import (
    BATCH,
    BATCHES,
    CLASSES,
    EPOCHS,
    NAMES,
    Array,
    Run,
    forward,
    make_samples,
)

WIDTHS = (320, 480, 768, 1280, 1920)


def train(path: Path) -> tuple[Run, Array]:
    """Train a small model of pictures for real; also returns its last confusion matrix."""
    trainer = Trainer.from_onnx(forward(), CrossEntropyLoss(), AdamW(3e-3), seed=0)
    path.parent.mkdir(parents=True)
    request = {"epochs": EPOCHS, "data": {"path": "photos <old>", "batch_size": BATCH}, "x": None}
    (path.parent / "run.json").write_text(json.dumps(request))
    report = HtmlReport(path)
    run = Run(report, trainer, classes=CLASSES, folder=path.parent)
    report._trace.seconds = report._window.seconds = 0.0  # every step is a point
    images, labels = make_samples(BATCHES * BATCH)
    test = make_samples(64, seed=1)
    counts = np.zeros((4, 4), np.int64)
    for epoch in range(EPOCHS):
        parts = zip(np.split(images, BATCHES), np.split(labels, BATCHES), strict=True)
        losses = [trainer.step(*batch) for batch in parts]
        actual = []
        counts[...] = 0
        for x, y in zip(np.split(test[0], 2), np.split(test[1], 2), strict=True):
            _, outputs = trainer.evaluate_batch(x, y)
            actual.append(({"image": x, "labels": y}, outputs))
            np.add.at(counts, (y, outputs["scores"].argmax(1)), 1)
        row = {"val_loss": 1.0 / (epoch + 1), "val_accuracy": np.trace(counts) / 64, "lr": 3e-3}
        run.epoch(losses, actual, **row, samples_per_second=1240.0, memory=118e6, seconds=4.2)
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
    with browser() as actual_browser:
        yield actual_browser


@pytest.fixture
def page(made: Made, chromium: Browser) -> Iterator[Page]:
    actual_page = chromium.open_page(made.path)
    yield actual_page
    actual_page.close()


# --- in a browser


@needs_browser
def test_every_section_is_there_and_linked(page: Page) -> None:
    there = [name for name in NAMES if name != "residuals"]
    assert page.ask("[...document.querySelectorAll('main > section')].map(s => s.id)") == there
    links = "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))"
    assert page.ask(links) == [f"#{name}" for name in there]
    assert page.ask("document.querySelector('h1').textContent") == "Training of digits"
    assert page.ask("document.querySelector('.status b').textContent") == "finished"
    assert page.ask("document.title") == "Training of digits"


@needs_browser
def test_the_browser_has_nothing_to_complain_of(page: Page) -> None:
    """No error, message or request of another file: names of classes are not HTML."""
    page.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.complaints() == []
    assert page.ask("document.querySelectorAll('script').length") == 1


@needs_browser
def test_the_policy_of_the_page_forbids_all_else(page: Page) -> None:
    """Code that a name could smuggle in would neither run nor fetch anything."""
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
        "[...document.querySelectorAll('#curves path.line, #memory path.line')].map("
        "p => [p.dataset.label, p.getBBox().width,"
        " p.getBBox().height, p.dataset.y.split(' ').length])"
    )
    actual = [(label, points) for label, _, _, points in boxes]
    steps = EPOCHS * BATCHES
    assert actual == [
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
    check_layout(chromium.open_page(made.path, width), width)


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
    """Return eighteen classes with long names, samples other than pictures, one epoch of one
    batch.
    """
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
    """A training run that goes on after a million steps, and a long one."""
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
    page = chromium.open_page(tmp_path / "report.html", width)
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
    page = chromium.open_page(made.path, dark=dark)
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
    page = chromium.open_page(made.path, scripts=False)
    assert page.ask("document.querySelectorAll('.tip').length") == 0, "no script has run"
    assert page.ask("document.querySelectorAll('#curves path.line').length") == 6
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
        "[...document.querySelectorAll('.arena .boxes rect')].map(r => [r.getBBox().width, "
        "r.getBBox().height, r.textContent])"
    )
    assert len(boxes) > 5
    assert all(width > 0 and height > 0 for width, height, _ in boxes)
    assert any(re.search(r"f32\[16,16\]\n(.*\n)+steps \d+ to \d+", text) for _, _, text in boxes)
    rows = page.ask("[...document.querySelectorAll('#plan tbody th')].map(t => t.textContent)")
    assert "training_step" in rows


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
    ), "no address, except for the name of SVG in the script"


def test_a_module_tells_its_plans(made: Made) -> None:
    plans: list[Plan] = made.run.trainer.module.plans()
    assert {plan.name for plan in plans} >= {"training_step", "evaluation"}
    shown = html.unescape(made.text)
    assert all(f"{len(plan.steps)}" in shown for plan in plans)


def test_pages_show_the_pictures_that_are_made() -> None:
    """`make pictures` makes them, of what the commands of docs/gallery.md write."""
    pages = {p.name: p.read_text("utf-8") for p in pictures.PICTURES.parent.glob("*.md")}
    shown = {name: re.findall(r"\]\(pictures/([\w.-]+)\)", text) for name, text in pages.items()}
    assert len(shown["gallery.md"]) == 8
    for shot in pictures.SHOTS:
        assert any(shot.name in names for names in shown.values()), shot.name
        assert shot.file in pages["gallery.md"] or shot.file.endswith("/report.html")
        data = (pictures.PICTURES / shot.name).read_bytes()
        assert len(data) < 50_000
        if shot.name.endswith(".png"):
            assert struct.unpack_from(">II", data, 16) == (pictures.WIDTH, shot.height)

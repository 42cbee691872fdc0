"""The browser: a package in headless Chromium, and the page of examples/browser that learns."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.tools import cli
from engine.tools.dev.browser import Page, browser, serve
from tests.bindings import drills
from tests.bindings.packages import make_package
from tests.support.needs import needs_browser
from tests.support.places import PATHS, ROOT
from tests.support.shown import shows

EXAMPLE = ROOT / "examples" / "browser"


def wait_for(page: Page, script: str) -> Any:
    """Return the value of an expression once it is true."""
    end = time.monotonic() + 30
    while not (value := page.ask(script)):
        assert time.monotonic() < end, f"{script}: {page.complaints()}"
        time.sleep(0.02)
    return value


SCRIPT = """
import('./js/mnist.js').then(async ({ Model }) => {
    const read = async (name) => (await fetch(name)).arrayBuffer();
    const model = await Model.create(await read('checkpoint'));
    const steps = await read('steps');
    const found = [];
    for (let k = 0; k < 3; k++) {
        const step = steps.slice(k * SIZE, (k + 1) * SIZE);
        model.setLearningRate(new Float32Array(step, 0, 1)[0]);
        const x = new Float32Array(step.slice(4, SIZE - 32));
        const [loss] = model.trainStep([x, new BigInt64Array(step.slice(SIZE - 32))]);
        model.optimizerStep();
        model.lazyResetGrad();
        found.push(loss[0]);
    }
    const error = await Model.create(new Uint8Array(9)).catch((e) => `${e.code} ${e.message}`);
    const names = performance.getEntriesByType('resource').map((e) => new URL(e.name).pathname);
    globalThis.done = [found, error, names.filter((name) => name.endsWith('.wasm'))];
}).catch((e) => { globalThis.done = String(e); });
"""


@needs_browser
@pytest.mark.parametrize(
    ("case", "targets", "threads", "isolates", "chosen"),
    [
        ("mlp", "wasm32,wasm32-relaxed", 1, False, "relaxed"),
        ("mlp", "wasm32,wasm32-threads", 2, True, "threads"),
        ("mlp", "wasm32,wasm32-threads", 4, True, "threads"),
        ("cnn", "wasm32,wasm32-threads", 2, True, "threads"),  # its steps are worth sharing
        ("mlp", "wasm32,wasm32-threads", 2, False, ""),
    ],
)
@shows("JavaScript", "WebAssembly, browsers", "run", "Chromium")
def test_chromium_trains(
    case: str, targets: str, threads: int, isolates: bool, chosen: str, tmp_path: Path
) -> None:
    """With the best module that it may use: threads are for pages isolated from other origins."""
    package = make_package(case, "js", targets, threads)
    shutil.copytree(package, tmp_path, dirs_exist_ok=True)
    drills.write_steps(case, tmp_path / "steps")
    size = (tmp_path / "steps").stat().st_size // 10
    (tmp_path / "page.html").write_text(
        '<!doctype html><link rel="icon" href="data:,"><script type="module">'
        f"{SCRIPT.replace('SIZE', str(size))}</script>"
    )
    with serve(tmp_path, isolates=isolates) as address, browser() as running:
        page = running.open_address(f"{address}/page.html")
        losses, error, modules = wait_for(page, "globalThis.done")
    assert losses == pytest.approx(drills.Reference(case).losses[:3], rel=1e-5)
    assert error.startswith("3 ")
    assert set(modules) == {f"/js/{chosen}/mnist.wasm".replace("//", "/")}


REFUSED = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import('./js/mnist.js').then(({ Model }) => Model.create())
    .catch((error) => { globalThis.done = `${error.name} ${error.code} ${error.message}`; });
</script>"""
POLICY = "<meta http-equiv='Content-Security-Policy' content=\"script-src 'self' 'unsafe-inline'\">"


@needs_browser
@pytest.mark.parametrize(
    ("flags", "head", "said"),
    [
        (["--js-flags=--no-enable-sse4-1"], "", "5 WebAssembly lacks SIMD here, which this "),
        ([], POLICY, "4 cannot compile http://.*/js/mnist.wasm: "),
    ],
)
def test_a_page_in_which_no_module_runs_is_told_why(
    flags: list[str], head: str, said: str, tmp_path: Path
) -> None:
    """On a processor without vectors, and under a policy that allows no WebAssembly."""
    shutil.copytree(make_package("mlp", "js", "wasm32"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "page.html").write_text(head + REFUSED)
    with serve(tmp_path) as address, browser(*flags) as running:
        page = running.open_address(f"{address}/page.html")
        message = wait_for(page, "globalThis.done")
    assert re.match(f"ModelError {said}", message), message


KEEPING = """
(async () => {
    const { Model } = await import('./js/mnist.js');
    const { list, load, remove, save } = await import('./js/storage.js');
    const tell = (error) => `${error.name} ${error.code} ${error.message}`;
    const first = new Uint8Array(await (await fetch('checkpoint')).arrayBuffer());
    const found = [await load('last')];
    const model = await Model.create(first);
    await save('last', model.checkpoint(), { epoch: 3 });
    await save('other', first);
    const kept = await load('last');
    found.push(await list(), kept.data, kept.checkpoint.join() === model.checkpoint().join());
    const again = await Model.create(kept.checkpoint);
    found.push(again.parameters().join() === model.parameters().join());
    found.push(await save('last', first, () => 1).catch(tell), (await load('last')).data);
    found.push(await save('last', 'text').catch(tell), await load(1).catch(tell));
    await remove('last');
    found.push(await load('last'), await list());
    delete globalThis.indexedDB;
    Object.defineProperty(globalThis, 'indexedDB', { value: undefined });
    return [...found, await load('other').catch(tell)];
})()
"""


@needs_browser
def test_checkpoints_are_kept_in_the_page(tmp_path: Path) -> None:
    """A record that is refused leaves the one that was there."""
    shutil.copytree(make_package("mlp", "js", "wasm32"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "page.html").write_text('<!doctype html><link rel="icon" href="data:,">')
    with serve(tmp_path) as address, browser() as running:
        answers = running.open_address(f"{address}/page.html").ask(KEEPING)
    function, text, number, without = (answers.pop(i) for i in (5, 6, 6, -1))
    assert answers == [
        None,
        ["last", "other"],
        {"epoch": 3},
        True,
        True,
        {"epoch": 3},
        None,
        ["other"],
    ]
    assert function.startswith("ModelError 4 cannot keep checkpoint 'last': ")
    assert text == "ModelError 1 checkpoint 'last': expected bytes, as of model.checkpoint()"
    assert number == "ModelError 1 name: expected text, got number"
    assert without == (
        "ModelError 4 cannot read checkpoint 'other': IndexedDB is not available here"
    )


def draw(kind: str, turn: int) -> list[tuple[float, float]]:
    """Return the points of a gesture, a little different each time."""
    size, shift = 60 + 15 * turn, 8 * turn
    parts = [k / 24 for k in range(25)]
    if kind == "circle":
        points = [(math.cos(2 * math.pi * t), math.sin(2 * math.pi * t)) for t in parts]
    elif kind == "zigzag":
        points = [(2 * t - 1, 1 - 2 * abs((3 * t) % 2 - 1)) for t in parts]
    else:
        points = [(2 * t - 1, 0.1 * turn * t) for t in parts]
    return [(200 + shift + size * x, 150 - shift + size * y) for x, y in points]


def stroke(page: Page, kind: str, turn: int) -> None:
    """Draw a gesture on the page as a pointer would."""
    events = [
        f"['pointer{what}', {x}, {y}]"
        for what, points in (("down", [0]), ("move", range(1, 25)), ("up", [24]))
        for x, y in [draw(kind, turn)[k] for k in points]
    ]
    page.ask(f"""(() => {{
        const canvas = document.getElementById('paper'), box = canvas.getBoundingClientRect();
        canvas.setPointerCapture = () => {{}};
        for (const [type, x, y] of [{", ".join(events)}]) {{
            const at = {{ clientX: box.x + x, clientY: box.y + y }};
            canvas.dispatchEvent(new PointerEvent(type, at));
        }}
    }})()""")


def choose(page: Page, name: str) -> None:
    page.ask(
        "[...document.querySelectorAll('#choices button')]"
        f".find((button) => button.textContent === '{name}').click()"
    )


@needs_browser
def test_the_page_learns_three_gestures_and_keeps_them(tmp_path: Path) -> None:
    for file in ("index.html", "page.js"):
        shutil.copy(EXAMPLE / file, tmp_path)
    subprocess.run(
        [sys.executable, EXAMPLE / "make.py"], cwd=tmp_path, env={"PYTHONPATH": PATHS}, check=True
    )
    words = [
        "--target",
        "wasm32,wasm32-relaxed",
        "--bindings",
        "js",
        "--batch",
        "1,8",
        "--name",
        "gestures",
    ]
    words += ["-o", str(tmp_path / "build")]
    assert cli.main(["build", str(tmp_path / "gestures"), *words]) == 0
    with serve(tmp_path) as address, browser() as running:
        page = running.open_address(f"{address}/index.html")
        wait_for(page, "document.body?.dataset.ready")
        for kind in ("circle", "zigzag", "line"):
            choose(page, kind)
            for turn in range(3):
                stroke(page, kind, turn)
        wait_for(page, "document.getElementById('state').textContent.startsWith('9 strokes')")
        choose(page, "guess")
        for kind in ("zigzag", "circle", "line"):
            stroke(page, kind, 4)
            wait_for(page, f"document.getElementById('guess').textContent.startsWith('{kind}')")
        time.sleep(0.2)  # the record is being written
        page.ask("delete document.body.dataset.ready; location.reload()")
        wait_for(page, "document.body?.dataset.ready")
        state = "document.getElementById('state').textContent"
        assert page.ask(state) == "9 strokes, 360 steps"
        choose(page, "guess")
        stroke(page, "circle", 5)
        wait_for(page, "document.getElementById('guess').textContent.startsWith('circle')")
        assert [line for line in page.complaints() if not line.startswith("request: ")] == []

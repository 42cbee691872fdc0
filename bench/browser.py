"""Training in a headless Chromium: steps, downloads and losses beside other libraries.

    python -m bench browser mlp cnn mobilenet_head --peers FOLDER

The folder has node_modules with the packages of the peers; it is outside this repository, made by

    npm install onnxruntime-web@1.19.2 @tensorflow/tfjs@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0

edgegrad     the package of `edgegrad build --bindings js`, with the module for relaxed SIMD
-simd        the same without relaxed SIMD, as for older engines
-threads     the same with relaxed SIMD and two threads
ort          onnxruntime-web/training, with the same artifacts
-threads     the same with two threads
tfjs-...     TensorFlow.js with a backend: the same network, values and optimizer

Every library has a page of its own, on one thread unless its name says more, and takes turns with
the others.  Its download is all that the page loads, without the batch and the values of
parameters, frozen ones too: for onnxruntime-web with the models, for TensorFlow.js without code for
the network.  Losses are compared with the engine's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.measuring import compare_medians
from bench.processes import SCRIPTS
from bench.programs import Training
from bench.rows import WRONG, Bench, Cells, Option
from engine.errors import InputError
from engine.graphs.io import onnx_io
from engine.tools.benchmark.workload import select_parameters
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev.browser import PROGRAM, Page, browser, serve
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve

PAGES = SCRIPTS / "browser"
LOSSES = 5  # that are compared with the engine's
CLOSE = 1e-4  # the largest relative difference that rounding explains
THREADS = 2  # of the libraries that have several
PATIENCE = 900.0  # seconds: a step of TensorFlow.js's reference kernels can take a minute


@dataclass(frozen=True)
class Library:
    """A way to train in a page.

    module: the file of bench/scripts/browser that opens its trainer.
    setting: the number of threads, the backend or the WebAssembly that `open` of the module takes.
    packages: the folders of node_modules that it is loaded from.
    """

    module: str
    setting: int | str = 1
    packages: tuple[str, ...] = ()


_TFJS = ("@tensorflow/tfjs", "@tensorflow/tfjs-backend-wasm")
LIBRARIES = {
    "edgegrad": Library("ours.mjs", "relaxed/trainer.wasm"),
    "edgegrad-simd": Library("ours.mjs", "trainer.wasm"),
    "edgegrad-threads": Library("ours.mjs", ""),
    "ort": Library("ort.mjs", 1, ("onnxruntime-web",)),
    "ort-threads": Library("ort.mjs", THREADS, ("onnxruntime-web",)),
    "tfjs-cpu": Library("tfjs.mjs", "cpu", _TFJS),
    "tfjs-wasm": Library("tfjs.mjs", "wasm", _TFJS),
    "tfjs-webgl": Library("tfjs.mjs", "webgl", _TFJS),
}


@dataclass(frozen=True)
class Subject:
    """The files of a workload for pages.

    folder: where they are.
    losses: the engine's, of the first steps.
    values: the bytes of frozen parameters in what a library loads, by its name.
    """

    folder: Path
    losses: np.ndarray
    values: Mapping[str, int]


class Trainer:
    """A library in a page."""

    def __init__(self, name: str, page: Page, subject: Subject) -> None:
        self.name, self._page, self._subject = name, page, subject
        self.failed: str | None = None
        self.losses: list[float] = []
        self.seconds: list[float] = []  # of a step, by turn
        self._steps = 1

    def open(self) -> None:
        """Load the library, and take the first steps."""
        library = LIBRARIES[self.name]
        words = f"{json.dumps('./' + library.module)}, {json.dumps(library.setting)}"
        self._ask(f"openTrainer({words})")
        if self.failed is None:
            self.losses, _ = self._ask(f"train({LOSSES})") or ([], 0.0)

    def choose_steps(self, seconds: float) -> None:
        """Let a turn take about so many seconds, and at least one step."""
        if took := self._train():
            self._steps = max(1, round(seconds / took))

    def take_turn(self) -> None:
        """Take the steps of a turn."""
        self.seconds.append(self._train())

    def _train(self) -> float:
        """Return the seconds of a step."""
        _, took = self._ask(f"train({self._steps})") or ([], 0.0)
        return float(took) / 1e3 / self._steps

    def _ask(self, call: str) -> Any:
        """Return what a call resolves to; an error ends this library's part."""
        if self.failed is not None:
            return None
        told = self._page.ask(f"{call}.then((value) => ({{ value }}), (e) => ({{ e: `${{e}}` }}))")
        self.failed = told.get("e")
        return told.get("value")

    def count_download(self) -> int:
        """Return the bytes that the page has loaded, besides this bench's and values."""
        names = self._page.ask(
            "performance.getEntriesByType('resource').map((e) => new URL(e.name).pathname)"
        )
        folder = self._subject.folder
        bench = {p.name for p in folder.iterdir()} | {"checkpoint"}
        files = dict.fromkeys(folder / name.lstrip("/") for name in names)
        sizes = [f.stat().st_size for f in files if f.is_file() and f.name not in bench]
        return int(sum(sizes)) - self._subject.values.get(self.name, 0)

    def compare_losses(self) -> float:
        """Return the largest difference from the engine's losses, relative to them."""
        return float(np.max(np.abs(np.array(self.losses) / self._subject.losses - 1)))


def prepare(name: str, batch: int, folder: Path, peers: Path | None) -> Subject:
    """Write the files of a workload for pages."""
    work = WORKLOADS[name]
    artifacts = work.write(folder / "artifacts", batch)
    x, y = work.batch(batch)
    plain, *also = map(resolve, ("wasm32", "wasm32-relaxed", "wasm32-relaxed-threads"))
    options = Options("trainer", plain, PlanRequest([len(x)], THREADS), bindings=["js"], also=also)
    manifest = build(artifacts, folder / "build", options)
    shutil.move(folder / "build/js", folder / "ours")
    (folder / "x.bin").write_bytes(x.tobytes())
    (folder / "y.bin").write_bytes(y.tobytes())
    (folder / "batch.json").write_text(json.dumps({"x": x.shape, "y": y.shape}))
    graph = work.build()
    trained, at, rows = set(select_parameters(graph, work.trained)), 0, []
    for value, array in graph.initializers.items():
        row = {"name": value, "dims": array.shape, "at": at, "size": array.size}
        rows.append({**row, "trained": value in trained})
        at += array.size
    (folder / "weights.bin").write_bytes(
        b"".join(a.astype(np.float32).tobytes() for a in graph.initializers.values())
    )
    nodes = [
        {"op": n.op, "inputs": n.inputs, "outputs": n.outputs, "attrs": n.attrs}
        for n in graph.nodes
    ]
    (folder / "graph.json").write_text(json.dumps({"nodes": nodes, "initializers": rows}))
    shutil.copytree(PAGES, folder, dirs_exist_ok=True)
    if peers is not None:
        (folder / "peers").symlink_to(peers / "node_modules")
    training = Training(artifacts, 1)
    losses = np.array([training.step() for _ in range(LOSSES)])
    frozen = onnx_io.load(artifacts / "training_model.onnx").initializers.values()
    own = manifest["sizes"]["constants"]
    of_models = sum(a.nbytes for a in frozen)
    values = {  # the bytes of TensorFlow.js are in files of this bench
        name: of_models if name.startswith("ort") else own * (not library.packages)
        for name, library in LIBRARIES.items()
    }
    return Subject(folder, losses, values)


def choose_libraries(options: Namespace) -> list[str]:
    """Return the libraries to measure: ours first, the others where there is a folder of peers.

    Raises:
        InputError: the folder lacks a package, a name is unknown, or there is no browser.
    """
    if PROGRAM is None:
        raise InputError("bench browser needs Chromium: none is installed")
    peers: Path | None = options.peers
    names = [n for n in LIBRARIES if n in options.libraries or n == "edgegrad"]
    if unknown := [n for n in options.libraries if n not in LIBRARIES]:
        raise InputError(f"--libraries {unknown[0]}: expected some of {', '.join(LIBRARIES)}")
    if peers is None:
        return [n for n in names if not LIBRARIES[n].packages]
    for package in dict.fromkeys(p for n in names for p in LIBRARIES[n].packages):
        if not (peers / "node_modules" / package).is_dir():
            raise InputError(f"--peers {peers}: node_modules has no {package}")
    return names


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each library."""
    names = choose_libraries(options)
    flags = ("--enable-unsafe-swiftshader",)  # WebGL without a graphics card
    with tempfile.TemporaryDirectory() as folder:
        subject = prepare(name, options.batch, Path(folder), options.peers)
        with (
            serve(subject.folder, isolates=True) as address,
            browser(*flags, patience=PATIENCE) as running,
        ):
            trainers = []
            for each in names:
                page = running.open_address(f"{address}/page.html")
                trainers.append(Trainer(each, page, subject))
                trainers[-1].open()
            for trainer in trainers:
                trainer.choose_steps(options.time / options.turns)
            for turn in range(options.turns):
                for trainer in trainers[:: -1 if turn % 2 else 1]:
                    trainer.take_turn()
            yield from (make_cells(trainer, trainers[0]) for trainer in trainers)


def make_cells(trainer: Trainer, ours: Trainer) -> Cells:
    """Return the row of a library."""
    if trainer.failed is not None:
        said = trainer.failed if trainer is not ours else f"{WRONG}: {trainer.failed}"
        return (trainer.name, *[None] * 5, said)
    size, difference = trainer.count_download(), trainer.compare_losses()
    return (
        trainer.name, 1 / median(trainer.seconds), compare_medians(trainer.seconds, ours.seconds),
        size / 1e3, size / ours.count_download(), difference,
        None if difference <= CLOSE else f"{WRONG}: losses {trainer.losses}",
    )  # fmt: skip


BENCHES = (
    Bench(
        "browser",
        "training steps in Chromium, beside onnxruntime-web and TensorFlow.js",
        lambda: {name: name for name in ("mlp", "cnn", "mobilenet", "mobilenet_head")},
        ("library", "steps/s:.4g", "our speed / its:.2f", "download KB:.0f",
         "download / ours:.0f", "losses differ:.1e", "failed"),
        measure,
        usual=("mlp", "cnn", "mobilenet_head"),
        options=(
            Option("peers", None, "a folder with node_modules, of the other libraries", Path),
            Option("libraries", tuple(LIBRARIES), f"of {', '.join(LIBRARIES)}"),
            Option("batch", 0, "samples of a step; 0: the workload's number"),
            Option("time", 10.0, "seconds of all turns of a library"),
            Option("turns", 5, "turns of each library"),
        ),
        small="mlp --batch 2 --time 0.01 --turns 1",
    ),
)  # fmt: skip

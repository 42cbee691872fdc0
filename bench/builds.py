"""Builds as a user meets them: every target, every kind of build, five models.

A row builds a library with ziglang, links a program with it (tests/c/train.c), trains `STEPS` steps
on the machine or in an emulator, and compares the losses with the engine's here: for
libraries of ops with the losses of the same closed plans.  Programs for macOS, Android and iOS
cannot be run here; their linked files are examined instead.

--page replaces each row of docs/build-matrix.md as soon as its cells have been made, and keeps the
others, so that a run of hours can be made in pieces, or stopped and called again: cells and losses
of the engine that --folder has of the same sources are not made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import ROOT
from bench.rows import WRONG, Bench, Cells, Option
from bench.tables import make_markdown
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError
from engine.graphs.ir.graph import Graph
from engine.models.images import build_cnn, build_mlp
from engine.models.mobilenets import build_mobilenet_v2
from engine.models.post_norm import build_minilm
from engine.models.recurrent import build_gru
from engine.tools import cli
from engine.tools.benchmark import machine
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.dev.emulators import Emulator, find_emulator
from engine.tools.trimmed import binary, opset
from engine.tools.trimmed.build import build, build_library
from engine.tools.trimmed.link import link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.selftest import make_input
from engine.tools.trimmed.targets import TARGETS, Platform, resolve

DRIVERS = ROOT / "tests" / "c"
STEPS, RATE = 3, 1e-4
# The first loss comes before any step.  Adam steps by one size: where a gradient is rounding, it
# decides their sign, so the bound of later losses is what rounding does to the engine's own.
FIRST = 1e-5
TRIALS, TIMES = 8, 4  # of parameters one unit in the last place away; and the bound over the worst
PATIENCE = 3600  # seconds: a run beside others is stopped at times
# What a module of WebAssembly has for its page beside the API.
MODULE = ("__heap_base", "__stack_pointer", "_initialize", "free", "malloc", "memory")
KINDS = {"plain": "As it comes", "size": "`--size`", "ops": "`--ops`"}
# Modules that share memory are made for packages alone, and tried with these.
NAMES = (
    "native",
    *(n for n in TARGETS if not (resolve(n).is_bare or resolve(n).shares_memory)),
)


@dataclass(frozen=True)
class Model:
    """Model of the matrix: its maker, and the number of samples of a step."""

    graph: Callable[[], Graph]
    batch: int
    what: str


MODELS = {
    "mlp": Model(build_mlp, 8, "784-500-10, batch 8"),
    "cnn": Model(build_cnn, 4, "two convolutions, two linear layers, 28x28, batch 4"),
    "MobileNetV2": Model(
        partial(build_mobilenet_v2, (3, 96, 96)),
        2,
        "all 52 convolutions, batch norms training, 96x96, batch 2",
    ),
    "MiniLM": Model(
        partial(build_minilm, 32, 1000), 1, "6 layers of 384, 1,000 words, 32 positions, batch 1"
    ),
    "gru": Model(build_gru, 4, "bidirectional, 48 wide, 24 steps, batch 4"),
}


@dataclass
class Cell:
    """Result: bytes of the library, total seconds, the verdict."""

    size: int
    seconds: float
    verdict: str

    def __str__(self) -> str:
        is_wrong = self.verdict.startswith(WRONG)
        sizes = f"{self.size / 1024:,.0f} KiB, {self.seconds:.0f} s"
        return self.verdict if is_wrong else f"{sizes}, {self.verdict}"


def compute_engine_losses(folder: Path, batch: int, *, closed: bool, trial: int = 0) -> list[float]:
    """Return the losses of the engine on this machine, of the data that tests/c/train.c makes
    up.

    trial: over 0, every parameter begins one unit in the last place away, up or down by this seed.
    """
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    signs = np.random.default_rng(trial)
    for _, parameter in state.parameters if trial else ():
        values = np.array(parameter.data)
        if np.issubdtype(values.dtype, np.floating):
            to = np.where(signs.integers(0, 2, values.shape), np.inf, -np.inf)
            parameter.data = np.nextafter(values, to.astype(values.dtype))
    module = Module(folder / "training_model.onnx", state, threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    for model in (module.session.training, optimizer.model):
        model.closed = closed
    optimizer.set_learning_rate(RATE)
    graph, seed, losses = module.session.training.graph, 1, []
    for _ in range(STEPS):
        inputs = []
        for name in module.session.training.inputs:
            kind = graph.inputs[name]
            shape = tuple(batch if isinstance(d, str) else d for d in kind.shape)
            made, seed = make_input(kind.dtype, shape, seed)
            inputs.append(made)
        losses.append(float(np.float32(np.asarray(module(*inputs)).reshape(-1)[0])))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


@dataclass(frozen=True)
class Expected:
    """The losses of the engine, and how far from them others may be at any step after the first."""

    losses: Sequence[float]
    later: float


def expect(folder: Path, batch: int, *, closed: bool) -> Expected:
    """Return the losses of the engine, and `TIMES` the most by which they differ where parameters
    begin one unit in the last place away; at least FIRST.
    """
    trials = [
        compute_engine_losses(folder, batch, closed=closed, trial=trial)
        for trial in range(1 + TRIALS)
    ]
    spread = np.max(np.abs(np.subtract(trials[1:], trials[0]) / trials[0]))
    return Expected(trials[0], max(FIRST, TIMES * float(spread)))


def judge(losses: Sequence[float], expected: Sequence[float], *, later: float) -> str:
    """`equal` to the last bit, or the largest relative difference; over FIRST before any step of
    the optimizer, and over `later` after one, it is WRONG.
    """
    if list(losses) == list(expected):
        return "equal"
    if len(losses) != len(expected):
        return f"{WRONG}: {len(losses)} losses"
    differences = np.abs(np.subtract(losses, expected) / expected)
    is_right = differences[0] <= FIRST and bool(np.all(differences <= later))  # not where NaN is
    return f"{'' if is_right else f'{WRONG}: '}{np.max(differences):.0e}"


class Matrix:
    """Maker of cells, which keeps each, and the losses it is compared with, as soon as it is made.

    folder: the folder of the original sources, within the given one.
    chosen: the models, whose ops the libraries of `--ops` are made for.
    """

    def __init__(self, folder: Path, chosen: Sequence[str]) -> None:
        self.folder = folder / _digest(chosen)
        self.artifacts = {name: self.folder / "artifacts" / name for name in chosen}
        self.config = self.folder / "required_operators.config"
        self.file = self.folder / "cells.json"
        self.losses = self.folder / "losses.json"
        self.cells = {key: Cell(**row) for key, row in _read_kept(self.file).items()}
        self.expected = {key: Expected(**row) for key, row in _read_kept(self.losses).items()}
        if not self.config.exists():
            for name, path in self.artifacts.items():
                path.mkdir(parents=True, exist_ok=True)
                write_artifacts(MODELS[name].graph(), path)
            cli.main(["ops", *map(str, self.artifacts.values()), "-o", str(self.config)])

    def run(self, target: str, kind: str, name: str) -> Cell:
        """Make a cell, unless it is there already, and return it."""
        if existing := self.cells.get(make_key(target, name, kind)):
            return existing
        platform, begin = resolve(target), time.perf_counter()
        out = self.folder / "ops" / target if kind == "ops" else self.folder / "build"
        try:
            said = self._fill_cell(platform, name, kind, out)
        except (EngineError, RuntimeError, subprocess.TimeoutExpired) as error:
            said = f"{WRONG}: {str(error).splitlines()[0]}"
        made = out / platform.file_name("static" if platform.sdk else "shared", "mnist")
        size = made.stat().st_size if made.exists() else 0
        cell = Cell(size, time.perf_counter() - begin, said)
        self.cells[make_key(target, name, kind)] = cell
        _keep(self.cells, self.file)
        return cell

    def find_expected(self, name: str, *, closed: bool) -> Expected:
        """Return the losses of the engine, which are computed once."""
        key = f"{name}{', closed' if closed else ''}"
        if key not in self.expected:
            made = expect(self.artifacts[name], MODELS[name].batch, closed=closed)
            self.expected[key] = made
            _keep(self.expected, self.losses)
        return self.expected[key]

    def _make_options(self, platform: Platform, batches: Sequence[int], kind: str) -> Options:
        return Options(
            "mnist",
            platform,
            PlanRequest(batches, size=kind == "size"),
            freestanding=bool(platform.sdk),
            compiler="zig",
        )

    def _fill_cell(self, platform: Platform, name: str, kind: str, out: Path) -> str:
        """Build or plan, then run or examine; returns the verdict."""
        folder, batch = self.artifacts[name], MODELS[name].batch
        if kind == "ops":
            if not (out / "manifest.json").exists():
                config = opset.read(self.config)
                build_library(config, [], out, self._make_options(platform, [1], kind))
            words = [str(folder), "--target", platform.name, "--batch", str(batch)]
            words += ["--ops", str(self.config), "-o", str(out / "mnist.plan")]
            if cli.main(["plan", *words]):
                return f"{WRONG}: no plan"
        else:
            shutil.rmtree(out, ignore_errors=True)
            build(folder, out, self._make_options(platform, [batch], kind))
        device = find_emulator(platform.name)
        if device is None:
            return examine(platform, out)
        if device.list_missing():
            return f"linked, not run: needs {', '.join(device.list_missing())}"
        losses = train(platform, device, out, folder / "checkpoint", kind == "ops")
        expected = self.find_expected(name, closed=kind == "ops")
        return judge(losses, expected.losses, later=expected.later)


def _read_kept(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def _keep(rows: Mapping[str, Cell | Expected], file: Path) -> None:
    kept = {key: asdict(row) for key, row in rows.items()}
    file.write_text(json.dumps(kept, indent=1), "utf-8")


def make_key(target: str, model: str, kind: str) -> str:
    """Return the name of a cell."""
    return f"{target} {kind} {model}"


def train(
    platform: Platform, device: Emulator, out: Path, checkpoint: Path, planned: bool
) -> list[float]:
    """Return the losses of a program that is linked with the library in `out`.

    A module of WebAssembly is not a library that a program can be linked with: there the program
    contains the same object of kernels and C source.
    """
    objects = [(out / "src" / "kernels.o").read_bytes()] if platform.is_wasm else []
    sources = [out / "src" / "mnist.c"] if platform.is_wasm else []
    program = link(
        objects,
        [*sources, DRIVERS / "train.c"],
        platform,
        out / platform.file_name("executable", "train"),
        kind="executable",
        include=[out],
        defines={"PLAN": ""} if planned else {},
        threads=False,
        compiler="zig",
        flags=[] if platform.is_wasm else [f"-L{out}", "-lmnist"],
    )
    arguments = [str(checkpoint), str(STEPS), str(RATE)]
    arguments += [str(out / "mnist.plan")] if planned else []
    printed = device.run(program, *arguments, timeout=PATIENCE)
    return [float.fromhex(line) for line in printed.split()]


def examine(platform: Platform, out: Path) -> str:
    """Return a description of the linked file for a platform whose programs do not run here."""
    if platform.sdk:
        return "archive" if (out / "libmnist.a").exists() else f"{WRONG}: no archive"
    facts = binary.read(out / platform.file_name("shared", "mnist"))
    allowed = MODULE if platform.is_wasm else ()
    others = sorted(n for n in facts.exports if not n.startswith("mnist_") and n not in allowed)
    return f"{WRONG}: exports {others[:3]}" if others else "linked, not run"


def _digest(chosen: Sequence[str]) -> str:
    """Return a digest of everything that builds of the chosen models depend on."""
    rooms = ("engine", "graphs", "kernels", "tools")
    files = [p for room in rooms for p in sorted((ROOT / room).rglob("*.*"))]
    total = hashlib.sha256(",".join(sorted(chosen)).encode())
    for path in (*files, Path(__file__), DRIVERS / "train.c"):
        if path.suffix in (".py", ".c", ".h"):
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


# --- the page


PAGE = """\
# The matrix of builds

`make builds` makes this page. A run takes hours, so it can be stopped and called again, or made in
pieces, such as `make builds ARGS="raspberrypi4 wasm32"`: a piece replaces its rows. Each row says
from which commit it is, and its date; later libraries are often smaller.
[Trimmed builds](trimmed-builds.md) has sizes of this version. The last piece was made on
{machine}.

Each cell is a library that ziglang linked: its size; the seconds for planning, compiling kernels
that were not cached, linking and training, on a machine shared with others; and how the losses of
{steps} steps of a program that uses the library differ from the engine's on this machine: `equal`
to the last bit, or the largest relative difference. More than {first:.0e} at the first step is an
error. Adam's steps have one size: where a gradient is rounding, rounding decides their direction.
So the bound of later steps is measured: the engine trains {trials} times from parameters that are
one unit in the last place away, and {times} times the largest difference of its own losses is
allowed, {first:.0e} at least. Of MobileNetV2 they differ by 1e-3 to 4e-3 at the third step; what a
build for a CPU without fused multiply-adds (WebAssembly, ARMv6, x86-64-v2) does to it is as much,
and WebAssembly's losses are x86-64-v2's to the last bit.

Linux on ARM and RISC-V runs under qemu's user mode, Windows under Wine, WebAssembly in Node.js;
code for ARMv6 runs on an emulated Cortex-A7, because Debian's C library needs one.
`linked, not run`: the file has the requested format, CPU and system, and exports only the API.
`archive`: made with `--freestanding`, because the system's C library is missing. A library of
`--ops` has the kernels of the ops of all models here; the first cell of its row includes the time
to make it.

Models: {models}.
"""


def read_rows(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the cells of the rows that a page has, by kind and target; of other models none."""
    rows: dict[tuple[str, str], list[str]] = {}
    kind = ""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        if line.startswith("## "):
            kind = next((k for k, title in KINDS.items() if line == f"## {title}"), "")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 2 + len(MODELS) and cells[0] in NAMES:
            rows[kind, cells[0]] = cells[1:]
    return rows


def write_page(rows: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Write the matrix of builds: the rows of targets that were made, and the others unchanged.

    A row is of one commit: cells of other models stay in it where they are of the same.
    """
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%h, %as"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    shown = read_rows(path)
    for target, cells in rows.items():
        for kind, *texts in cells:
            *old, of = shown.get((str(kind), target), [""] * (1 + len(MODELS)))
            kept = old if of == commit else [""] * len(MODELS)
            row = [str(text or other) for text, other in zip(texts, kept, strict=True)]
            shown[str(kind), target] = [*row, commit]
    lines = PAGE.format(
        machine=machine.describe()["processor"],
        steps=STEPS,
        first=FIRST,
        trials=TRIALS,
        times=TIMES,
        models="; ".join(f"{name}: {model.what}" for name, model in MODELS.items()),
    ).splitlines()
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", ""]
        table = [[t, *shown.get((kind, t), [""] * (1 + len(MODELS)))] for t in NAMES]
        lines += make_markdown(["target", *MODELS, "of"], table)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def measure(target: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each kind of build."""
    matrix = Matrix(options.folder, list(MODELS))
    for kind in options.kinds:
        chosen = {name: matrix.run(target, kind, name) for name in MODELS if name in options.models}
        yield kind, *(str(chosen[name]) if name in chosen else None for name in MODELS)


BENCHES = (
    Bench(
        "builds",
        "every target and kind of trimmed build with five models; takes hours",
        {name: name for name in NAMES},
        ("kind", *MODELS),
        measure,
        options=(
            Option("models", tuple(MODELS), "to build"),
            Option("kinds", tuple(KINDS), "of builds"),
            Option("folder", ROOT / "build" / "matrix", "of rows that are kept"),
        ),
        page=write_page,
        document="docs/build-matrix.md",
    ),
)

"""The cost of a language: a training step of a small model by each of its bindings.

The model is the workload `mlp` with one sample a step, so that what a binding adds shows: checks,
copies of inputs and outputs, locks, calls across languages.  Every program prepares its inputs once
and prints the least time of its blocks of steps; programs take turns.

JavaScript runs WebAssembly, which has other kernels: its difference from C is not the binding's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.measuring import ROOT, run, run_for_output
from bench.programs import written
from bench.rows import Bench, Cells, Option
from engine.tools.trimmed.bindings.languages import LANGUAGES
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve

SCRIPTS = ROOT / "bench/scripts/bindings"


@dataclass(frozen=True, slots=True)
class Program:
    """A command, before its arguments, and the variables of its environment."""

    words: tuple[object, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def make_c(folder: Path, place: Path) -> Program:
    return _compile("cc", "step.c", folder, place)


def make_cpp(folder: Path, place: Path) -> Program:
    return _compile("c++", "step.cpp", folder, place)


def _compile(compiler: str, file: str, folder: Path, place: Path) -> Program:
    out = place / file.replace(".", "-")
    run([compiler, "-O2", SCRIPTS / file, f"-I{folder}", f"-L{folder}", "-lmlp", "-o", out])
    return Program((out,), {"LD_LIBRARY_PATH": str(folder)})


def make_python(folder: Path, place: Path) -> Program:
    return Program((sys.executable, SCRIPTS / "step.py", folder))


def make_java(folder: Path, place: Path) -> Program:
    classes, sources = place / "classes", [*(folder / "java").rglob("*.java")]
    run(["javac", "-d", classes, *sources, SCRIPTS / "Step.java"])
    resources = folder / "java/src/main/resources"
    return Program(("java", "-cp", f"{classes}:{resources}", "Step"))


def make_csharp(folder: Path, place: Path) -> Program:
    out, (library,) = place / "step.exe", folder.glob("csharp/runtimes/*/native/libmlp.so")
    run(["mcs", f"-out:{out}", *(folder / "csharp/src").glob("*.cs"), SCRIPTS / "Step.cs"])
    return Program(("mono", out), {"LD_LIBRARY_PATH": str(library.parent)})


def make_rust(folder: Path, place: Path) -> Program:
    crate = place / "crate"
    shutil.copytree(folder / "rust", crate)
    shutil.copy(SCRIPTS / "step.rs", crate / "examples")
    run(["cargo", "build", "--offline", "--release", "--example", "step"], cwd=crate)
    return Program((crate / "target/release/examples/step",), {"LD_LIBRARY_PATH": str(folder)})


def make_go(folder: Path, place: Path) -> Program:
    module, program = folder / "go", place / "program"
    program.mkdir()
    shutil.copy(SCRIPTS / "step.go", program)
    (program / "go.mod").write_text(
        f"module step\n\ngo 1.18\n\nrequire mlp v0.0.0\n\nreplace mlp => {module}\n"
    )
    offline = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    run(["go", "build", "-o", place / "step-go"], cwd=program, **offline)
    return Program((place / "step-go",))


def make_js(folder: Path, place: Path) -> Program:
    return Program(("node", SCRIPTS / "step.mjs", folder / "js"))


MAKERS: dict[str, Callable[[Path, Path], Program]] = {
    "c": make_c, "cpp": make_cpp, "python": make_python, "java": make_java,
    "csharp": make_csharp, "rust": make_rust, "go": make_go, "js": make_js,
}  # fmt: skip


def build_for(name: str, artifacts: Path, place: Path) -> Path:
    """Build the model for a language, with its package; returns the folder."""
    out, platform = place / name, resolve("wasm32" if name == "js" else "native")
    build(
        artifacts,
        out,
        Options("mlp", platform, PlanRequest([1]), bindings=[name] if name in LANGUAGES else []),
    )
    return out


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a language: its program and the one in C take turns."""
    with written("mlp") as artifacts, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = dict.fromkeys(("c", name))
        programs = {each: MAKERS[each](build_for(each, artifacts, place), place) for each in names}
        least = dict.fromkeys(programs, float("inf"))
        given = (artifacts / "checkpoint", options.blocks, options.steps)
        for _ in range(options.turns):
            for each, program in programs.items():
                told = run_for_output([*program.words, *given], None, **program.variables)
                least[each] = min(least[each], int(told) / 1e3)
    yield least[name], least[name] - least["c"], least[name] / least["c"]


BENCHES = (
    Bench(
        "bindings",
        "a training step of a small model by each language's binding",
        {name: name for name in MAKERS},
        ("us a step:.2f", "more than C us:.2f", "step / C's:.2f"),
        measure,
        options=(
            Option("turns", 5, "runs of each program"),
            Option("blocks", 20, "of steps; the fastest block counts"),
            Option("steps", 500, "of a block"),
        ),
        small="c --turns 1 --blocks 1 --steps 2",
    ),
)

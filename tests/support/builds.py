"""Native builds that several tests look at; each is made once."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from engine.graphs.io import onnx_io
from engine.kernels.machine.target import Target, detect_host
from engine.runtime.team import LAUNCH
from engine.tools import cli
from engine.tools.trimmed.api import ApiFunction, list_functions
from engine.tools.trimmed.build import build, build_library
from engine.tools.trimmed.bundle import Bundle
from engine.tools.trimmed.generate import CpuLevel, Source, define_types
from engine.tools.trimmed.opset import of_graphs
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.targets import resolve
from tests.support.places import GOLDENS
from tests.support.shared import make_once

WARNINGS = ("-Wall", "-Wextra", "-Werror")
STRICT = (*WARNINGS, "-pedantic", "-Wshadow", "-Wconversion")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LIBC = {  # that the C of a build calls
    "chmod", "close", "fclose", "fflush", "fileno", "fopen", "fread", "free", "fsync",
    "fwrite", "getauxval", "getpid", "madvise", "malloc", "memcpy", "memset", "open", "realpath",
    "remove", "rename", "stat", "__errno_location", "__xstat", "strerror", "strlen", "sysconf",
}  # fmt: skip

needs_cc = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("cc"), reason="needs a C compiler called cc"
)


@functools.cache
def make_root() -> Path:
    """A folder for all builds of this process."""
    folder = Path(tempfile.mkdtemp(prefix="edgegrad-builds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def find_functions(library: bool = False) -> dict[str, ApiFunction]:
    """Return the functions of the header of such a build by their names."""
    header = make_source("mnist", library=library).read_header()
    return {function.name: function for function in list_functions(header)}


@functools.cache
def write_types() -> Path:
    """Write what files of the runtime need of element types alone; return the folder of types.h."""
    folder = make_root() / "types"
    folder.mkdir()
    (folder / "types.h").write_text("\n".join(define_types()) + "\n")
    return folder


def list_decoder_functions() -> set[str]:
    """Return the names of the functions that only builds with a decoder have."""
    return {n for n, f in find_functions().items() if "#if @NAME@_DECODES" in f.conditions}


def make_source(
    name: str, *, library: bool = False, threads: int = 1, target: Target | None = None
) -> Source:
    """The generated text of a build of the mlp golden, or of a library of its kernels.

    target: None for this machine.
    """
    target = target or detect_host()
    planned = make_plans(list_artifacts(GOLDENS / "mlp"), target, PlanRequest([2], threads))
    specs = planned.list_kernels()
    symbols = [spec.symbol for spec in specs]
    if library and LAUNCH.symbol not in symbols:
        symbols.append(LAUNCH.symbol)
    bundle = None if library else Bundle(planned, target, threads)
    level = CpuLevel(target, symbols, bundle)
    return Source(name, [level], threads, "0" * 16, federated=not library)


def write_source(made: Source, folder: Path) -> None:
    """Write all C and C++ that a build gives: header, library, self-test and examples."""
    (folder / f"{made.name}.h").write_text(made.write_header())
    (folder / f"{made.name}.hpp").write_text(made.write_cpp_header())
    (folder / "library.c").write_text(made.write_source())
    for file in ("example.c", "example.cpp", *["device.c"] * made.federated):
        (folder / file).write_text(made.write_example(file))
    (folder / "selftest.c").write_text(
        made.write_selftest(
            "#define CHECKPOINT_BYTES 1u\n#define CHECKPOINT_CRC32 0u\n"
            "#define HAS_OPTIMIZER 1\n#define LEARNING_RATE 0.01f\n#define TOLERANCE 1e-4\n"
            "#define LOSS_SCALE 0.0f\n"
            "static const double recorded[] = {0.5};\nstatic const double recorded_square_sum = 1;"
        )
    )


@functools.cache
def make_build(
    case: str,
    threads: int = 1,
    *,
    freestanding: bool = False,
    federated: bool = False,
    batches: tuple[int, ...] = (4,),
) -> Path:
    """The folder of a native build of a golden, called `mnist`."""
    sizes = "x".join(map(str, batches))
    kind = "-free" * freestanding + "-federated" * federated
    name = f"{case}-{threads}-{sizes}{kind}"
    options = Options(
        "mnist",
        resolve("native"),
        PlanRequest(batches, threads),
        freestanding=freestanding,
        federated=federated,
    )
    return make_once(name, lambda out: build(GOLDENS / case, out, options))


@functools.cache
def make_build_for(target: str, case: str, threads: int = 1, *, size: bool = False) -> Path:
    """Build a golden for another platform, called `mnist`, batch 8, by ziglang."""
    name = f"{case}-{target}-{threads}{'-size' if size else ''}"
    options = Options(
        "mnist", resolve(target), PlanRequest([8], threads, size=size), compiler="zig"
    )
    return make_once(name, lambda out: build(GOLDENS / case, out, options))


@functools.cache
def make_library(threads: int = 1) -> Path:
    """The folder of a native library of the kernels for the ops of the mlp golden."""
    graphs = [onnx_io.load(p) for p in sorted((GOLDENS / "mlp").glob("*_model.onnx"))]
    options = Options("mnist", resolve("native"), PlanRequest([4], threads))
    return make_once(
        f"library-{threads}", lambda out: build_library(of_graphs(graphs), [], out, options)
    )


@functools.cache
def plan_file(artifacts: Path, batches: str, threads: int = 1) -> Path:
    """A plan file for `make_library`."""
    out = make_root() / f"{artifacts.name}-{threads}-{batches}.plan"
    words = [str(artifacts), "--batch", batches, "--threads", str(threads), "-o", str(out)]
    assert cli.main(["plan", *words]) == 0
    return out


def load(folder: Path) -> ModuleType:
    """The Python face of a build, as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"mnist_{folder.name}", folder / "mnist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_c(out: Path, *arguments: str | Path, compiler: str = "cc") -> Path:
    """Compile and link; the test fails with what the compiler said."""
    done = subprocess.run(
        [compiler, *map(str, arguments), "-o", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def run(*arguments: str | Path, **environment: str) -> str:
    """Run a program; the test fails with what it printed unless its status is 0."""
    done = subprocess.run(
        [*map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def list_sources(folder: Path) -> tuple[str | Path, ...]:
    """Return the sources with which a driver contains the library's C code."""
    return (f"-I{folder}", folder / "src" / "mnist.c", folder / "src" / "kernels.o", "-pthread")


def make_samples(count: int) -> tuple[Any, Any]:
    """Return inputs and labels for the mlp golden."""
    rng = np.random.default_rng(count)
    return rng.standard_normal((count, 64)).astype(np.float32), rng.integers(0, 10, count)

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

import pytest

from engine.tools.build import Options, build
from engine.tools.targets import resolve

GOLDENS = Path(__file__).parent / "data" / "goldens"
DRIVERS = Path(__file__).parent / "c"
WARNINGS = ("-Wall", "-Wextra", "-Werror")

needs_cc = pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("cc"), reason="needs a C compiler called cc"
)


@functools.cache
def root() -> Path:
    """A folder for all builds of this process."""
    folder = Path(tempfile.mkdtemp(prefix="edgegrad-builds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def made(case: str, threads: int = 1, *, freestanding: bool = False) -> Path:
    """The folder of a native build of a golden, called `mnist`, batch 4."""
    out = root() / f"{case}-{threads}{'-free' if freestanding else ''}"
    platform = resolve("native")
    build(GOLDENS / case, out, Options("mnist", platform, 4, threads, freestanding=freestanding))
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
        [*map(str, arguments)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

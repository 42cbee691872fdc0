"""ThreadSanitizer: the C runtime and its kernels in several threads; a race would be found."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from engine.kernels.binaries import load
from engine.kernels.compiler import emit
from engine.tools.trimmed.bundle import Bundle
from engine.tools.trimmed.generate import CpuLevel, Source
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.targets import resolve
from tests.support.builds import WARNINGS, compile_c, needs_cc
from tests.support.places import DRIVERS, GOLDENS
from tests.support.races import instrument

# Kernels that access memory by plain loads and stores alone.
TARGETS = {"x86_64": "x86-64-v2", "aarch64": "aarch64"}
HERE = TARGETS.get(platform.machine())
MLP = GOLDENS / "mlp"
SAMPLES = 256  # so many that threads share what there is to do, as tests/c/threads.c has them

pytestmark = [needs_cc, pytest.mark.skipif(HERE is None, reason="no such kernels for this CPU")]


def built(folder: Path, threads: int = 2, *, weak: bool = False) -> Path:
    """tests/c/threads.c with a build of the mlp for so many threads, all of it instrumented."""
    target = resolve(str(HERE)).target
    planned = make_plans(list_artifacts(MLP), target, PlanRequest([SAMPLES], threads))
    specs = planned.list_kernels()
    bundle = Bundle(planned, target, threads)
    level = CpuLevel(target, [spec.symbol for spec in specs], bundle)
    source = Source("mnist", [level], threads, "0" * 16)
    codes = load.get_codes(specs, target, load.BITCODE)
    parts = {symbol: instrument(code, weak=weak) for symbol, code in codes.items()}
    (data,) = source.list_data()
    code = emit.emit_library(
        parts, source.name_table(0), data, target,
        calls=bundle.steps.calls, constants=source.find_constants(0), distances=target.is_elf,
    )  # fmt: skip
    (folder / "mnist.h").write_text(source.write_header())
    (folder / "mnist.c").write_text(source.write_source())
    (folder / "kernels.o").write_bytes(code)
    sanitize = ("-g", "-O1", "-fsanitize=thread", *WARNINGS)
    files = (DRIVERS / "threads.c", folder / "mnist.c", folder / "kernels.o")
    return compile_c(folder / "threads", *sanitize, f"-I{folder}", *files, "-pthread")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("races"))


def ran(program: Path, what: str) -> tuple[int, str]:
    """The status of a run, which is 66 if a race was found, and what it printed."""
    words = [str(program), str(MLP / "checkpoint"), what]
    options = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
    for fixed in ([], [shutil.which("setarch") or "setarch", "-R"]):
        done = subprocess.run(
            [*fixed, *words], capture_output=True, text=True, env=options, timeout=120
        )
        if "unexpected memory mapping" not in done.stderr:
            break  # some kernels put programs where its shadow memory has to be
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("what", ["models", "handed", "refused"])
def test_what_the_header_allows_has_no_race(what: str, program: Path) -> None:
    status, text = ran(program, what)
    assert (status, text) == (0, "ok\n")


@pytest.mark.whole
def test_four_threads_have_no_race(tmp_path: Path) -> None:
    assert ran(built(tmp_path, 4), "models") == (0, "ok\n")


@pytest.mark.parametrize(
    ("what", "function"), [("written", "write_parameter"), ("told", "set_rate")]
)
def test_a_race_is_found(what: str, function: str, program: Path) -> None:
    """Of a caller with a kernel, which is seen by what was put into it, and with the runtime."""
    status, text = ran(program, what)
    assert status == 66
    assert "data race" in text
    assert function in text or "mnist_set_learning_rate" in text


def test_threads_of_a_step_are_seen(tmp_path: Path) -> None:
    """Without the order that the executor's barriers make, steps race with each other."""
    status, text = ran(built(tmp_path, weak=True), "models")
    assert status == 66
    assert "data race" in text


def test_what_is_not_known_is_refused() -> None:
    """An access that would not be seen."""
    for line in ("fence seq_cst", "%a = cmpxchg ptr %p, i32 0, i32 1 seq_cst seq_cst"):
        text = f"define void @f(ptr %p) {{\n  {line}\n  ret void\n}}\n"
        with pytest.raises(ValueError, match="not known"):
            instrument(llvm.parse_assembly(text).as_bitcode())

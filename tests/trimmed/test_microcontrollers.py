"""Builds for microcontrollers: archives of what they need, which train bare-metal in qemu."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import firmware
from engine.errors import EngineError
from engine.kernels.binaries.load import get_library
from engine.kernels.vocabulary.expression import FUNCTIONS
from engine.kernels.vocabulary.row_program import Input, Program
from engine.plan.plan import KernelSpec
from engine.tools.trimmed import binary
from engine.tools.trimmed.build import build
from engine.tools.trimmed.bundle import BUDGETED, Bundle
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.generate import RUNTIME
from engine.tools.trimmed.link import link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.project_files import write_board_libraries
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.bindings.packages import make_example
from tests.support import decoders
from tests.support.builds import make_root, needs_cc
from tests.support.places import GOLDENS
from tests.support.shown import shows

BARE = [name for name in TARGETS if resolve(name).is_bare]
NM, OBJDUMP = "llvm-nm-19", "llvm-objdump-19"


@functools.cache
def make_artifacts(name: str) -> Path:
    """Return the folder of the artifacts of a model for small devices."""
    folder = make_root() / f"{name}-artifacts"
    firmware.write_model(name, folder)
    return folder


def list_missing(archive: Path) -> set[str]:
    """Return the symbols that the objects of an archive need and none of them defines."""
    listed = [
        subprocess.check_output([NM, kind, "-j", archive], text=True).split()
        for kind in ("-u", "-U")
    ]
    needed, defined = ({line for line in lines if ":" not in line} for lines in listed)
    return needed - defined


needs_qemu = pytest.mark.skipif(
    not (shutil.which(firmware.QEMU) and shutil.which(firmware.QEMU_RISC_V)),
    reason=f"needs {firmware.QEMU} and {firmware.QEMU_RISC_V}",
)


@needs_cc
@needs_qemu
@pytest.mark.parametrize(
    ("case", "target", "batch"),
    [
        ("mlp", "cortex-m7", 8),
        ("mlp", "cortex-m4", 8),
        ("mlp", "cortex-m33", 8),
        ("mlp", "cortex-m55", 8),
        ("mlp", "cortex-m85", 8),
        ("autoencoder", "cortex-m7", 1),
        ("ds_cnn", "cortex-m7", 1),
        ("mlp", "rv32imafc", 8),
        ("ds_cnn", "rv32imafc", 1),
    ],
)
@shows("C", "RV32IMAFC", "emulated")
@shows("C", "Cortex-M4F, M7 and M33", "emulated")
@shows("C", "Cortex-M55 and M85", "emulated")
def test_a_board_trains_as_this_machine_does(
    case: str, target: str, batch: int, tmp_path: Path
) -> None:
    """With no system and no library, in static memory: losses equal this machine's to rounding."""
    artifacts, board = make_artifacts(case), tmp_path / "board"
    program, manifest = firmware.make_firmware(artifacts, target, batch, board)
    losses = firmware.run_firmware(program, target)
    expected = firmware.train_natively(artifacts, batch, tmp_path / "native")
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]
    flash, ram = firmware.count_memory(program, target)
    checkpoint = (board / "checkpoint").stat().st_size
    assert flash > manifest["report"]["parts"]["kernels"] + checkpoint
    assert manifest["report"]["memory"] <= ram < manifest["report"]["memory"] + 1024
    calls = ["create_in", "input", "input_count", "input_info", "train_step", "optimizer_step",
             "lazy_reset_grad", "output", "message"]  # fmt: skip
    roots = [f"mnist_{name}" for name in calls]
    reached = binary.count_loaded((board / "libmnist.a").read_bytes(), roots)
    assert flash - checkpoint == pytest.approx(reached, abs=512)  # and the program's own


@pytest.mark.skipif(not shutil.which(OBJDUMP), reason=f"needs {OBJDUMP}")
@pytest.mark.parametrize(("target", "has_helium"), [
    ("cortex-m55", True), ("cortex-m85", True), ("cortex-m33", False),
])  # fmt: skip
def test_kernels_use_helium_where_a_core_has_it(
    target: str, has_helium: bool, tmp_path: Path
) -> None:
    """Vectors of floats: loads, stores, and products that are added, four at a time."""
    build(make_artifacts("mlp"), tmp_path, Options("mnist", resolve(target), PlanRequest([8])))
    words = ["--triple=thumbv8.1m.main-none-eabihf", "--mattr=+mve.fp,+fp64"]
    kernels = tmp_path / "src/kernels.o"
    listed = subprocess.check_output([OBJDUMP, "-d", *words, kernels], text=True)
    counts = {
        name: len(re.findall(rf"\b{name}\s+q[0-7],", listed))
        for name in ("vldrw.u32", "vstrw.32", "vmul.f32", "vfma.f32")
    }
    assert all(count > 0 for count in counts.values()) == has_helium, counts
    assert any(counts.values()) == has_helium, counts


@pytest.mark.parametrize("case", firmware.MODELS_OF_BOARDS)
@pytest.mark.parametrize("target", ["native", *BARE])
def test_a_small_model_takes_a_tenth_more_than_its_arena(case: str, target: str) -> None:
    """At most, by the figures of `--report`: names, shapes, plans and bookkeeping are the rest."""
    files, batch = list_artifacts(make_artifacts(case)), firmware.MODELS_OF_BOARDS[case].batch
    cpu = resolve(target).target
    areas = Bundle(make_plans(files, cpu, PlanRequest([batch])), cpu, 1).list_areas()
    arena = sum(areas[area] for area in BUDGETED)
    assert sum(areas.values()) <= 1.1 * arena, areas


@needs_cc
@needs_qemu
@pytest.mark.parametrize("target", ["cortex-m7", "cortex-m55", "rv32imafc"])
@shows("C++17", "RV32IMAFC", "emulated")
@shows("C++17", "Cortex-M4F, M7 and M33", "emulated")
@shows("C++17", "Cortex-M55 and M85", "emulated")
def test_a_board_trains_in_cpp_without_exceptions(target: str, tmp_path: Path) -> None:
    """Nor with type information, a heap or a library: calls return their codes."""
    artifacts = make_artifacts("mlp")
    program, manifest = firmware.make_firmware(artifacts, target, 8, tmp_path / "cpp", is_cpp=True)
    plain, _ = firmware.make_firmware(artifacts, target, 8, tmp_path / "c")
    assert firmware.run_firmware(program, target) == firmware.run_firmware(plain, target)
    (flash, ram), (least, _) = (firmware.count_memory(p, target) for p in (program, plain))
    assert flash < least + 1024
    assert ram < manifest["report"]["memory"] + 1024


@needs_cc
@needs_qemu
def test_a_board_continues_a_text_with_parameters_in_flash(tmp_path: Path) -> None:
    path = decoders.make_artifacts("gpt2") / "decoder.onnx"
    decoder = DecoderOptions(decoders.CAPACITY, path=path)
    program, manifest = firmware.make_firmware(None, "cortex-m7", 1, tmp_path, decoder)
    scores = firmware.run_firmware(program, "cortex-m7")
    expected = decoders.answer_drill("gpt2", is_alone=True)[: len(scores), 0]
    assert len(scores) == 11
    assert scores == pytest.approx(expected.tolist(), rel=1e-3, abs=1e-6)
    flash, ram = firmware.count_memory(program, "cortex-m7")
    parts, memory = manifest["report"]["parts"], manifest["report"]["memory"]
    assert flash > parts["kernels"] + parts["constants"]
    assert memory <= ram < memory + 1024
    assert memory < parts["constants"] / 2


def test_a_page_gets_the_rows_of_a_board(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin = "| MLP 64-48-10 | 3,610 | 8 | `cortex-m7` |"
    page.write_text(f"# Sizes\n\n{begin} 1 KiB | 2 KiB | 3.0 KiB | equal |\n| other | 1 |\n")
    firmware.write_page({"mlp": [("cortex-m7", 8, 3610, 36.2, 71.4, 2.71, "1e-07")]}, page)
    row = f"{begin} 36 KiB | 71 KiB | 2.7 KiB | 1e-07 |"
    assert page.read_text() == f"# Sizes\n\n{row}\n| other | 1 |\n"


@pytest.mark.skipif(not shutil.which(NM), reason=f"needs {NM}")
@pytest.mark.parametrize(
    ("case", "target"),
    [
        *(("mlp", target) for target in BARE),
        *(("float64", target) for target in ("cortex-m4", "cortex-m7", "rv32imafc")),
        *(("mlp", target) for target in ("raspberrypi1", "raspberrypi2", "riscv64")),
        ("ds_cnn", "rv32imafc"),
    ],
)
def test_an_archive_needs_no_symbol(case: str, target: str, tmp_path: Path) -> None:
    """Not even of a compiler's library: double precision and divisions are in it, too."""
    if case == "float64":
        artifacts = make_example("wide", "", "native").parent / "artifacts"
    else:
        artifacts = make_artifacts(case)
    options = Options("mnist", resolve(target), PlanRequest([8]), freestanding=True)
    build(artifacts, tmp_path, options)
    assert list_missing(tmp_path / "libmnist.a") == set()


@pytest.mark.skipif(not shutil.which(NM), reason=f"needs {NM}")
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("target", ["cortex-m4", "rv32imafc", "raspberrypi1", "android-armv7"])
def test_every_function_of_formulas_is_in_an_archive(
    target: str, element: str, tmp_path: Path
) -> None:
    """For CPUs that lack instructions to round, and to compute with doubles."""
    platform, source = resolve(target), tmp_path / "runtime.c"
    parts = [(RUNTIME / part).read_text() for part in ("bytes.c", "helpers.c")]
    heads = [f"#include <{name}>" for name in ("stdarg.h", "stddef.h", "stdint.h")]
    source.write_text("\n".join([*heads, *parts]))
    specs = []
    for name, function in FUNCTIONS.items():
        if function.kind == "same" and not name.startswith(("bit", "sh", "philox", "where")):
            terms = ("in", 0), ("in", 1), ("in", 2)
            program = Program.computing(
                [Input(element)] * function.arity, [(element, (name, *terms[: function.arity]))]
            )
            specs.append(KernelSpec("map", (program.text(), 1)))
    assert len(specs) > 30
    code = get_library(specs, platform.target, table="kernels", data={})
    archive = link(
        [code], [source], platform, tmp_path / "lib.a",
        kind="static", freestanding=True, threads=False, defines={"EDGEGRAD_FREESTANDING": ""},
    )  # fmt: skip
    assert list_missing(archive) == set()


@pytest.mark.parametrize("target", BARE)
def test_platformio_finds_a_library(target: str, tmp_path: Path) -> None:
    """By a manifest as `pio pkg pack` takes it, whose flags are of the library's own folder."""
    out = tmp_path / "build"
    out.mkdir()
    (out / "mnist.h").write_text("/* calls */\n")
    (out / "libmnist.a").write_bytes(b"!<arch>\n")
    write_board_libraries(out, "mnist", resolve(target), out / "libmnist.a")
    folder = out / "platformio/mnist"
    manifest = json.loads((folder / "library.json").read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*", manifest["version"])
    assert (manifest["name"], manifest["headers"]) == ("mnist", "mnist.h")
    assert manifest["build"]["flags"] == ["-DEDGEGRAD_FREESTANDING", "-Llib", "-lmnist"]
    assert (folder / "lib/libmnist.a").read_bytes() == (out / "libmnist.a").read_bytes()
    assert (folder / "include/mnist.h").read_text().startswith("#ifndef EDGEGRAD_FREESTANDING")


@pytest.mark.skipif(not shutil.which("c++"), reason="needs c++")
def test_arduino_finds_a_library(tmp_path: Path) -> None:
    """With the archive where it looks for one of the core, and a sketch that compiles."""
    build(make_artifacts("mlp"), tmp_path, Options("mnist", resolve("cortex-m7"), PlanRequest([8])))
    folder = tmp_path / "arduino/mnist"
    rows = (line.partition("=") for line in (folder / "library.properties").read_text().split("\n"))
    facts = {key: value for key, _, value in rows}
    assert (facts["precompiled"], facts["includes"]) == ("full", "mnist.h")
    archive = folder / "src/cortex-m7/fpv5-d16-hard/libmnist.a"
    assert archive.read_bytes() == (tmp_path / "libmnist.a").read_bytes()
    board = "struct { void begin(long); void println(const char *); } Serial;\n"
    (tmp_path / "board.h").write_text(f"static {board}")
    words = ["-x", "c++", "-std=c++17", "-fsyntax-only", "-Werror", f"-I{folder / 'src'}"]
    sketch = folder / "examples/Begin/Begin.ino"
    subprocess.run(["c++", *words, "-include", tmp_path / "board.h", sketch], check=True)


def test_bare_metal_has_no_threads_and_no_libraries() -> None:
    platform = resolve("cortex-m7")
    with pytest.raises(EngineError, match="has no threads"):
        build(GOLDENS / "mlp", Path("unused"), Options("mnist", platform, PlanRequest([8], 2)))
    assert Options("mnist", platform, PlanRequest([8])).freestanding
    with pytest.raises(EngineError, match="no operating system, so only archives"):
        link([], [], platform, Path("unused"), threads=False)

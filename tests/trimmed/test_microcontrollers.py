"""Builds for microcontrollers: archives of what they need, which train bare-metal in qemu."""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import AdamW, CrossEntropyLoss, MSELoss, generate_artifacts
from engine.errors import EngineError
from engine.graphs.io import onnx_io
from engine.models.images import build_autoencoder
from engine.models.sound import build_ds_cnn
from engine.tools.benchmark.workload import list_parameters
from engine.tools.trimmed.build import Options, build
from engine.tools.trimmed.link import link
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import load, make_root, needs_cc
from tests.support.places import DRIVERS, GOLDENS
from tests.support.shown import shows

QEMU = "qemu-system-arm"
# qemu's boards, and the addresses of their flash and RAM.
BOARDS = {
    "cortex-m7": ("mps2-an500", "0", "0x20000000"),
    "cortex-m4": ("mps2-an386", "0", "0x20000000"),
    "cortex-m33": ("mps2-an505", "0x10000000", "0x38000000"),
    "cortex-m55": ("mps3-an547", "0", "0x20000000"),
}
BARE = [name for name in TARGETS if resolve(name).is_bare]
STEPS = 4
# Functions of a compiler's own library that archives need: double precision and divisions,
# for which these CPUs have no instructions.
DOUBLES = {
    "__aeabi_d2f", "__aeabi_dadd", "__aeabi_dcmpeq", "__aeabi_ddiv", "__aeabi_dmul",
    "__aeabi_dsub", "__aeabi_f2d",
}  # fmt: skip
COMPILER = {
    "cortex-m4": DOUBLES,
    "cortex-m33": DOUBLES,
    "rv32imafc": {
        "__adddf3", "__divdf3", "__extendsfdf2", "__floatdisf", "__muldf3", "__nedf2", "__subdf3",
        "__truncdfsf2", "__udivdi3",
    },
}  # fmt: skip
NM = "llvm-nm-19"


@functools.cache
def make_artifacts(case: str) -> Path:
    """Return the folder of the artifacts of a golden, or of a model for small devices."""
    if case == "mlp":
        return GOLDENS / case
    graph, loss = (
        (build_autoencoder((64,)), MSELoss())
        if case == "autoencoder"
        else (build_ds_cnn((1, 10, 49), channels=16, blocks=2), CrossEntropyLoss())
    )
    folder = make_root() / f"{case}-artifacts"
    folder.mkdir()
    onnx_io.save(graph, folder / "forward.onnx")
    generate_artifacts(
        str(folder / "forward.onnx"), requires_grad=list_parameters(graph, ()), loss=loss,
        optimizer=AdamW(), artifact_directory=folder,
    )  # fmt: skip
    return folder


def train_natively(case: str, batch: int, folder: Path) -> list[float]:
    """Return the losses of the steps of firmware.c on this machine."""
    build(make_artifacts(case), folder, Options("mnist", resolve("native"), [batch]))
    trainer = load(folder).Trainer(folder / "checkpoint")
    arrays: list[np.ndarray[Any, Any]] = []
    for port in trainer.state._handle.phases[0]["train"][0]:
        is_float = np.dtype(port["dtype"]) == np.float32
        places = np.arange(int(np.prod(port["shape"])))
        floats, labels = (places % 7).astype(np.float32) / np.float32(7), places % 2
        arrays.append((floats if is_float else labels.astype(np.int64)).reshape(port["shape"]))
    return [float(np.float32(trainer.step(*arrays))) for _ in range(STEPS)]


def make_firmware(case: str, target: str, batch: int, folder: Path) -> Path:
    """Build a model for a board, and link firmware.c with the archive."""
    options = Options("mnist", resolve(target), [batch])
    build(make_artifacts(case), folder, options)
    numbers = ",".join(map(str, (folder / "checkpoint").read_bytes()))
    text = f"static const unsigned char checkpoint[] = {{{numbers}}};\n"
    (folder / "checkpoint.h").write_text(text)
    _, flash, ram = BOARDS[target]
    memory = (DRIVERS / "firmware.ld").read_text().replace("FLASH_BEGIN", flash)
    (folder / "firmware.ld").write_text(memory.replace("RAM_BEGIN", ram))
    return link(
        [], [DRIVERS / "firmware.c"], options.platform, folder / "firmware.elf",
        kind="executable", include=[folder], size=True, threads=False, freestanding=True,
        flags=["-T", str(folder / "firmware.ld"), str(folder / "libmnist.a")],
    )  # fmt: skip


@needs_cc
@pytest.mark.skipif(not shutil.which(QEMU), reason=f"needs {QEMU}")
@pytest.mark.parametrize(
    ("case", "target", "batch"),
    [
        ("mlp", "cortex-m7", 8),
        ("mlp", "cortex-m4", 8),
        ("mlp", "cortex-m33", 8),
        ("mlp", "cortex-m55", 8),
        ("autoencoder", "cortex-m7", 1),
        ("ds_cnn", "cortex-m7", 1),
    ],
)
@shows("C", "Cortex-M4F, M7 and M33", "emulated")
@shows("C", "Cortex-M55 and M85", "emulated")
def test_a_board_trains_as_this_machine_does(
    case: str, target: str, batch: int, tmp_path: Path
) -> None:
    """With no system and no library, in static memory: losses equal this machine's to rounding."""
    program = make_firmware(case, target, batch, tmp_path / "board")
    words = [QEMU, "-M", BOARDS[target][0], "-nographic", "-semihosting", "-kernel", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    *lines, last = said.split()
    assert last == "done", said
    losses = [struct.unpack(">f", bytes.fromhex(line))[0] for line in lines]
    expected = train_natively(case, batch, tmp_path / "native")
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]


@pytest.mark.skipif(not shutil.which(NM), reason=f"needs {NM}")
@pytest.mark.parametrize("target", BARE)
@shows("C", "RV32IMAFC", "made")
def test_an_archive_needs_at_most_its_compilers_arithmetic(target: str, tmp_path: Path) -> None:
    build(make_artifacts("mlp"), tmp_path, Options("mnist", resolve(target), [8]))
    listed = [
        subprocess.check_output([NM, kind, "-j", tmp_path / "libmnist.a"], text=True).split()
        for kind in ("-u", "-U")
    ]
    needed, defined = ({line for line in lines if ":" not in line} for lines in listed)
    assert needed - defined == COMPILER.get(target, set())


@pytest.mark.skipif(not shutil.which("c++"), reason="needs c++")
def test_arduino_finds_a_library(tmp_path: Path) -> None:
    """With the archive where it looks for one of the core, and a sketch that compiles."""
    build(make_artifacts("mlp"), tmp_path, Options("mnist", resolve("cortex-m7"), [8]))
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
        build(GOLDENS / "mlp", Path("unused"), Options("mnist", platform, [8], 2))
    assert Options("mnist", platform, [8]).freestanding
    with pytest.raises(EngineError, match="no system, only archives"):
        link([], [], platform, Path("unused"), threads=False)

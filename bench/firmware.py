"""Sizes of libraries against what they are to be, and of programs for boards without a system.

firmware        a program that trains (tests/c/firmware.c) is linked for a board and runs in qemu:
                its flash without the checkpoint, its RAM without the stack, and the largest
                relative difference of its losses from those on this machine; --page replaces the
                rows of docs/microcontrollers.md
firmware.goals  libraries of one sample, stripped: their bytes, the most that they are to have, and
                the memory of a model beyond its parameters, gradients, moments and activations
firmware.published
                a model whose memory others have published, as a library for a Cortex-M7: its RAM
                without the stack, and its flash with all values

Needs ziglang and, for the first, the Debian packages qemu-system-arm and qemu-user-static.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.builds import DRIVERS, FIRST, MODELS, judge
from bench.rows import Bench, Cells, Option
from engine.artifacts import SGD, AdamW, CrossEntropyLoss, MSELoss, generate_artifacts
from engine.errors import InputError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph
from engine.graphs.offline.parameters import list_parameters
from engine.kernels.vocabulary.op import TensorType
from engine.models.images import build_autoencoder, build_mlp
from engine.models.initial import make_normal, make_zeros
from engine.models.mobilenets import STAGES, MobileNet
from engine.models.sound import build_ds_cnn
from engine.quantization.post_training import freeze_in_integers
from engine.tools.actions.device_checks import STACK
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.trimmed import binary
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.build import build
from engine.tools.trimmed.bundle import BUDGETED
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.link import link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import Platform, resolve

QEMU, QEMU_RISC_V = "qemu-system-arm", "qemu-riscv32-static"
STEPS = 4  # of firmware.c
# qemu's boards, and the addresses of their flash and RAM.  None is of RV32IMAFC: qemu's user mode
# runs the program, on a core without double precision and vectors.
BOARDS = {
    "cortex-m7": ("mps2-an500", "0", "0x20000000"),
    "cortex-m4": ("mps2-an386", "0", "0x20000000"),
    "cortex-m33": ("mps2-an505", "0x10000000", "0x38000000"),
    "cortex-m55": ("mps3-an547", "0", "0x20000000"),
    "cortex-m85": ("mps3-an547", "0", "0x20000000"),  # on the core of a Cortex-M55
    "rv32imafc": ("", "0x10000", "0x20000000"),
}
PLAIN_CPP = ("-std=c++17", "-Os", "-ffreestanding", "-fno-exceptions", "-fno-rtti", "-nostdinc++",
             "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-fno-sanitize=all", "-Wall",
             "-Wextra", "-Werror", "-pedantic")  # fmt: skip


@dataclass(frozen=True)
class Small:
    """A model that a microcontroller trains, and the samples of a step."""

    graph: Callable[[], Graph]
    batch: int
    what: str
    reconstructs: bool = False


MODELS_OF_BOARDS = {
    "mlp": Small(partial(build_mlp, (64,), hidden=(48,)), 8, "MLP 64-48-10"),
    "autoencoder": Small(build_autoencoder, 1, "autoencoder 64-64-8-64-64", reconstructs=True),
    "ds_cnn": Small(
        partial(build_ds_cnn, (1, 10, 49), channels=16, blocks=2),
        1,
        "DS-CNN, 16 channels, 2 blocks, 10x49",
    ),
}


@dataclass(frozen=True)
class Goal:
    """A kind of library, and the most bytes that it is to have; 0 where none are said."""

    target: str
    is_small: bool
    most: int


GOALS = {
    "mlp": (
        Goal("raspberrypi4", False, 48_000),
        Goal("raspberrypi4", True, 40_000),
        Goal("x86-64-v3", False, 64_000),
    ),
    "MobileNetV2": (Goal("raspberrypi4", False, 150_000), Goal("raspberrypi4", True, 100_000)),
    "MiniLM": (Goal("raspberrypi4", False, 100_000), Goal("raspberrypi4", True, 0)),
}


# --- boards


def write_model(name: str, folder: Path) -> int:
    """Write the artifacts of a model for boards; returns the number of its parameters."""
    model = MODELS_OF_BOARDS[name]
    graph = model.graph()
    folder.mkdir(parents=True, exist_ok=True)
    onnx_io.save(graph, folder / "forward.onnx")
    names = list_parameters(graph)
    generate_artifacts(
        str(folder / "forward.onnx"), requires_grad=names,
        loss=MSELoss() if model.reconstructs else CrossEntropyLoss(), optimizer=AdamW(),
        artifact_directory=folder,
    )  # fmt: skip
    return sum(graph.initializers[each].size for each in names)


def make_firmware(
    artifacts: Path | None,
    target: str,
    batch: int,
    folder: Path,
    decoder: DecoderOptions | None = None,
    *,
    is_cpp: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Build a model for a board, and link firmware.c with the archive; the program and the
    manifest of the build.

    artifacts: None for a decoder alone.
    is_cpp: whether board.cpp does the training, in C++ without exceptions or a library.
    """
    options = Options("mnist", resolve(target), PlanRequest([batch], decoder=decoder))
    manifest = build(artifacts, folder, options)
    content = (folder / "checkpoint").read_bytes() if artifacts else bytes(1)
    numbers = ",".join(map(str, content))
    text = f"static const unsigned char checkpoint[] = {{{numbers}}};\n"
    (folder / "checkpoint.h").write_text(text)
    machine, flash, ram = BOARDS[target]
    memory = (DRIVERS / "firmware.ld").read_text().replace("FLASH_BEGIN", flash)
    memory = memory.replace("DATA_REGION", "FLASH" if machine else "RAM")
    (folder / "firmware.ld").write_text(memory.replace("RAM_BEGIN", ram))
    program = link(
        [compile_cpp(folder, options.platform)] if is_cpp else [], [DRIVERS / "firmware.c"],
        options.platform, folder / "firmware.elf", kind="executable", include=[folder], size=True,
        defines={"STACK_BYTES": str(STACK), **({"TRAINS_ELSEWHERE": "1"} if is_cpp else {})},
        threads=False, freestanding=True,
        last=["-T", str(folder / "firmware.ld"), str(folder / "libmnist.a")],
    )  # fmt: skip
    return program, manifest


def compile_cpp(folder: Path, platform: Platform) -> bytes:
    """Return the object file of board.cpp, for the header in a folder; a warning is an error."""
    made = folder / "board.o"
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", *platform.zig.split()]
    words = [*PLAIN_CPP, f"-I{folder}", "-c", str(DRIVERS / "board.cpp"), "-o", str(made)]
    subprocess.run([*zig, *words], check=True)
    return made.read_bytes()


def run_firmware(program: Path, target: str) -> list[float]:
    """Return the losses that a program prints on its board in qemu.

    Raises:
        InputError: qemu is not here, or the program fails, and the message has what it printed.
    """
    board = BOARDS[target][0]
    words = [QEMU, "-M", board, "-nographic", "-semihosting", "-kernel", str(program)]
    if not board:
        words = [QEMU_RISC_V, "-cpu", "rv32,d=off,v=off", str(program)]
    if not shutil.which(words[0]):
        package = QEMU if board else "qemu-user-static"
        raise InputError(f"{words[0]} is not here; Debian's package {package} has it")
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    if done.returncode or said.split()[-1:] != ["done"]:
        raise InputError(f"the program for {target} fails with status {done.returncode}: {said}")
    return [struct.unpack(">f", bytes.fromhex(line))[0] for line in said.split()[:-1]]


def train_natively(artifacts: Path, batch: int, folder: Path) -> list[float]:
    """Return the losses of the steps of firmware.c on this machine."""
    build(artifacts, folder, Options("mnist", resolve("native"), PlanRequest([batch])))
    spec: Any = importlib.util.spec_from_file_location("mnist", folder / "mnist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trainer = module.Trainer(folder / "checkpoint")
    arrays: list[np.ndarray[Any, Any]] = []
    for port in trainer.state._handle.phases[0]["train"][0]:
        is_float = np.dtype(port["dtype"]) == np.float32
        places = np.arange(int(np.prod(port["shape"])))
        floats, labels = (places % 7).astype(np.float32) / np.float32(7), places % 2
        arrays.append((floats if is_float else labels.astype(np.int64)).reshape(port["shape"]))
    return [float(np.float32(trainer.step(*arrays))) for _ in range(STEPS)]


def count_memory(program: Path, target: str) -> tuple[int, int]:
    """Return the bytes of flash and of RAM of a program for a board, an ELF file of 32 bits.

    Flash has what the file has of each segment; RAM has the segments that run there, with what is
    zero at the start.
    """
    content = program.read_bytes()
    (begin,) = struct.unpack_from("<I", content, 28)
    size, count = struct.unpack_from("<2H", content, 42)
    flash = ram = 0
    for i in range(count):
        kind, _, at, _, held, taken = struct.unpack_from("<6I", content, begin + i * size)
        if kind == 1:  # loaded
            flash += held
            ram += taken if at >= int(BOARDS[target][2], 0) else 0
    return flash, ram


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each board."""
    model = MODELS_OF_BOARDS[name]
    with tempfile.TemporaryDirectory() as place:
        artifacts = Path(place, "artifacts")
        parameters = write_model(name, artifacts)
        expected = train_natively(artifacts, model.batch, Path(place, "native"))
        for target in options.targets:
            program, manifest = make_firmware(artifacts, target, model.batch, Path(place, target))
            losses = run_firmware(program, target)
            flash, ram = count_memory(program, target)
            flash -= (Path(place, target) / "checkpoint").stat().st_size
            areas = manifest["report"]["areas"]
            own = sum(size for area, size in areas.items() if area not in BUDGETED)
            yield (
                target, model.batch, parameters, flash / 1024, ram / 1024, own / 1024,
                judge(losses, expected, later=FIRST),
            )  # fmt: skip


def write_page(rows: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Replace the rows of these models and boards in a page."""
    lines = path.read_text("utf-8").splitlines()
    for name, cells in rows.items():
        for target, batch, parameters, flash, ram, own, worst in cells:
            begin = f"| {MODELS_OF_BOARDS[name].what} | {parameters:,} | {batch} | `{target}` |"
            row = f"{begin} {flash:.0f} KiB | {ram:.0f} KiB | {own:.1f} KiB | {worst} |"
            lines = [row if line.startswith(begin) else line for line in lines]
    path.write_text("\n".join(lines) + "\n", "utf-8")


# --- libraries


def measure_goals(name: str, _: Namespace) -> Iterator[Cells]:
    """Yield a row for each kind of library of a model, for steps of one sample."""
    with tempfile.TemporaryDirectory() as place:
        artifacts = Path(place, "artifacts")
        artifacts.mkdir()
        graph = MODELS_OF_BOARDS[name].graph() if name == "mlp" else MODELS[name].graph()
        write_artifacts(graph, artifacts)
        for goal in GOALS[name]:
            options = Options(
                name.lower(), resolve(goal.target), PlanRequest([1], size=goal.is_small)
            )
            report = build(artifacts, Path(place, "build"), options)["report"]
            own = sum(report["areas"][area] for area in BUDGETED)
            parts = report["parts"]
            yield (
                goal.target, "--size" if goal.is_small else "", report["library"] / 1000,
                goal.most / 1000 if goal.most else None,
                "" if not goal.most else "met" if report["library"] <= goal.most else "missed",
                parts["kernels"] / 1000, (parts["plans"] + parts["constants"]) / 1000,
                100 * (report["memory"] / own - 1),
            )  # fmt: skip


# --- models whose memory others have published


def build_narrow_mobilenet(size: int = 144, outputs: int = 2) -> Graph:
    """Return MobileNetV2 of width 0.35 for pictures of bytes, channels in eights, as in TinyEngine;
    its last convolution is as narrow: 448 channels.

    Source: https://github.com/mit-han-lab/mcunet, mbv2-w0.35.
    """

    def scale(channels: int) -> int:
        made = max(8, int(0.35 * channels + 4) // 8 * 8)
        return made + 8 * (made < 0.9 * 0.35 * channels)

    to = MobileNet(0)
    y = to.add_op("Mul", to.add_op("Cast", "x", to=1), to.add_number(1 / 255))
    y = to.add_unit(y, "features.0", 3, scale(32), 3, 2, activation="Clip")
    channels, at = scale(32), 1
    for expansion, co, blocks, stride in STAGES:
        for i in range(blocks):
            first = 1 if i else stride
            y = to.add_block(y, f"features.{at}", channels, scale(co), expansion, first)
            channels, at = scale(co), at + 1
    y = to.add_unit(y, f"features.{at}", channels, scale(1280), 1, activation="Clip")
    y = to.add_op("ReduceMean", y, axes=[2, 3], keepdims=0)
    to.add_scores(y, "classifier.1", scale(1280), outputs, make_normal(0.01), make_zeros)
    pictures = TensorType("u8", ("batch", 3, size, size))
    return to.make_graph("narrow_mobilenet", pictures, ("batch", outputs))


PUBLISHED: dict[str, Callable[[], Graph]] = {
    "mobilenet": build_narrow_mobilenet,
    "ds_cnn": partial(build_ds_cnn, (1, 10, 49), channels=64, blocks=4),
}


def measure_published(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for answers of a model in int8, for training its last layer, and for all."""
    graph = PUBLISHED[name]()
    made, last = freeze_in_integers(graph)
    uses: tuple[tuple[str, Graph, Sequence[str], Only], ...] = (
        ("answers, int8", made.graph, last, "inference"),
        ("trains the last layer, the rest int8", made.graph, last, "train"),
        ("trains all layers, float32", graph, list_parameters(graph), "train"),
    )
    for use, model, trained, only in uses:
        with tempfile.TemporaryDirectory() as place:
            artifacts = Path(place, "artifacts")
            artifacts.mkdir()
            onnx_io.save(model, artifacts / "forward.onnx")
            generate_artifacts(
                str(artifacts / "forward.onnx"), requires_grad=trained, loss=CrossEntropyLoss(),
                optimizer=SGD(), artifact_directory=artifacts,
            )  # fmt: skip
            wanted = Options(
                "net",
                resolve(options.target),
                PlanRequest([1], joined=only == "train", only=only, size=True),
            )
            out = Path(place, "build")
            report = build(artifacts, out, wanted)["report"]
            flash = binary.count_loaded((out / "libnet.a").read_bytes())
            values = (out / "checkpoint").stat().st_size
            areas, parts = report["areas"], report["parts"]
            yield (
                use, report["memory"] / 1000, areas["inputs and outputs"] / 1000,
                (flash + values) / 1000, parts["kernels"] / 1000,
            )  # fmt: skip


BENCHES = (
    Bench(
        "firmware",
        "flash and RAM of programs for microcontrollers, which train in qemu",
        {name: name for name in MODELS_OF_BOARDS},
        ("target", "batch", "parameters:,", "flash KiB:.0f", "RAM KiB:.0f", "runtime's RAM KiB:.1f",
         "losses"),
        measure,
        options=(Option("targets", tuple(BOARDS), "boards"),),
        page=write_page,
        document="docs/microcontrollers.md",
    ),
    Bench(
        "firmware.goals",
        "bytes of libraries of one sample, and the most that they are to have",
        {name: name for name in GOALS},
        ("target", "kind", "KB:.1f", "goal KB:.0f", "verdict", "kernels KB:.1f", "plans KB:.1f",
         "memory beside tensors %:.1f"),
        measure_goals,
    ),
    Bench(
        "firmware.published",
        "RAM and flash of models whose memory TinyEngine and TensorFlow Lite Micro have published",
        {name: name for name in PUBLISHED},
        ("use", "RAM kB:.0f", "of that inputs kB:.0f", "flash kB:.0f", "kernels kB:.0f"),
        measure_published,
        options=(Option("target", "cortex-m7", "to build for"),),
    ),
)  # fmt: skip

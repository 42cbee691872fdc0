"""Frozen layers in integers on other CPUs, run here by qemu's user mode."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.binaries.load import get_object
from engine.kernels.loops.integer_gemm import INTEGER_GEMM_WORDS, integer_gemm
from engine.kernels.vocabulary.integers import takes_squares
from engine.kernels.vocabulary.kernel import BIAS
from engine.kernels.vocabulary.op import MS, TensorType
from engine.models.catalog import find_architecture
from engine.models.named_model import make
from engine.plan.plan import KernelSpec
from engine.quantization import Quantization, quantize
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed import binary
from engine.tools.trimmed.build import build
from engine.tools.trimmed.link import link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.selftest import STEPS
from engine.tools.trimmed.targets import Platform, resolve
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS
from tests.support.selftests import LINE, run_selftest

EMULATED = "raspberrypi5"  # whose emulator runs programs for all 64-bit Arm CPUs
# LLVM's names of cores -> qemu's; the last one has i8mm.
CORES = {"cortex-a72": "cortex-a53", "cortex-a76": "neoverse-n1", "cortex-a710": "max,sve=off"}


def count_integers(code: bytes) -> dict[str, int]:
    """Count the instructions of an object for 64-bit Arm that sum products of 8-bit integers."""
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    three, lane = words & 0xFFE0FC00, words & 0xFFC0F400
    named = {"sdot": 0x4E809400, "usdot": 0x4E809C00, "smmla": 0x4E80A400, "usmmla": 0x4E80AC00}
    of_lane = {"sdot": 0x4F80E000, "usdot": 0x4F80F000}
    return {
        name: int((three == bits).sum() + (lane == of_lane.get(name)).sum())
        for name, bits in named.items()
    }


def run_products(core: str, folder: Path) -> tuple[list[bytes], str]:
    """Run small products on a core; return the kernels, and what the program printed."""
    folder.mkdir()
    platform, emulator = resolve(EMULATED, cpu=core, features="-sve"), find_emulator(EMULATED)
    assert emulator is not None
    kinds = [("u8", "u8"), ("i8", "i8"), ("u8", "i32"), ("i8", "i32")]
    specs = [KernelSpec(*integer_gemm(*kind)) for kind in kinds]
    kernels = [get_object(spec, platform.target) for spec in specs]
    squares = int(takes_squares(platform.target, 6, 8))
    lines = [
        *(f"#define PRODUCT_{x}_{y} {s.symbol}" for (x, y), s in zip(kinds, specs, strict=True)),
        f"#define TURNS {squares}",
        f"#define BIAS {BIAS}",
        INTEGER_GEMM_WORDS.write_defines(),
    ]
    (folder / "words.h").write_text("\n".join(lines))
    program = link(
        kernels, [DRIVERS / "integer_products.c"], platform, folder / "products",
        kind="executable", include=[folder], threads=False, compiler="zig",
    )  # fmt: skip
    cpu = replace(emulator, command=(emulator.command[0], "-cpu", CORES[core]))
    printed = cpu.run(program)
    assert re.fullmatch(r"12800 products, [0-9a-f]{8}\n", printed)
    return kernels, printed


@needs_emulator(EMULATED)
def test_products_of_all_sizes_are_exact(tmp_path: Path) -> None:
    """Of both signs, with shifts of columns and without, and to the last bit on every core."""
    counts, printed = {}, set()
    for core in CORES:
        kernels, text = run_products(core, tmp_path / core)
        counts[core] = [count_integers(kernel) for kernel in kernels]
        printed.add(text)
    assert len(printed) == 1
    assert not any(sum(each.values()) for each in counts["cortex-a72"])
    assert all(each["sdot"] > 50 and not each["usdot"] for each in counts["cortex-a76"])
    for n, each in enumerate(counts["cortex-a710"]):
        dot, square = ("sdot", "smmla") if n % 2 else ("usdot", "usmmla")
        assert {name for name, many in each.items() if many} == {dot, square}
        assert each[square] == 2 * 24  # of a tile of 6 rows and 16 columns, and of what is left


@pytest.fixture(scope="module")
def integer_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of a float head on layers of int8: dense, depthwise, 1x1."""
    shape = (1, 20, 16)
    graph = make(find_architecture("ds_cnn"), classes=4, input_shape=shape, seed=0).graph
    x = np.random.default_rng(0).standard_normal((8, *shape)).astype(np.float32)
    options = Quantization(keep_float=["classifier"], threads=1)
    made = quantize(onnx_io.to_bytes(graph), x, options)
    folder = tmp_path_factory.mktemp("backbone")
    generate_artifacts(
        onnx.load_from_string(made.to_bytes()),
        requires_grad=["classifier.weight", "classifier.bias"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=folder,
    )
    return folder


@pytest.mark.parametrize(
    "target",
    [
        *(
            pytest.param(name, marks=needs_emulator(name))
            for name in ("raspberrypi4", "raspberrypi5")
        ),
        *(
            pytest.param(name, marks=[needs_emulator(name), pytest.mark.whole])
            for name in ("raspberrypi3", "riscv64", "wasm32")
        ),
    ],
)
def test_frozen_layers_compute_in_integers(
    target: str, integer_backbone: Path, tmp_path: Path
) -> None:
    """As here, with sdot where the CPU has it."""
    build(
        integer_backbone,
        tmp_path,
        Options("mnist", resolve(target), PlanRequest([4]), compiler="zig"),
    )
    kernels = (tmp_path / "manifest.json").read_text("utf-8")
    assert all(f"integer_{name}" in kernels for name in ("conv", "depthwise", "gemm"))
    run_selftest(tmp_path, target)
    if target.startswith("raspberrypi"):
        counts = count_integers((tmp_path / "selftest").read_bytes())
        assert (counts["sdot"] > 50) == (target == "raspberrypi5")


@needs_emulator(EMULATED)
def test_one_library_computes_integers_as_each_cpu_does_best(
    integer_backbone: Path, tmp_path: Path
) -> None:
    """With the same losses on every core as a library for it alone, to the last bit."""
    emulator = find_emulator(EMULATED)
    assert emulator is not None

    def train(folder: Path, cpu: str) -> str:
        chosen = replace(emulator, command=(emulator.command[0], "-cpu", cpu))
        return chosen.run(folder / "selftest", folder / "checkpoint")

    every = {"all": resolve("aarch64").cpus, **{core: core for core in CORES}}
    for name, cpus in every.items():
        platform = resolve("aarch64", cpu=cpus)
        build(
            integer_backbone,
            tmp_path / name,
            Options("mnist", platform, PlanRequest([4]), compiler="zig"),
        )
    counts = count_integers((tmp_path / "cortex-a710/selftest").read_bytes())
    assert counts["usmmla"] >= 48
    assert counts["usdot"] > 20
    assert list(every["all"].split(",")) == ["cortex-a710", "cortex-a76", "generic"]
    made = set()
    for core, here in CORES.items():
        said = [train(tmp_path / name, here) for name in ("all", core)]
        taken = core if core in every["all"] else "generic"
        assert said[0].endswith(f"with code for {taken}\n")
        assert "passed" in said[0]
        losses = [[row[0] for row in LINE.findall(text)] for text in said]
        assert len(losses[0]) == STEPS
        assert losses[0] == losses[1]
        made.add(tuple(losses[0]))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("target", "cpus"),
    [
        ("macos-arm64", ["apple-m2", "apple-m1"]),
        ("ios-arm64", ["apple-a15", "apple-a13", "apple-a9"]),
    ],
)
def test_a_library_for_apple_has_the_integers_of_each_cpu(
    target: str, cpus: list[str], integer_backbone: Path, tmp_path: Path
) -> None:
    """It asks the system which one it runs on, and without a C library it has the last alone."""
    for freestanding in (False, True):
        folder = tmp_path / str(freestanding)
        options = Options(
            "mnist", resolve(target), PlanRequest([4]), static=True, freestanding=freestanding
        )
        build(integer_backbone, folder, options)
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        assert manifest["cpus"] == (cpus[-1:] if freestanding else cpus)
        words = [sys.executable, "-m", "ziglang", "ar", "x", "libmnist.a"]
        subprocess.run(words, cwd=folder, check=True)
        needs = binary.read(folder / "mnist.o").needs
        assert ("sysctlbyname" in needs) != freestanding
        objects = sorted(folder.glob("kernels*.o"))
        assert len(objects) == len(manifest["cpus"])
        for cpu, path in zip(manifest["cpus"], objects, strict=True):
            counts = count_integers(path.read_bytes())
            assert (counts["usmmla"] > 0) == (cpu in ("apple-m2", "apple-a15"))
            assert (counts["sdot"] + counts["usdot"] > 20) == (cpu != "apple-a9")


@pytest.fixture(scope="module")
def rounded_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of a float head on products of rows that are rounded to 8 bits: 4 bits, then 8."""
    rng, k, n, block = np.random.default_rng(0), 208, 72, 32
    constants = {
        "q4": rng.integers(0, 256, (n, -(-k // block), block // 2), np.uint8),
        "s4": rng.uniform(0.01, 0.02, n * -(-k // block)).astype(np.float32),
        "z4": rng.integers(0, 256, n * 4, np.uint8),
        "q8": rng.integers(0, 256, (n, -(-n // block), block), np.uint8),
        "s8": rng.uniform(0.001, 0.002, n * -(-n // block)).astype(np.float32),
        "w": rng.standard_normal((n, 4)).astype(np.float32),
    }
    sizes = {"N": n, "block_size": block, "accuracy_level": 4}
    nodes = [
        Node("MatMulNBits", ("x", "q4", "s4", "z4"), ("a",), {"K": k, "bits": 4, **sizes}, MS, "a"),
        Node("Relu", ("a",), ("r",), {}, "", "r"),
        Node("MatMulNBits", ("r", "q8", "s8"), ("b",), {"K": n, "bits": 8, **sizes}, MS, "b"),
        Node("MatMul", ("b", "w"), ("y",), {}, "", "head"),
    ]
    inputs = {"x": TensorType("f32", ("batch", k))}
    graph = Graph("rounded", inputs, ["y"], constants, nodes, {"": 17, MS: 1}, ir_version=10)
    graph.types = {"y": TensorType("f32", ("batch", 4))}
    folder = tmp_path_factory.mktemp("rounded")
    generate_artifacts(
        onnx.load_from_string(onnx_io.to_bytes(graph)),
        requires_grad=["w"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=folder,
    )
    return folder


@pytest.mark.parametrize(
    "target",
    [
        *(pytest.param(name, marks=needs_emulator(name)) for name in ("raspberrypi5", "wasm32")),
        *(
            pytest.param(name, marks=[needs_emulator(name), pytest.mark.whole])
            for name in ("raspberrypi4", "raspberrypi2", "riscv64")
        ),
    ],
)
def test_rows_are_rounded_and_multiplied_alike(
    target: str, rounded_backbone: Path, tmp_path: Path
) -> None:
    """With sdot, without, and by plain products of 16 bits."""
    build_rounded(rounded_backbone, tmp_path, resolve(target))
    run_selftest(tmp_path, target)


@needs_emulator(EMULATED)
def test_rows_are_multiplied_by_dot_products_of_unsigned_weights(
    rounded_backbone: Path, tmp_path: Path
) -> None:
    emulator = find_emulator(EMULATED)
    assert emulator is not None
    made = []
    for core, here in CORES.items():
        build_rounded(rounded_backbone, tmp_path / core, resolve("aarch64", cpu=core))
        chosen = replace(emulator, command=(emulator.command[0], "-cpu", here))
        said = chosen.run(tmp_path / core / "selftest", tmp_path / core / "checkpoint")
        made.append([row[0] for row in LINE.findall(said)])
    assert len(made[0]) == STEPS
    assert made[0] == made[1] == made[2]
    assert count_integers((tmp_path / "cortex-a710/selftest").read_bytes())["usdot"] > 10


def build_rounded(artifacts: Path, folder: Path, platform: Platform) -> None:
    """Build a model whose rows are rounded by blocks, with its self-test."""
    build(artifacts, folder, Options("mnist", platform, PlanRequest([4]), compiler="zig"))
    kernels = (folder / "manifest.json").read_text("utf-8")
    assert all(f"{name}_blocks" in kernels for name in ("round", "integer"))

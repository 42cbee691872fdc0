"""Trimmed builds of other platforms, run here: by qemu's user mode, Wine, and Node.

A self-test trains a few steps and compares its losses with this machine's.  Beyond ziglang it needs
the Debian packages qemu-user-static, wine64, nodejs and C libraries for other CPUs; `.ci/run`
installs them and passes --no-skips, without which a test that lacks one is counted and skipped.
`python -m bench builds` does it for every target, model and kind of build.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import builds
from engine.artifacts import LossType, OptimType, SparseUpdate, generate_artifacts
from engine.base.plan_options import PlanOptions, Precision
from engine.graphs.passes import attention_match
from engine.kernels.binaries.load import get_object
from engine.kernels.loops.gemm import GEMM_WORDS, gemm, gemm_mixed
from engine.kernels.vector_ir.tile import RUN
from engine.kernels.vocabulary.kernel import Template
from engine.models.recurrent import build_gru, build_lstm
from engine.plan.plan import KernelSpec
from engine.tools import cli
from engine.tools.benchmark.workload import write_artifacts
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed import binary, opset
from engine.tools.trimmed.build import build, build_library
from engine.tools.trimmed.generate import RUNTIME
from engine.tools.trimmed.link import link
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.selftest import RATE, STEPS
from engine.tools.trimmed.targets import Platform, resolve
from tests.support.builds import LIBC, compile_c, make_build_for, needs_cc, run
from tests.support.needs import needs_emulator
from tests.support.pairs import count_half_multiply_adds, count_squares
from tests.support.places import DRIVERS, GOLDENS
from tests.support.selftests import LINE, run_selftest
from tests.support.shown import shows

KIB = 1024
PLATFORMS = [
    pytest.param(name, marks=needs_emulator(name))
    for name in (
        "raspberrypi1",
        "raspberrypi2",
        "raspberrypi3",
        "raspberrypi4",
        "riscv64",
        "windows-x86_64",
        "wasm32",
    )
]
SHARED = [row for row in PLATFORMS if row.values[0] in ("raspberrypi4", "windows-x86_64")]


def selftest(case: str, target: str, threads: int = 1, *, size: bool = False) -> list[float]:
    """The losses of the self-test of a golden model's build."""
    return run_selftest(make_build_for(target, case, threads, size=size), target)


@pytest.mark.parametrize("target", PLATFORMS)
@shows("C", "Linux, AArch64", "emulated")
@shows("C", "Linux, ARMv6 and ARMv7", "emulated")
@shows("C", "Linux, RISC-V 64", "emulated")
@shows("C", "Windows, x86-64", "emulated")
@shows("C", "WebAssembly, WASI", "emulated")
def test_a_build_trains_as_this_machine_does(target: str) -> None:
    selftest("mlp", target)


@pytest.mark.parametrize(
    "target", [row for row in PLATFORMS if str(row.values[0]).startswith("raspberrypi")]
)
def test_products_of_all_sizes(target: str, tmp_path: Path) -> None:
    """Every register tile, in order of loads and products as it is for this CPU."""
    run_products(resolve(target), target, gemm, ("f32",), tmp_path)


@needs_emulator("raspberrypi5")
def test_products_of_bfloat16_of_all_sizes(tmp_path: Path) -> None:
    """By squares of rows and columns, and by pairs where these do not fill one."""
    platform = resolve("raspberrypi5", features="+bf16")
    params = ("f32", "f32", "f32", "f32", "bf16")
    ran = run_products(platform, "raspberrypi5", gemm_mixed, params, tmp_path, cpu="max")
    assert sum(map(count_squares, ran.kernels)) > 100


@needs_emulator("raspberrypi5")
def test_products_of_float16_have_the_bits_of_the_portable_variant(tmp_path: Path) -> None:
    """By multiply-adds of vectors of float16, and here by rounding sums of float64."""
    params, made = ("f32", "f32", "f32", "f32", "f16"), []
    for target in ("raspberrypi5", "x86-64-v2"):
        (tmp_path / target).mkdir()
        made.append(
            run_products(
                resolve(target), target, gemm_mixed, params, tmp_path / target,
                cpu="cortex-a76" * (target == "raspberrypi5"), error=(RUN / 2 + 4) / 2**11,
            )
        )  # fmt: skip
    assert made[0].printed == made[1].printed
    assert sum(map(count_half_multiply_adds, made[0].kernels)) > 500


@dataclass(frozen=True)
class Ran:
    """The objects of kernels of small products, and what the program that ran them printed."""

    kernels: list[bytes]
    printed: str


def run_products(
    platform: Platform,
    emulated: str,
    template: Template,
    params: tuple[str, ...],
    folder: Path,
    cpu: str = "",
    error: float = 0,
) -> Ran:
    """Run small products by kernels of a template.

    emulated: the target whose emulator runs them.  cpu: as of qemu, or the emulator's own.
    error: how wrong a sum may be, relative to the sum of its products' absolute values.
    """
    emulator = find_emulator(emulated)
    assert emulator is not None
    kinds = ((0, 0), (0, 1), (1, 0))
    specs = [KernelSpec(*template(*params, *kind)) for kind in kinds]
    kernels = [get_object(spec, platform.target) for spec in specs]
    names = [
        f"#define PRODUCT_{a}_{b} {s.symbol}\n" for (a, b), s in zip(kinds, specs, strict=True)
    ]
    names.append(f"#define ERROR {error}\n")
    (folder / "words.h").write_text("".join(names) + GEMM_WORDS.write_defines())
    program = link(
        kernels, [DRIVERS / "products.c"], platform, folder / "products",
        kind="executable", include=[folder], threads=False, compiler="zig",
    )  # fmt: skip
    if cpu:
        emulator = replace(emulator, command=(emulator.command[0], "-cpu", cpu))
    printed = emulator.run(program)
    assert re.fullmatch(r"\d+ products, [0-9a-f]{8}\n", printed)
    return Ran(kernels, printed)


@needs_cc
@needs_emulator("raspberrypi2")
@pytest.mark.parametrize(
    ("flags", "define"),
    [
        (("-target", "arm-linux-musleabi", "-mfloat-abi=softfp", "-static"), "EDGEGRAD_BIONIC"),
        (("-target", "arm-linux-gnueabihf"), "EDGEGRAD_FREESTANDING"),
    ],
)
def test_conversions_without_an_instruction_round_as_ones_with(
    flags: Sequence[str], define: str, tmp_path: Path
) -> None:
    """Of 64-bit integers on a 32-bit Arm, by the names of Android and of the Arm ABI."""
    driver = DRIVERS / "conversions.c"
    here = compile_c(tmp_path / "here", "-O1", driver, "-lm")
    zig = (sys.executable, "-m", "ziglang", "cc", *flags, "-mcpu=cortex_a7", "-O2")
    words = ("-DHELPERS", f"-D{define}", f"-I{RUNTIME}", driver, "-lm", "-o", tmp_path / "there")
    run(*zig, *words, **os.environ)
    emulator = find_emulator("raspberrypi2")
    assert emulator is not None
    said = emulator.run(tmp_path / "there")
    assert said == run(here)
    assert len(said.splitlines()) == 4000


@needs_emulator("raspberrypi4")
@pytest.mark.parametrize(("case", "threads"), [("mlp", 2), ("cnn", 1)])
def test_an_aarch64_build_trains_on_threads_and_on_images(case: str, threads: int) -> None:
    selftest(case, "raspberrypi4", threads)


@needs_emulator("raspberrypi4")
def test_an_aarch64_build_convolves_by_winograds_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In all three directions, on 2 threads."""
    WORKLOADS["cnn"].write(tmp_path / "cnn", 2)
    words = ["--target", "raspberrypi4", "--batch", "2", "--threads", "2"]
    assert cli.main(["plan", str(tmp_path / "cnn"), *words]) == 0
    plan = capsys.readouterr().out
    assert "fwd winograd_f32(" in plan.replace("|", " ")
    assert "bwd winograd_f32(" in plan.replace("|", " ")
    assert "bwd winograd_dw_f32(" in plan.replace("|", " ")
    options = Options("mnist", resolve("raspberrypi4"), PlanRequest([2], 2), compiler="zig")
    build(tmp_path / "cnn", tmp_path / "out", options)
    run_selftest(tmp_path / "out", "raspberrypi4")


@needs_emulator("raspberrypi4")
def test_an_aarch64_build_trains_with_attention_as_one_op(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attention_match, "FEW", 0)  # of scores, which this model has few of
    options = Options("mnist", resolve("raspberrypi4"), PlanRequest([4]), compiler="zig")
    build(GOLDENS / "transformer", tmp_path, options)
    assert "attention_grad" in (tmp_path / "manifest.json").read_text("utf-8")
    assert (tmp_path / "libmnist.so").stat().st_size < 250 * KIB
    run_selftest(tmp_path, "raspberrypi4")


def make_recurrence(kind: str, folder: Path) -> Path:
    """Artifacts of a network around a GRU or an LSTM, with more than 256 elements a value."""
    build_model = {"gru": build_gru, "lstm": build_lstm}[kind]
    folder.mkdir()
    return write_artifacts(build_model(6, 12, 40), folder)


@needs_emulator("raspberrypi5")
@pytest.mark.parametrize(
    ("case", "precision", "features", "cpu"),
    [
        ("transformer", "bf16", "", "cortex-a76"),
        ("transformer", "f16", "", "cortex-a76"),
        ("transformer", "bf16", "+bf16", "max"),
        ("cnn", "bf16", "+bf16", "max"),
        ("cnn", "f16", "", "cortex-a76"),
        ("gru", "f16", "", "cortex-a76"),
        ("lstm", "f16", "", "cortex-a76"),
    ],
)
def test_an_aarch64_build_trains_in_16_bits(
    case: str, precision: Precision, features: str, cpu: str, tmp_path: Path
) -> None:
    """With products of bfloat16 where the target has them, which an older CPU refuses."""
    platform, emulator = resolve("raspberrypi5", features=features), find_emulator("raspberrypi5")
    assert emulator is not None
    planning = PlanOptions(precision=precision)
    options = Options("mnist", platform, PlanRequest([4], planning=planning), compiler="zig")
    is_recurrent = case in ("gru", "lstm")
    source = make_recurrence(case, tmp_path / case) if is_recurrent else GOLDENS / case
    build(source, tmp_path, options)
    if is_recurrent:  # R is laid out as factors: the walk multiplies them, not X and W alone
        assert "gemm_pack_f32_0_f16" in (tmp_path / "manifest.json").read_text("utf-8")
    program, checkpoint = tmp_path / "selftest", tmp_path / "checkpoint"
    assert (count_squares(program.read_bytes()) > 100) == bool(features)
    assert (count_half_multiply_adds(program.read_bytes()) > 100) == (precision == "f16")
    if features:
        with pytest.raises(RuntimeError, match="this CPU lacks bf16"):
            emulator.run(program, checkpoint)
    said = replace(emulator, command=(emulator.command[0], "-cpu", cpu)).run(program, checkpoint)
    assert "passed" in said
    assert len(LINE.findall(said)) == STEPS


@needs_emulator("raspberrypi4")
def test_an_aarch64_build_trains_channels_of_a_convolution(tmp_path: Path) -> None:
    update = SparseUpdate(biases=True, channels={"[28].weight": 0.5})
    generate_artifacts(
        GOLDENS / "cnn/forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
        artifact_directory=tmp_path / "artifacts", update=update,
    )  # fmt: skip
    options = Options("mnist", resolve("raspberrypi4"), PlanRequest([4]), compiler="zig")
    build(tmp_path / "artifacts", tmp_path / "out", options)
    run_selftest(tmp_path / "out", "raspberrypi4")


@needs_emulator("raspberrypi4")
def test_an_aarch64_build_of_joined_steps_trains_alike(tmp_path: Path) -> None:
    """As a build of its own, and as a plan for a library of ops; to the last bit as two calls."""
    platform, case = resolve("raspberrypi4"), GOLDENS / "mlp"
    build(
        case,
        tmp_path / "own",
        Options("mnist", platform, PlanRequest([8], joined=True), compiler="zig"),
    )
    assert run_selftest(tmp_path / "own", "raspberrypi4") == selftest("mlp", "raspberrypi4")
    library = tmp_path / "own" / "libmnist.so"
    assert (
        library.stat().st_size
        < make_build_for("raspberrypi4", "mlp").joinpath(library.name).stat().st_size + KIB
    )
    config = tmp_path / "required_operators.config"
    assert cli.main(["ops", str(case), "-o", str(config)]) == 0
    build_library(
        opset.read(config),
        [],
        tmp_path,
        Options("mnist", platform, PlanRequest([8]), compiler="zig"),
    )
    words = ["plan", str(case), "--target", "raspberrypi4", "--batch", "8", "--ops", str(config)]
    plans = tmp_path / "mnist.plan", tmp_path / "joined.plan"
    assert cli.main([*words, "-o", str(plans[0])]) == 0
    assert cli.main([*words, "-o", str(plans[1]), "--joined"]) == 0
    rest = (case / "checkpoint", str(STEPS), str(RATE))
    apart, joined = (train("raspberrypi4", tmp_path, *rest, p, plan=True) for p in plans)
    assert joined == apart


@needs_emulator("windows-x86_64")
def test_a_windows_build_trains_on_threads() -> None:
    selftest("mlp", "windows-x86_64", 2)


def test_a_library_for_windows_has_nothing_of_the_compilers_library() -> None:
    """As that is one object of 60 KB; memcpy, memset, strlen and stack probes are its own."""
    sizes = [
        (make_build_for("windows-x86_64", "mlp", threads) / "mnist.dll").stat().st_size
        for threads in (1, 2)
    ]
    assert sizes[0] < 72 * KIB
    assert sizes[1] < 96 * KIB


@needs_emulator("raspberrypi4")
def test_a_build_for_size_trains_alike() -> None:
    selftest("mlp", "raspberrypi4", size=True)


@pytest.mark.parametrize(("case", "most"), [("mlp", 51 * KIB), ("cnn", 72 * KIB)])
def test_aarch64_libraries_are_small_and_need_libc_alone(
    case: str, most: int, tmp_path: Path
) -> None:
    """As the cross compiler links it, without the sections that ziglang aligns to pages."""
    options = Options(
        "mnist", resolve("raspberrypi4"), PlanRequest([8]), compiler="aarch64-linux-gnu-gcc"
    )
    build(GOLDENS / case, tmp_path, options)
    library = tmp_path / "libmnist.so"
    assert library.stat().st_size <= most
    assert binary.read(library).needs <= LIBC


def train(target: str, folder: Path, *arguments: str | Path, plan: bool = False) -> list[float]:
    """The losses of a program outside the build that uses its shared library."""
    platform, emulator = resolve(target), find_emulator(target)
    assert emulator is not None
    program = link(
        [], [DRIVERS / "train.c"], platform, folder / platform.file_name("executable", "train"),
        kind="executable", include=[folder], defines={"PLAN": ""} if plan else {}, threads=False,
        compiler="zig", flags=[f"-L{folder}", "-lmnist"],
    )  # fmt: skip
    return [float.fromhex(line) for line in emulator.run(program, *arguments).split()]


@pytest.mark.parametrize("target", SHARED)
def test_a_program_of_the_shared_library_trains(target: str) -> None:
    """Outside the build: a program linked with -lmnist computes what the self-test does."""
    folder = make_build_for(target, "mlp")
    losses = train(target, folder, folder / "checkpoint", str(STEPS), str(RATE))
    assert losses == pytest.approx(selftest("mlp", target), rel=1e-7)


@pytest.mark.parametrize("target", SHARED)
def test_a_library_of_ops_trains_a_plan(target: str, tmp_path: Path) -> None:
    config = tmp_path / "required_operators.config"
    assert cli.main(["ops", str(GOLDENS / "mlp"), "-o", str(config)]) == 0
    options = Options("mnist", resolve(target), PlanRequest([8]), compiler="zig")
    build_library(opset.read(config), [], tmp_path, options)
    words = [str(GOLDENS / "mlp"), "--target", target, "--batch", "8", "--ops", str(config)]
    assert cli.main(["plan", *words, "-o", str(tmp_path / "mnist.plan")]) == 0
    arguments = (GOLDENS / "mlp" / "checkpoint", str(STEPS), str(RATE))
    trained = train(target, tmp_path, *arguments, tmp_path / "mnist.plan", plan=True)
    assert trained == pytest.approx(
        train(target, make_build_for(target, "mlp"), *arguments), rel=2e-6
    )


def test_the_matrix_of_builds_makes_its_page(tmp_path: Path) -> None:
    """Of one target and one model; a second run makes nothing."""
    document = tmp_path / "page.md"
    words = ["builds", "native", "--models", "mlp", "--folder", str(tmp_path)]
    assert bench.main([*words, "--document", str(document)]) == 0
    text = document.read_text("utf-8")
    assert len(re.findall(r"\| native \| \d+ KiB, \d+ s, equal \|", text)) == 3
    assert bench.main([*words, "--document", str(document)]) == 0
    assert document.read_text("utf-8") == text

    # A piece replaces its own rows alone.
    kept = "| riscv64 | 64 KiB, 4 s, equal |  |  |  |  | 1a2b3c4, 2026-01-01 |"
    old = [kept if line.startswith("| riscv64 ") else line for line in text.splitlines()]
    document.write_text("\n".join(old).replace("equal |", "old |", 1), "utf-8")
    assert bench.main([*words, "--kinds", "size", "--document", str(document)]) == 0
    text = document.read_text("utf-8")
    assert text.count(kept) == 3
    assert len(re.findall(r"\| native \| \d+ KiB, \d+ s, equal \|", text)) == 2


def test_verdicts() -> None:
    for losses, later, verdict in (
        ([1.0, 2.0], 1e-5, "equal"),
        ([1.0, 2.000002], 1e-5, "1e-06"),
        ([1.0, 2.01], 1e-2, "5e-03"),
        ([1.0, 2.01], 1e-3, "WRONG: 5e-03"),
        ([1.001, 2.0], 1e-2, "WRONG: 1e-03"),
        ([1.0], 1e-2, "WRONG: 1 losses"),
        ([1.0, float("nan")], 1e-2, "WRONG: nan"),
    ):
        assert builds.judge(losses, [1.0, 2.0], later=later) == verdict


def test_the_bound_of_later_losses_is_what_rounding_does_to_the_engine(tmp_path: Path) -> None:
    """The statistics of a batch norm over few values make much of it; linear layers do not."""
    bounds = {}
    for name in ("mlp", "MobileNetV2"):
        (tmp_path / name).mkdir()
        write_artifacts(builds.MODELS[name].graph(), tmp_path / name)
        expected = builds.expect(tmp_path / name, 2, closed=False)
        assert expected.losses == builds.compute_engine_losses(tmp_path / name, 2, closed=False)
        bounds[name] = expected.later
    assert bounds["mlp"] == builds.FIRST
    assert 1e-3 < bounds["MobileNetV2"] < 5e-2


@needs_emulator("wasm32")
def test_webassembly_rounds_as_a_cpu_without_fused_multiply_adds() -> None:
    """Its losses differ from this machine's, and are equal to SSE's to the last bit."""
    if not find_emulator("x86-64-v2"):
        pytest.skip("needs an x86-64 machine")
    assert selftest("cnn", "wasm32") == selftest("cnn", "x86-64-v2")

"""Shipped kernels: levels chosen by features, libraries by digest, results by the set alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.base.plan_options import PlanOptions
from engine.errors import EngineError, FileError, PlanError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries import load, shipped, source
from engine.kernels.compiler import emit
from engine.kernels.machine import levels
from engine.kernels.machine.hosts import find_host
from engine.kernels.machine.levels import LEVELS
from engine.kernels.machine.target import Target
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import Kernel, KernelSpec
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.dev import ship, zoo
from engine.tools.dev.case_graphs import list_cases
from engine.tools.trimmed import binary
from engine.tools.trimmed.kernel_set import find_kernel_set
from engine.tools.trimmed.opset import OpSet
from tests.support.places import GOLDENS

MODELS = ("mlp", "cnn")
HERE = levels.list_levels()
needs_bf16 = pytest.mark.skipif(
    "x86-64-v4-bf16" not in [level.name for level in HERE], reason="needs a CPU with AVX512_BF16"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shipped kernels for this machine, enough for two models, and an interpreter for the
    rest.
    """
    out = tmp_path_factory.mktemp("shipped")
    used = zoo.list_kernels(
        plan
        for name in MODELS
        for precision in ("f32", "bf16")
        for plan in zoo.of_golden(GOLDENS / name, precision)
    )
    rest = {
        KernelSpec("formula", ("real",)),
        KernelSpec("reduce_rows", ("f32", "sum", "x", "total", "-")),
    }
    ship.ship_kernels(used | rest, HERE[:1], sys.platform, out)
    return out


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those kernels are the ones of this installation."""
    monkeypatch.setattr(shipped, "FOLDER", folder)


def trained(name: str) -> tuple[bytes, Module]:
    """The parameters of a golden model after three steps, and its module."""
    trace = np.load(GOLDENS / name / "trace.npz")
    state = CheckpointState.load_checkpoint(GOLDENS / name / "checkpoint")
    module = Module(GOLDENS / name / "training_model.onnx", state, threads=2)
    optimizer = Optimizer(GOLDENS / name / "optimizer_model.onnx", module)
    for step in range(3):
        module(trace["x"][step], trace["y"][step])
        optimizer.step()
        module.lazy_reset_grad()
    return state.regions["param"].tobytes(), module


# --- levels


def test_a_level_is_chosen_by_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "name_machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    here = [level for level in LEVELS if level.arch == "x86_64"]
    known = {name for level in here for name in level.needs | level.also}

    def chosen(lacking: str) -> list[str]:
        actual = {name: name not in lacking.split() for name in known}
        monkeypatch.setattr(levels, "list_features", lambda: actual)
        return [level.name for level in levels.list_levels()]

    assert chosen("") == [
        "x86-64-v4-bf16", "x86-64-v4-vnni", "x86-64-v4", "x86-64-v3-vnni", "x86-64-v3", "x86-64-v2",
    ]  # fmt: skip
    no_vex = "AVXVNNI"
    v3 = ["x86-64-v3", "x86-64-v2"]
    assert chosen(f"AVX512BF16 {no_vex}") == ["x86-64-v4-vnni", "x86-64-v4", *v3]
    assert chosen(f"AVX512BF16 AVX512VNNI {no_vex}") == ["x86-64-v4", *v3]
    assert chosen("AVX512BW") == ["x86-64-v3-vnni", *v3]  # Alder Lake
    assert chosen(f"AVX512BW {no_vex}") == v3
    assert chosen("FMA3") == ["x86-64-v2"]
    assert chosen("BMI2") == ["x86-64-v2"]
    assert chosen("SSE42") == []
    old = {name: True for level in here for name in level.needs}  # NumPy 2.3 knows no BMI2
    monkeypatch.setattr(levels, "list_features", lambda: old)
    assert levels.list_levels()[0].name == "x86-64-v4-bf16"


@pytest.mark.parametrize(
    ("features", "best"),
    [
        ("ASIMD", "aarch64"),  # Cortex-A72, of the Raspberry Pi 4
        ("ASIMD ASIMDHP ASIMDDP", "aarch64-fp16"),  # Cortex-A76, of the Raspberry Pi 5
        ("ASIMD ASIMDHP ASIMDDP ASIMDBF16", "aarch64-bf16"),
        ("ASIMD ASIMDHP ASIMDDP ASIMDBF16 ASIMDI8MM", "aarch64-i8mm"),  # Neoverse V1 and N2
        ("ASIMD ASIMDHP ASIMDDP ASIMDI8MM", "aarch64-fp16"),
        ("ASIMD ASIMDBF16", "aarch64"),
        ("", ""),
    ],
)
def test_a_level_of_arm_is_chosen_by_features(
    features: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "name_machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(levels, "list_features", lambda: dict.fromkeys(features.split(), True))
    assert [level.name for level in levels.list_levels()][:1] == [best][: len(best)]


@pytest.mark.parametrize(
    ("row", "words", "name", "is_there"),
    [
        ("flags\t\t", "fpu avx512_vnni avx512_bf16", "AVX512BF16", True),
        ("flags\t\t", "fpu avx512_vnni", "AVX512BF16", False),
        ("flags\t\t", "fpu avx2 avx_vnni", "AVXVNNI", True),
        ("flags\t\t", "fpu avx512_vnni", "AVXVNNI", False),
        ("Features\t", "fp asimd asimdhp asimddp bf16", "ASIMDBF16", True),
        ("Features\t", "fp asimd asimdhp asimddp", "ASIMDBF16", False),
        ("Features\t", "fp asimd asimdhp asimddp i8mm", "ASIMDI8MM", True),
        ("model name\t", "bf16", "ASIMDBF16", False),
    ],
)
def test_linux_names_what_numpy_does_not_know(
    row: str, words: str, name: str, is_there: bool, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\n{row}: {words}\nbugs\t\t:\n\nprocessor\t: 1\n", "utf-8")
    assert levels.read_words(str(path))[name] == is_there
    assert levels.read_words(str(tmp_path / "none")) == {}


def test_a_library_has_what_its_level_adds() -> None:
    rows = {level.name: (level.kinds, len(level.chain)) for level in LEVELS}
    assert rows == {
        "x86-64-v4-bf16": (("bf16",), 3),
        "x86-64-v4-vnni": (("i8",), 2),
        "x86-64-v4": (("f32", "i8"), 1),
        "x86-64-v3-vnni": (("i8",), 2),
        "x86-64-v3": (("f32", "i8"), 1),
        "x86-64-v2": (("f32", "i8"), 1),
        "apple-m1": (("f32", "i8", "f16"), 1),
        "aarch64-i8mm": (("i8",), 4),
        "aarch64-bf16": (("bf16",), 3),
        "aarch64-fp16": (("i8", "f16"), 2),
        "aarch64": (("f32", "i8"), 1),
    }


EXTENDED = [level for level in LEVELS if level.base is not None]


@pytest.mark.parametrize("level", EXTENDED, ids=lambda level: level.name)
def test_kernels_of_other_kinds_are_those_of_the_base(level: levels.Level) -> None:
    """So that the library of a level need not have them."""
    multiply = ("gemm", "conv", "conv_dw", "winograd", "depthwise", "lstm", "quantised_dots")
    wanted = {s.template: s for s in ship.list_kernels() if ship.name_kind(s) == "f32"}
    chosen = [wanted[name] for name in (*multiply, "map", "softmax_rows", "layer_norm")]
    assert level.base is not None
    targets = level.make_target("linux"), level.base.make_target("linux")
    own, base = (load.get_codes(chosen, target, load.OBJECT) for target in targets)
    assert own == base


INSTRUCTIONS = {  # by level, of kernels of a kind
    "x86-64-v4-bf16": ("bf16", "vdpbf16ps"),
    "x86-64-v4-vnni": ("i8", "vpdpbusd"),
    "x86-64-v3-vnni": ("i8", r"\{vex\}\s+vpdpbusd\s.*%ymm"),  # in the encoding of AVX2
    "aarch64-i8mm": ("i8", "usmmla"),
    "aarch64-bf16": ("bf16", "bfmmla"),
    "aarch64-fp16": ("f16", r"fmla\s+v\d+\.8h"),
}


@pytest.mark.parametrize("level", EXTENDED, ids=lambda level: level.name)
def test_products_use_the_instructions_of_the_level(level: levels.Level) -> None:
    kind, instruction = INSTRUCTIONS[level.name]
    template = "integer_gemm" if kind == "i8" else "gemm_mixed"
    specs = [s for s in ship.list_kernels() if (s.template, ship.name_kind(s)) == (template, kind)]
    assert level.base is not None
    for each, is_wanted in ((level, True), (level.base, False)):
        target = each.make_target("linux")
        module = llvm.parse_bitcode(load.get_bitcode(specs[0], target), llvm.create_context())
        text = emit.make_machine(target).emit_assembly(module)
        assert (re.search(instruction, text) is not None) == is_wanted


def test_kernels_stay_within_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, least = HERE
    monkeypatch.setenv("EDGEGRAD_KERNELS", "native")
    monkeypatch.setenv("EDGEGRAD_LEVEL", least.name)
    assert levels.list_levels() == [least]
    chosen = source.choose_current()
    assert chosen.target == least.make_target() != find_host()
    assert chosen.name == f"native {least.name}"
    monkeypatch.setenv("EDGEGRAD_LEVEL", "x86-64-v9")
    wanted = ", ".join(level.name for level in HERE)
    with pytest.raises(EngineError, match=f"EDGEGRAD_LEVEL='x86-64-v9'.*can run: {wanted}"):
        source.choose_current()


@pytest.mark.parametrize("system", levels.SYSTEMS)
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_levels_compile_for_every_system(level: levels.Level, system: str) -> None:
    target = level.make_target(system)
    assert load.compile_kernel(KernelSpec("softmax_rows", ("f32", 0)), target)
    assert target.arch == level.arch


# --- what is shipped


def test_the_zoo_is_complete() -> None:
    """`python -m engine.tools.dev.zoo` collects what the plans of all known models use."""
    have = set(ship.list_kernels())
    rows = list_cases()
    some = rows if len(rows) < 50 else rows[:: len(rows) // 50]
    wanted = zoo.list_kernels(plan for case in some for plan in zoo.of_case(case))
    wanted |= zoo.list_kernels(plan for path in zoo.list_goldens() for plan in zoo.of_golden(path))
    assert not wanted - have, "run python -m engine.tools.dev.zoo"
    assert {*ship.ALWAYS, *find_kernel_set(OpSet(all_if_none=True))} <= have
    assert [s for s in have if s.template not in list_templates()] == []


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_library_needs_no_other(level: levels.Level, tmp_path: Path) -> None:
    ship.ship_kernels([], [level], level.systems[0], tmp_path)
    manifest = json.loads((tmp_path / shipped.MANIFEST).read_text("utf-8"))
    made = binary.read(tmp_path / manifest["files"][level.name]["file"])
    assert set(made.exports) == {shipped.ENTRY}
    assert made.machine == level.arch


# --- results


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("here")
def test_shipped_kernels_compute_what_compiled_ones_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = {}
    for mode in ("shipped", "auto"):
        monkeypatch.setenv("EDGEGRAD_KERNELS", mode)
        actual[mode], module = trained(name)
        assert module.session.memory.kernels.name.startswith(f"{mode} {HERE[0].name} ")
        assert module.session.memory.kernels.name in str(module.plan(*_shapes(name)))
    compiled = source.KernelSet("compiled for the level", HERE[0].make_target())
    monkeypatch.setattr(source, "choose_current", lambda *_: compiled)
    assert actual["shipped"] == actual["auto"] == trained(name)[0]


@pytest.mark.usefixtures("here")
def test_a_profile_needs_shipped_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    trace = np.load(GOLDENS / "mlp" / "trace.npz")
    profile = trained("mlp")[1].profile(trace["x"][0], trace["y"][0], repeats=1)
    assert profile.total.seconds > 0
    assert profile.roofline.flops > 0


def _shapes(name: str) -> list[tuple[int, ...]]:
    trace = np.load(GOLDENS / name / "trace.npz")
    return [trace["x"][0].shape, trace["y"][0].shape]


@pytest.mark.usefixtures("here")
def test_a_module_keeps_its_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    _, module = trained("mlp")
    kernels = module.session.memory.kernels
    monkeypatch.setenv("EDGEGRAD_KERNELS", "native")
    x = _shapes("mlp")[0]
    assert kernels.name in str(module.plan((3, *x[1:]), (3,)))
    assert trained("mlp")[1].session.memory.kernels.name.startswith("native ")


@pytest.mark.usefixtures("here")
def test_a_set_with_prepared_plans_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_KERNELS", "auto")
    best, prepared = (source.of_level(HERE[0], mode) for mode in ("auto", "shipped"))
    assert best is not None
    assert prepared is not None
    assert (
        source.choose_current()
        is source.choose_current({"native x", "shipped x86-64-v4 0"})
        is best
    )
    assert source.choose_current({prepared.name}) is prepared
    assert source.choose_current({prepared.name, best.name}) is best


@pytest.mark.usefixtures("here")
def test_a_process_with_shipped_kernels_loads_no_compiler(folder: Path) -> None:
    code = f"""
import os, sys
os.environ["EDGEGRAD_KERNELS"] = sys.argv[1]
from pathlib import Path
from engine.kernels.binaries import shipped
shipped.FOLDER = Path({str(folder)!r})
import numpy as np
from engine.api import CheckpointState, Module
from tests.support.places import GOLDENS
state = CheckpointState.load_checkpoint(GOLDENS / "mlp" / "checkpoint")
module = Module(GOLDENS / "mlp" / "training_model.onnx", state, threads=2)
trace = np.load(GOLDENS / "mlp" / "trace.npz")
module(trace["x"][0], trace["y"][0])
assert not {{"numba", "llvmlite"}} & set(sys.modules), sys.modules.keys()
"""
    for mode in ("shipped", "auto"):
        subprocess.run([sys.executable, "-c", code, mode], check=True)


@needs_bf16
@pytest.mark.usefixtures("here")
def test_a_wheel_multiplies_in_16_bits_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compiled kernels do to the last bit, and only where its level has these products."""
    losses = {}
    for mode in ("shipped", "native"):
        monkeypatch.setenv("EDGEGRAD_KERNELS", mode)
        monkeypatch.setenv("EDGEGRAD_LEVEL", "x86-64-v4-bf16")
        monkeypatch.setattr(source, "can_compile", lambda mode=mode: mode == "native")
        losses[mode], module = train_narrow()
        assert module.plan(*_shapes("cnn")).count_halves()
        assert "gemm_mixed" in {spec.template for spec in module.plan(*_shapes("cnn")).specs}
    assert losses["shipped"] == losses["native"]
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    monkeypatch.setenv("EDGEGRAD_LEVEL", "x86-64-v4")
    with pytest.raises(UnsupportedOpError, match=r"no kernel.*install numba.*auto takes them"):
        train_narrow()


def train_narrow() -> tuple[list[float], Module]:
    """The losses of three steps of bf16 of a golden model, and its module."""
    trace = np.load(GOLDENS / "cnn" / "trace.npz")
    state = CheckpointState.load_checkpoint(GOLDENS / "cnn" / "checkpoint")
    module = Module(GOLDENS / "cnn" / "training_model.onnx", state, precision="bf16", threads=2)
    optimizer = Optimizer(GOLDENS / "cnn" / "optimizer_model.onnx", module)
    losses = []
    for step in range(3):
        losses.append(float(module(trace["x"][step], trace["y"][step])))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, module


@needs_bf16
def test_auto_takes_16_bits_of_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it has them for all nodes: otherwise the plan is in float32."""
    folder = ship.ship_kernels(
        [s for s in ship.list_kernels() if s.template in ("gemm", "gemm_mixed")]
        + [KernelSpec("formula", ("real",))],
        HERE[:1], sys.platform, tmp_path,
    ).parent  # fmt: skip
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    monkeypatch.setattr(source, "can_compile", lambda: False)
    graph = Graph("g", {"x": TensorType("f32", (512, 1024))}, ["y"], {}, [], {"": 17})
    names = ["x", "a", "b", "y"]
    for i in range(3):
        graph.nodes.append(Node("MatMul", (names[i], f"w{i}"), (names[i + 1],), name=f"m{i}"))
        graph.initializers[f"w{i}"] = np.ones((1024, 1024), np.float32)
    chosen = {}
    for level in ("x86-64-v4-bf16", "x86-64-v4"):
        monkeypatch.setenv("EDGEGRAD_LEVEL", level)
        kernels = source.choose_current()
        plan = make_plan(
            graph.copy(), {}, target=kernels.target, threads=1, kernels=kernels,
            options=PlanOptions(precision="auto"),
        )  # fmt: skip
        assert set(kernels.resolve(plan.kernels)) == {spec.symbol for spec in plan.specs}
        chosen[level] = plan.precision
    assert chosen["x86-64-v4-bf16"].startswith("bf16, predicted ")
    assert chosen["x86-64-v4"] == "f32, as the CPU has no products of 16 bits"
    monkeypatch.setenv("EDGEGRAD_LEVEL", "x86-64-v4-bf16")
    graph.nodes += [Node("Sinh", ("y",), ("z",), name="sinh")]
    graph.nodes += [Node("MatMul", ("z", "w0"), ("v",), name="last")]
    graph.outputs = ["v"]
    kernels = source.choose_current()
    plan = make_plan(
        graph, {}, target=kernels.target, threads=1, kernels=kernels,
        options=PlanOptions(precision="auto"),
    )  # fmt: skip
    assert re.match("f32, predicted .*no other can be planned here", plan.precision)


def chain(*ops: str) -> Graph:
    """y = the ops, one after another, of x."""
    names = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [Node(op, (names[i],), (names[i + 1],), name=op) for i, op in enumerate(ops)]
    return Graph("g", {"x": TensorType("f32", (3, 70))}, ["y"], {}, nodes, {"": 17})


@pytest.mark.usefixtures("here")
def test_formulas_that_are_not_shipped_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    kernels, x = source.choose_current(), np.linspace(-2, 2, 210, dtype=np.float32).reshape(3, 70)
    plan = make_plan(
        chain("Softplus", "Atan", "Sinh"), {}, target=kernels.target, threads=2, kernels=kernels
    )
    assert [k.template for k in plan.specs] == ["formula"]
    program = BoundProgram(
        plan, kernels.resolve, {"work": allocate(plan.compute_region_bytes("work"))}
    )
    program.inputs["x"][...] = x
    program.run()
    wanted = np.sinh(np.arctan(np.log1p(np.exp(x.astype(np.float64)))))
    np.testing.assert_allclose(program.outputs["y"], wanted, rtol=1e-5)
    graph = chain("CumSum")
    graph.nodes[0].inputs = ("x", "axis")
    graph.initializers["axis"] = np.array(1)
    with pytest.raises(UnsupportedOpError, match=r"CumSum: the kernel \w+ is not shipped.*numba"):
        make_plan(graph, {}, target=kernels.target, threads=2, kernels=kernels)


@pytest.mark.usefixtures("here")
def test_what_is_not_shipped_is_compiled_for_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_KERNELS", "auto")
    kernels, asked = source.choose_current(), list[Target]()
    compiler = load.get_linker

    def linker(target: Target) -> load.Linker:
        asked.append(target)
        return compiler(target)

    monkeypatch.setattr(load, "get_linker", linker)
    plan = make_plan(
        chain("Softplus", "Atan", "Sinh"), {}, target=kernels.target, threads=2, kernels=kernels
    )
    assert set(kernels.resolve(plan.kernels)) == {k.symbol for k in plan.specs}
    assert asked == [HERE[0].make_target()]
    monkeypatch.setattr(source, "can_compile", lambda: False)
    alone = source.choose_current()
    assert alone.name.startswith("shipped ")
    with pytest.raises(EngineError, match="nothing can compile here: install numba"):
        alone.resolve(plan.kernels)


@pytest.mark.usefixtures("here")
def test_a_plan_that_passes_something_else_is_refused() -> None:
    spec = next(k for k in zoo.list_kernels(zoo.of_golden(GOLDENS / "mlp")) if k.template == "gemm")
    shipment = shipped.open_shipment()
    assert shipment is not None
    with pytest.raises(PlanError, match="the plan is of another version"):
        shipment.find_numbers([Kernel(spec, ("f32*", "i64"))])


# --- what can be wrong


def _copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut library": lambda f: _cut(f / _library(f)),
    "flipped library": lambda f: _flip(f / _library(f)),
    "no library": lambda f: (f / _library(f)).unlink(),
    "no keys": lambda f: (f / shipped.KEYS).unlink(),
    "flipped keys": lambda f: _flip(f / shipped.KEYS),
    "cut manifest": lambda f: (f / shipped.MANIFEST).write_text("{"),
    "deep manifest": lambda f: (f / shipped.MANIFEST).write_text("[" * 100_000),
    "a manifest that is a pipe": lambda f: _pipe(f / shipped.MANIFEST),
    "a library that is a pipe": lambda f: _pipe(f / _library(f)),
    "a library elsewhere": lambda f: _elsewhere(f),
    "empty manifest": lambda f: (f / shipped.MANIFEST).write_text("[]"),
    "another version": lambda f: _edit(f, "version", shipped.VERSION + 1),
    "other sources": lambda f: _edit(f, "sources", "00"),
    "not a library": lambda f: _replace(f, b"nonsense"),
}


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _elsewhere(folder: Path) -> None:
    """A library outside of the folder, which the manifest knows."""
    files = json.loads((folder / shipped.MANIFEST).read_text("utf-8"))["files"]
    name = _library(folder)
    (folder / name).rename(folder.parent / name)
    files[HERE[0].name]["file"] = f"../{name}"
    _edit(folder, "files", files)


def _library(folder: Path) -> str:
    files = json.loads((folder / shipped.MANIFEST).read_text("utf-8"))["files"]
    return str(files[HERE[0].name]["file"])


def _edit(folder: Path, key: str, value: object) -> None:
    path = folder / shipped.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {key: value}), "utf-8")


def _replace(folder: Path, content: bytes) -> None:
    """A library that is not one, which the manifest knows."""
    (folder / _library(folder)).write_bytes(content)
    files = json.loads((folder / shipped.MANIFEST).read_text("utf-8"))["files"]
    files[HERE[0].name] = ship.read_row(folder / _library(folder))
    _edit(folder, "files", files)


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_an_error_or_the_compiler(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _copy(folder, tmp_path / "shipped")
    DAMAGES[what](broken)
    monkeypatch.setattr(shipped, "FOLDER", broken)
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    with pytest.raises(FileError, match="shipped kernels"):
        source.choose_current()
    monkeypatch.setenv("EDGEGRAD_KERNELS", "auto")
    with pytest.warns(RuntimeWarning, match="Kernels are compiled instead"):
        assert source.choose_current().name.startswith("native ")
    monkeypatch.setattr(source, "can_compile", lambda: False)
    with pytest.raises(FileError, match="shipped kernels"):
        source.choose_current()


def test_without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    with pytest.raises(EngineError, match="ships no kernels for this CPU"):
        source.choose_current()
    monkeypatch.setenv("EDGEGRAD_KERNELS", "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert source.choose_current().name.startswith("native ")
    monkeypatch.setenv("EDGEGRAD_KERNELS", "fast")
    with pytest.raises(EngineError, match="expected one of native, shipped, auto"):
        source.choose_current()


@pytest.mark.usefixtures("here")
def test_a_cpu_without_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "list_features", dict[str, bool])
    monkeypatch.setenv("EDGEGRAD_KERNELS", "auto")
    assert source.choose_current().name.startswith("native ")
    source._make_native.cache_clear()
    monkeypatch.setattr(source, "can_compile", lambda: False)
    with pytest.raises(EngineError, match=r"none that is known.*pip install edgegrad"):
        source.choose_current()

"""Builds: memory and time while they are made, and changes to their folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from engine import artifacts as offline
from engine.api import CheckpointState
from engine.base.element_types import NUMPY
from engine.checkpoint import storage
from engine.errors import CheckpointError, EngineError, InputError, StateError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.compiler.emit import emit_library
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.tools import cli
from engine.tools.trimmed import build as build_tool
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.builds import make_build as built
from tests.support.builds import needs_cc, run
from tests.support.places import GOLDENS

pytestmark = needs_cc


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    paths = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of one linear layer of 8 MiB, with another 8 MiB of a constant."""
    rng = np.random.default_rng(0)
    n = 1448
    graph = Graph(
        "wide", {"x": TensorType("f32", ("batch", n))}, ["y"],
        {"w": rng.standard_normal((n, n)).astype(np.float32) / n,
         "c": rng.standard_normal((n, n)).astype(np.float32) / n},
        [Node("MatMul", ("x", "w"), ("h",)), Node("MatMul", ("h", "c"), ("y",))],
        {"": 17}, {"y": TensorType("f32", ("batch", n))},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("wide")
    onnx_io.save(graph, folder / "forward.onnx")
    offline.generate_artifacts(
        folder / "forward.onnx", ["w"], loss=offline.LossType.CrossEntropyLoss,
        optimizer=offline.OptimType.SGD, artifact_directory=folder,
    )  # fmt: skip
    return folder


def test_a_build_takes_memory_in_proportion_to_the_model(wide: Path, tmp_path: Path) -> None:
    """Large numbers are never written out as text, and no program holds the parameters."""
    size = 2 * (wide / "checkpoint").stat().st_size  # a parameter and a constant
    options = Options("wide", resolve("native"), PlanRequest([1]))
    build(wide, tmp_path / "out", options)  # compiling needs memory of its own, once
    tracemalloc.start()
    try:
        build(wide, tmp_path / "out", options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * size
    assert (tmp_path / "out" / "selftest").stat().st_size < size
    assert "passed" in run(tmp_path / "out" / "selftest")


def test_a_build_that_fails_leaves_its_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options("mnist", resolve("native"), PlanRequest([4]))
    out = tmp_path / "deep" / "out"
    build(GOLDENS / "mlp", out, options)
    (out / "notes.txt").write_text("mine")
    before = contents(out)

    def fail(*_: object) -> None:
        raise EngineError("the linker failed")

    monkeypatch.setattr(build_tool, "link_library", fail)
    with pytest.raises(EngineError, match="linker failed"):
        build(GOLDENS / "cnn", out, options)
    assert contents(out) == before
    with pytest.raises(EngineError, match="linker failed"):
        build(GOLDENS / "cnn", tmp_path / "other", options)
    assert not (tmp_path / "other").exists()
    monkeypatch.undo()
    build(GOLDENS / "mlp", out, options)
    assert contents(out) == before


def test_a_build_overwrites_no_checkpoint_but_its_own(tmp_path: Path) -> None:
    """A device's program may save to the very file that the build wrote."""
    options, out = Options("mnist", resolve("native"), PlanRequest([4])), tmp_path / "out"
    build(GOLDENS / "mlp", out, options)
    state = CheckpointState.load_checkpoint(out / "checkpoint")
    state.properties["epochs"] = 3
    CheckpointState.save_checkpoint(state, out / "checkpoint")
    before = contents(out)
    with pytest.raises(StateError, match="trained since"):
        build(GOLDENS / "mlp", out, options)
    assert contents(out) == before
    (out / "checkpoint").write_bytes((GOLDENS / "mlp/checkpoint").read_bytes())
    build(GOLDENS / "cnn", out, options)  # over the first values of another build


def test_a_build_says_what_it_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [str(GOLDENS / "mlp"), "--batch", "4", "--name", "mnist", "-o", str(tmp_path / "out")]
    assert cli.main(["build", *words]) == 0
    said = capfd.readouterr().err.splitlines()
    steps = ("reading", "planning the training model", "compiling", "linking", "recording")
    firsts = [next(k for k, line in enumerate(said) if f"] {step}" in line) for step in steps]
    assert firsts == sorted(firsts)
    assert all(line.startswith("[") for line in said)


def test_the_selftest_wants_the_checkpoint_it_was_recorded_with(tmp_path: Path) -> None:
    folder = built("mlp")
    program = tmp_path / "selftest"
    shutil.copy(folder / "selftest", program)
    for name, content, said in (
        ("absent", None, "cannot read"),
        ("trained", b"x" * 100, "trained since or another file"),
        ("longer", (folder / "checkpoint").read_bytes() + b"x", "another file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        done = subprocess.run([program, path], capture_output=True, text=True)
        assert done.returncode == 2
        assert said in done.stderr
        assert name in done.stderr
    assert "passed" in run(program, folder / "checkpoint")
    shutil.copy(folder / "checkpoint", tmp_path)
    assert "passed" in run(program)  # the checkpoint beside it


def test_a_build_refuses_values_in_a_second_file(tmp_path: Path) -> None:
    for path in (GOLDENS / "mlp").glob("*_model.onnx"):
        shutil.copy(path, tmp_path)
    content = storage.read(GOLDENS / "mlp/checkpoint")
    storage.write(content, tmp_path / "checkpoint", external_threshold=1)
    with pytest.raises(CheckpointError, match="in a second file"):
        build(tmp_path, tmp_path / "out", Options("mnist", resolve("native"), PlanRequest([4])))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_large_data_reaches_every_kind_of_object(target: str) -> None:
    large = np.random.default_rng(0).bytes(10_000)
    data = {"large": large, "small": b"small block", "zeros": bytes(5_000)}
    code = emit_library({}, "table", data, resolve(target).target)
    assert code.count(large) == code.count(b"small block") == 1
    assert len(code) < 17_000


def fixed(folder: Path, samples: int, dtype: str = "f32") -> Path:
    """The artifacts of a linear layer whose number of samples is written into the model."""
    graph = Graph(
        "fixed", {"x": TensorType(dtype, (samples, 3))}, ["y"],
        {"w": np.ones((3, 2), NUMPY[dtype])}, [Node("MatMul", ("x", "w"), ("y",))],
        {"": 17}, {"y": TensorType(dtype, (samples, 2))},
    )  # fmt: skip
    onnx_io.save(graph, folder / "forward.onnx")
    offline.generate_artifacts(
        folder / "forward.onnx", ["w"], loss=offline.LossType.CrossEntropyLoss,
        artifact_directory=folder,
    )  # fmt: skip
    return folder


@needs_cc
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_learning_rate_has_the_type_of_the_parameters(dtype: str, tmp_path: Path) -> None:
    """It was written as a float, and read as part of a double: parameters became nonsense."""
    build(
        fixed(tmp_path, 4, dtype),
        tmp_path / "out",
        Options("fixed", resolve("native"), PlanRequest((4,))),
    )
    assert "passed" in run(tmp_path / "out" / "selftest")


def test_a_batch_is_one_that_the_model_has(tmp_path: Path) -> None:
    """A model fixed at 8 samples was accepted for --batch 1, and its one batch then called 1."""
    folder = fixed(tmp_path, 8)
    plan = ["plan", str(folder), "-o", str(tmp_path / "plan")]
    for words, said in (
        (
            ["--batch", "1"],
            "fixes its number of samples at 8 (input 'x' is [8, 3]): give --batch 8",
        ),
        (["--batch", "8,4"], "fixes its number of samples: give one --batch"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "engine.tools.cli", *plan, *words],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1
        assert said in done.stderr
    assert cli.main([*plan, "--batch", "8"]) == 0
    shape = ["--batch", "4", "--shape", "input=6,64", "--shape", "labels=6"]
    with pytest.raises(
        InputError, match=r"no input .* has 4 as its first dimension: input \[6, 64\]"
    ):
        make_plans(
            list_artifacts(GOLDENS / "mlp"),
            detect_host(),
            PlanRequest([4], shapes={"input": (6, 64), "labels": (6,)}),
        )
    assert cli.main(["plan", str(GOLDENS / "mlp"), "-o", str(tmp_path / "plan"), *shape]) == 1

"""Libraries of kernels for a set of ops: plans come as files, of models nobody saw at the build."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine import artifacts
from engine.api import CheckpointState, Module, Optimizer
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.models.mobilenets import build_mobilenet_v2, build_mobilenet_v3_small
from engine.models.post_norm import build_minilm
from engine.tools import cli
from engine.tools.benchmark.workload import write_artifacts
from tests.support.builds import (
    SANITIZE,
    WARNINGS,
    compile_c,
    list_sources,
    load,
    make_library,
    needs_cc,
    plan_file,
    run,
)
from tests.support.harness import evaluate
from tests.support.places import DRIVERS, GOLDENS

pytestmark = needs_cc

MLP = GOLDENS / "mlp"


def write_model(folder: Path, widths: tuple[int, ...], between: str = "Relu") -> Path:
    """Artifacts of a chain of Gemms of these widths."""
    rng = np.random.default_rng(0)
    graph = Graph("chain", {"x": TensorType("f32", ("batch", widths[0]))}, ["scores"], {}, [], {})
    name = "x"
    for i, (n, m) in enumerate(pairwise(widths)):
        graph.initializers[f"w{i}"] = (rng.standard_normal((m, n)) / 3).astype(np.float32)
        graph.initializers[f"b{i}"] = np.zeros(m, np.float32)
        out = "scores" if i == len(widths) - 2 else f"h{i}"
        node = Node("Gemm", (name, f"w{i}", f"b{i}"), (out,), {"transB": 1}, name=f"fc{i}")
        graph.nodes.append(node)
        name = out
        if out != "scores":
            graph.nodes.append(Node(between, (out,), (f"a{i}",), name=f"act{i}"))
            name = f"a{i}"
    graph.opsets = {"": 17}
    graph.types["scores"] = TensorType("f32", ("batch", widths[-1]))
    folder.mkdir()
    onnx_io.save(graph, folder / "forward.onnx")
    artifacts.generate_artifacts(
        str(folder / "forward.onnx"), requires_grad=list(graph.initializers),
        loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deeper model of other widths than the golden's."""
    return write_model(tmp_path_factory.mktemp("models") / "wide", (33, 70, 12, 25, 5))


class Engine:
    """The engine running closed plans of a model."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(
            folder / "training_model.onnx", self.state, folder / "eval_model.onnx", threads=threads
        )
        assert self.module.session.evaluation is not None
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        for model in (
            self.module.session.training,
            self.module.session.evaluation,
            self.optimizer.model,
        ):
            model.closed = True

    def step(self, x: np.ndarray, y: np.ndarray) -> Any:
        loss = self.module.train()(x, y)
        self.optimizer.step()
        self.module.lazy_reset_grad()
        return loss


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("golden", [True, False], ids=["golden", "wide"])
def test_plans_of_any_shape_train_like_the_engine(golden: bool, threads: int, wide: Path) -> None:
    folder = MLP if golden else wide
    face, engine = load(make_library(threads)), Engine(folder, threads)
    trainer = face.Trainer(folder / "checkpoint", plan_file(folder, "6,1", threads))
    features, classes = (64, 10) if golden else (33, 5)
    rng = np.random.default_rng(1)
    for n in (6, 1, 6, 6, 1):
        x = rng.standard_normal((n, features)).astype(np.float32)
        y = rng.integers(0, classes, n)
        assert trainer.step(x, y) == engine.step(x, y)
        assert trainer.evaluate(x, y) == engine.module.eval()(x, y)
    assert trainer.state.to_bytes(True) == engine.state.to_bytes(True)
    with pytest.raises(face.InputError, match=r"\(batches: 6, 1\), got float32\[2, "):
        trainer.step(x[[0, 0]], y[[0, 0]])


FAMILIES = {
    "mobilenet_v2": (build_mobilenet_v2((3, 32, 32)), (4, 3, 32, 32)),
    "mobilenet_v3": (build_mobilenet_v3_small((3, 32, 32)), (4, 3, 32, 32)),
    "minilm": (build_minilm(16, words=100, layers=2, width=48), (4, 16)),
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts and plans of all FAMILIES, and one library made of the ops that they name."""
    folder = tmp_path_factory.mktemp("families")
    for name, (graph, _) in FAMILIES.items():
        (folder / name).mkdir()
        write_artifacts(graph, folder / name)
    config = str(folder / "required_operators.config")
    assert cli.main(["ops", *(str(folder / name) for name in FAMILIES), "-o", config]) == 0
    out = str(folder / "library")
    assert cli.main(["build", "--ops", config, "--name", "mnist", "-o", out]) == 0
    for name in FAMILIES:
        words = [str(folder / name), "--batch", "4", "--ops", config]
        assert cli.main(["plan", *words, "-o", str(folder / f"{name}.plan")]) == 0
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_one_library_trains_models_of_several_families(name: str, families: Path) -> None:
    """Op set, library, plan, training: batch norms that train, and attention, in one library."""
    checkpoint = families / name / "checkpoint"
    trainer = load(families / "library").Trainer(checkpoint, families / f"{name}.plan")
    engine = Engine(families / name, 1)
    rng = np.random.default_rng(0)
    shape = FAMILIES[name][1]
    whole = name == "minilm"
    for _ in range(3):
        x = rng.integers(0, 100, shape) if whole else rng.random(shape, np.float32)
        y = rng.integers(0, 10, shape[0])
        assert trainer.step(x, y) == engine.step(x, y)
    assert trainer.evaluate(x, y) == engine.module.eval()(x, y)
    assert trainer.state.to_bytes(True) == engine.state.to_bytes(True)


def test_closed_plans_follow_the_golden_trace() -> None:
    trace = np.load(MLP / "trace.npz")
    trainer = load(make_library()).Trainer(
        MLP / "checkpoint", plan_file(MLP, str(len(trace["y"][0])))
    )
    for k, rate in enumerate(trace["learning_rates"]):
        trainer.optimizer.set_learning_rate(float(rate))
        assert trainer.step(trace["x"][k], trace["y"][k]) == pytest.approx(trace["losses"][k], 1e-4)


def test_the_inference_model_travels_with_the_plan(tmp_path: Path) -> None:
    trainer = load(make_library()).Trainer(MLP / "checkpoint", plan_file(MLP, "6,1").read_bytes())
    trainer.module.export_model_for_inferencing(tmp_path / "m.onnx")
    x = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)
    (expected,) = evaluate(onnx.load(tmp_path / "m.onnx"), {"input": x})
    np.testing.assert_allclose(trainer.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_missing_kernel_is_named_with_its_op(tmp_path: Path) -> None:
    conv = plan_file(GOLDENS / "cnn", "2")
    face = load(make_library())
    with pytest.raises(
        face.PlanError, match=r"needs kernel conv\w*, made for Conv.* in the config"
    ):
        face.Trainer(GOLDENS / "cnn" / "checkpoint", conv)
    config = make_library() / "required_operators.config"
    words = [str(GOLDENS / "cnn"), "--batch", "2", "-o", str(tmp_path / "p")]
    assert cli.main(["plan", *words, "--ops", str(config)]) == 1
    assert not (tmp_path / "p").exists()


def test_plans_for_others_are_refused(tmp_path: Path) -> None:
    face = load(make_library())
    for words, message in (
        (["--threads", "2"], "number of threads"),
        (["--target", "raspberrypi4"], "another target than x86_64"),
    ):
        out = tmp_path / "p"
        assert cli.main(["plan", str(MLP), "--batch", "2", *words, "-o", str(out)]) == 0
        with pytest.raises(face.PlanError, match=message):
            face.Trainer(MLP / "checkpoint", out)
    data = bytearray(plan_file(MLP, "6,1").read_bytes())
    data[200] ^= 1
    with pytest.raises(face.PlanError, match="checksum"):
        face.Trainer(MLP / "checkpoint", bytes(data))
    with pytest.raises(face.PlanError, match="no plan file"):
        face.Trainer(MLP / "checkpoint", b"nothing")
    with pytest.raises(face.PlanError, match="plan="):
        face.Trainer(MLP / "checkpoint")


def test_hostile_plans_never_crash(tmp_path: Path) -> None:
    driver = DRIVERS / "plans.c"
    program = compile_c(
        tmp_path / "plans", *WARNINGS, *SANITIZE, driver, *list_sources(make_library())
    )
    out = run(program, plan_file(MLP, "6,1"), MLP / "checkpoint", "29", "4000")
    accepted, refused = map(int, re.findall(r"\d+", out))
    assert accepted > 500, "changes of constants and weights are accepted"
    assert refused > 2000


def test_the_library_compiles_without_warnings_and_its_example_trains(tmp_path: Path) -> None:
    folder = make_library(2)
    strict = ("-std=c11", "-pedantic", *WARNINGS, "-Wshadow", "-Wconversion", f"-I{folder}")
    for define in ("-O2", "-DEDGEGRAD_FREESTANDING"):
        compile_c(tmp_path / "x.o", *strict, define, "-c", folder / "src" / "mnist.c")
    linked = (f"-L{folder}", "-lmnist", f"-Wl,-rpath,{folder}")
    program = compile_c(tmp_path / "example", *strict, folder / "src" / "example.c", *linked)
    out = run(program, MLP / "checkpoint", tmp_path / "new", plan_file(MLP, "6,1", 2))
    assert out.count("loss") == 20
    assert CheckpointState.load_checkpoint(tmp_path / "new").groups[0].step == 20


def test_the_commands_make_a_library_from_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "required_operators.config"
    config.write_text("ai.onnx;17;Shape\n", "utf-8")
    words = ["--ops", str(config), "--name", "few", "--static", "-o", str(tmp_path / "out")]
    assert cli.main(["build", *words]) == 0
    assert re.match(r"\d+ kernels\nlibrary +[\d,]+ bytes\n", capsys.readouterr().out)
    assert (tmp_path / "out" / "libfew.a").exists()
    assert cli.main(["build", "-o", str(tmp_path)]) == 2
    assert "give a folder of artifacts, or --ops CONFIG" in capsys.readouterr().err
    config.write_text("ai.onnx;17;Shap\n", "utf-8")
    assert cli.main(["build", *words]) == 1
    assert "nearest: 'Shape'" in capsys.readouterr().err


def test_an_op_without_kernels_of_its_own_needs_no_rebuild(tmp_path: Path) -> None:
    """Elementwise ops are data: Tanh runs on a library whose config never named it."""
    folder = write_model(tmp_path / "tanh", (8, 6, 3), "Tanh")
    trainer = load(make_library()).Trainer(folder / "checkpoint", plan_file(folder, "2"))
    engine = Engine(folder, 1)
    x, y = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8), np.array([0, 2])
    for _ in range(3):
        assert trainer.step(x, y) == engine.step(x, y)

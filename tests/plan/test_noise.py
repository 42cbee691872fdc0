"""Random numbers of whole runs: what they depend on, and what not.

The cases of tools/dev/cases/noise.py compare every number with numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import engine
from engine import backend
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import LossType, OptimType, generate_artifacts
from engine.errors import DTypeError, InputError
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.expression import philox
from engine.tools.dev.case_graphs import OneNode
from engine.tools.dev.cases.case import Case, f32
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import load, needs_cc
from tests.support.harness import drop_type, get_gradient

MODEL = """<ir_version: 8, opset_import: ["": 13]> g (float[N,64] x, float[64,32] w, float[32,10] v)
=> (float[N,10] y) {
    ratio = Constant<value = float {0.5}>()
    on = Constant<value = bool {1}>()
    h = MatMul(x, w)
    d, m = Dropout(h, ratio, on)
    r = Tanh(d)
    e, n = Dropout(r, ratio, on)
    y = MatMul(e, v)
}"""
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
LABELS = np.arange(4)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dropout")
    proto = parser.parse_model(MODEL)
    rng = np.random.default_rng(1)
    for value in list(proto.graph.input)[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        made = (rng.standard_normal(shape) / 8).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(made, value.name))
        proto.graph.input.remove(value)
    generate_artifacts(
        proto, requires_grad=["w", "v"], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
        artifact_directory=folder,
    )  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    yield
    engine.set_seed(0)


def make(folder: Path, threads: int = 1) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=threads
    )
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def losses(folder: Path, threads: int = 1) -> list[float]:
    _, module, _ = make(folder, threads)
    return [float(module(X, LABELS)) for _ in range(3)]


def test_known_answers() -> None:
    """Of the authors' Random123, its file kat_vectors."""
    for counter, expected in (
        ((0, 0, 0), (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E), (0xDD7CE038, 0xF62A4C12)),
    ):
        assert tuple(map(int, philox(*counter))) == expected


def test_every_step_drops_others_and_runs_repeat(artifacts: Path) -> None:
    first = losses(artifacts)
    assert len(set(first)) == 3
    assert losses(artifacts, threads=2) == first
    engine.set_seed(1)
    assert set(losses(artifacts)).isdisjoint(first)
    engine.set_seed(0)
    assert losses(artifacts) == first


def test_the_eval_model_drops_nothing_and_draws_nothing(artifacts: Path) -> None:
    _, module, _ = make(artifacts)
    module.eval()
    before = module(X, LABELS)
    assert module(X, LABELS) == before
    assert not any("draw" in s.kernel for s in module.plan((4, 64), (4,)).steps)
    assert float(module.train()(X, LABELS)) == losses(artifacts)[0]


def test_a_training_step_learns_what_was_not_dropped(artifacts: Path) -> None:
    state, module, _ = make(artifacts)
    module(X[:1], LABELS[:1])
    dropped = ~get_gradient(state, "v").any(axis=1)
    assert 4 <= dropped.sum() <= 28  # of 32 at ratio 1/2: 1 in 10^5 is outside


def test_nodes_draw_different_numbers() -> None:
    one = OneNode(Case("RandomUniform", (), {"shape": [8]}))
    two = OneNode(Case("RandomUniform", (), {"shape": [8]}))
    two.node.outputs = ("z0",)
    one.graph.nodes.append(two.node)
    one.graph.outputs = ["y0", "z0"]
    plan = make_plan(one.graph, {}, target=detect_host(), threads=1)
    assert len({s.consts for s in plan.steps}) == 2


def test_a_dropout_of_ratio_0_is_no_step() -> None:
    one = OneNode(Case("Dropout", (f32(3, 4), np.array(0.0, "f4"), np.array(True)), opset=13))
    one.graph.nodes.append(OneNode(Case("Neg", (f32(3, 4),))).node)
    one.graph.nodes[1].inputs, one.graph.nodes[1].outputs = ("y0",), ("z0",)
    one.graph.outputs = ["z0"]
    assert len(make_plan(one.graph, {}, target=detect_host(), threads=1).steps) == 1


def test_every_run_of_a_session_draws_others() -> None:
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g () => (float[5] y) '
        "{ y = RandomNormal<shape=[5]>() }"
    )
    first, again = (backend.prepare(proto) for _ in range(2))
    draws = [first.run([])[0].tolist() for _ in range(2)]
    assert draws[0] != draws[1]
    assert [again.run([])[0].tolist() for _ in range(2)] == draws


@pytest.mark.parametrize(("seed", "error"), [("1", DTypeError), (2**63, InputError)])
def test_seeds_are_whole_numbers_of_64_bits(seed: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="seed"):
        engine.set_seed(drop_type(seed))


@needs_cc
def test_a_trimmed_build_drops_the_same(artifacts: Path, tmp_path: Path) -> None:
    build(artifacts, tmp_path / "out", Options("mnist", resolve("native"), PlanRequest([4])))
    trainer = load(tmp_path / "out").Trainer(artifacts / "checkpoint")
    _, module, optimizer = make(artifacts)
    for seed in (0, 7):
        engine.set_seed(seed)
        trainer.module.set_seed(seed)
        for _ in range(2):
            expected = module(X, LABELS)
            optimizer.step()
            module.lazy_reset_grad()
            assert trainer.step(X, LABELS) == expected

"""Parameters of float32 and of float64 in one model: a step of it, whatever it runs as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import engine.onnxblock as onnxblock
from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.artifacts import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    CrossEntropyLoss,
    Group,
    Lion,
    OptimType,
    RMSprop,
    generate_artifacts,
)
from engine.checkpoint import storage
from engine.data import batches
from engine.errors import DTypeError, ModelError
from engine.graphs.offline.optim_types import Method
from engine.proximal import ANCHOR, MU, set_anchors
from engine.tools import cli
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support import tiny
from tests.support.builds import load, needs_cc
from tests.support.harness import copy_parameters
from tests.support.thread_group import run
from tests.support.tiny import LABELS, NAMES, X, read_values

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,6] x, float[6,8] body.weight, double[8] body.bias, double[8,3] head.weight,
   float[3] head.bias) => (float[N,3] scores) {
    h = MatMul(x, body.weight)
    wide = Cast<to = 11>(h)
    b = Add(wide, body.bias)
    r = Tanh(b)
    s = MatMul(r, head.weight)
    narrow = Cast<to = 1>(s)
    scores = Add(narrow, head.bias)
}"""
WIDE = ("body.bias", "head.weight")
OPTIMIZERS: dict[str, Method] = {
    "adamw": AdamW(0.05, weight_decay=0.1),
    "lazy adamw, clipped": AdamW(0.05, lazy=True, clip_grad=0.1),
    "adam by groups": Adam(0.05, groups=[Group(["body.*"], lr_scale=0.5)]),
    "sgd, clipped": SGD(0.1, clip_grad=0.05),
    "momentum": SGD(0.1, momentum=0.9),
    "lion": Lion(0.01),
    "lamb, clipped": LAMB(0.05, clip_grad=0.1),
    "adafactor, clipped": Adafactor(0.05, beta1=0.9, clip_grad=0.1),
    "adagrad": Adagrad(0.05),
    "rmsprop": RMSprop(0.05, centered=True, momentum=0.9),
    "skipping, clipped": AdamW(0.05, clip_grad=0.1, skip_nonfinite=True),
    "skipping": AdamW(0.05, skip_nonfinite=True),
}


def forward() -> onnx.ModelProto:
    proto = tiny.forward(TEXT)
    for tensor in proto.graph.initializer:
        if tensor.name in WIDE:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return proto


def made(**options: Any) -> Trainer:
    options = {"optimizer": AdamW(0.05), "threads": 1, "seed": 7, **options}
    return Trainer.from_onnx(forward(), CrossEntropyLoss(), **options)


def content(trainer: Trainer) -> tuple[Any, ...]:
    state = trainer.state
    return {n: state.regions[n].tobytes() for n in ("param", "state")}, trainer.steps, state.skipped


def reference(steps: int, rate: float, clip: float | None) -> dict[str, Any]:
    """Plain gradient descent, by hand in float64."""
    w = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in forward().graph.initializer}
    for _ in range(steps):
        r = np.tanh(X @ w["body.weight"] + w["body.bias"])
        p = np.exp(r @ w["head.weight"] + w["head.bias"])
        ds = (p / p.sum(1, keepdims=True) - np.eye(3)[LABELS]) / len(X)
        db = ds @ w["head.weight"].T * (1 - r**2)
        g = {
            "head.bias": ds.sum(0), "head.weight": r.T @ ds, "body.bias": db.sum(0),
            "body.weight": X.T @ db,
        }  # fmt: skip
        norm = np.sqrt(sum((a**2).sum() for a in g.values()))
        factor = 1.0 if clip is None else min(clip / (norm + 1e-6), 1)
        w = {n: w[n] - rate * factor * g[n] for n in w}
    return w


@pytest.mark.parametrize("clip", [None, 0.1])
def test_steps_follow_float64(clip: float | None) -> None:
    trainer = made(optimizer=SGD(0.125, clip_grad=clip))
    for _ in range(5):
        trainer.step(X, LABELS)
    actual_arrays = copy_parameters(trainer)
    assert {n: a.dtype.name for n, a in actual_arrays.items()} == {
        n: "float64" if n in WIDE else "float32" for n in NAMES
    }
    for name, value in reference(5, 0.125, clip).items():
        np.testing.assert_allclose(actual_arrays[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_bit_for_bit_what_two_calls_do(optimizer: str, tmp_path: Path) -> None:
    one, two = (made(optimizer=OPTIMIZERS[optimizer], threads=2) for _ in range(2))
    for _ in range(2):
        assert one.step(X, LABELS) == two.accumulate(X, LABELS)
        two.update()
    assert content(one) == content(two)
    assert one.obstacle == ""
    one.save(tmp_path / "saved")
    two.load(tmp_path / "saved")
    assert one.step(X, LABELS) == two.step(X, LABELS)
    assert content(one) == content(two)


def test_what_is_not_finite_in_either_type_is_skipped() -> None:
    """A gradient of float64 alone is too large: the loss of the step is a number."""
    for clip in (None, 0.5):
        for kept in (False, True):
            trainer = made(optimizer=SGD(0.1, clip_grad=clip, skip_nonfinite=True))
            before = read_values(trainer)
            trainer.accumulate(X, LABELS)
            gradient = trainer.state.parameters["body.bias" if kept else "body.weight"].grad
            assert gradient is not None
            gradient[...] = np.inf
            trainer.update()
            assert trainer.state.skipped == 1
            assert read_values(trainer) == before


def test_accumulated_and_parted_batches_are_one() -> None:
    whole, parted, added = made(), made(micro_batches=3), made()
    for _ in range(2):
        loss = whole.step(X, LABELS)
        assert parted.step(X, LABELS) == pytest.approx(loss, rel=1e-5)
        for part in (slice(0, 10), slice(10, 20)):
            added.accumulate(X[part], LABELS[part])
        added.update()
    for other in (parted, added):
        for name, value in copy_parameters(whole).items():
            np.testing.assert_allclose(copy_parameters(other)[name], value, rtol=1e-4, atol=1e-6)


def test_a_proximal_term_pulls_both() -> None:
    held, plain = (made(optimizer=SGD(0.1), proximal=p) for p in (True, False))
    assert held.state.parameters[MU].data.dtype == np.float64
    set_anchors(held.state, 0.75)
    far = {}
    for name in NAMES:
        held.state.parameters[name].data[...] += 0.5
        plain.state.parameters[name].data[...] += 0.5
        far[name] = 0.5
        anchor = held.state.parameters[name + ANCHOR].data
        assert anchor.dtype == held.state.parameters[name].data.dtype
    held.step(X, LABELS)
    plain.step(X, LABELS)
    for name in NAMES:
        pulled = copy_parameters(plain)[name] - 0.1 * 0.75 * far[name]
        np.testing.assert_allclose(copy_parameters(held)[name], pulled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_held", [False, True])
def test_ranks_train_as_one_process(is_held: bool) -> None:
    options: dict[str, Any] = {"optimizer": SGD(0.1, momentum=0.5, clip_grad=0.5)}

    def prepared(**more: Any) -> Trainer:
        trainer = made(**options, proximal=is_held, **more)
        if is_held:
            set_anchors(trainer.state, 0.5)
            trainer.state.parameters["body.bias"].data[...] += 0.25
        return trainer

    def train(group: Any) -> dict[str, Any]:
        trainer = prepared(group=group)
        trainer.step(X, LABELS)
        trainer.accumulate(X, LABELS)
        trainer.update()
        return copy_parameters(trainer)

    alone = prepared()
    for _ in range(2):
        alone.step(X, LABELS)
    first, second = run(2, train)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    for name, value in copy_parameters(alone).items():
        assert first[name].tobytes() == second[name].tobytes()
        np.testing.assert_allclose(first[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_fit_keeps_to_a_budget() -> None:
    data = batches((X, LABELS), batch_size=10, shuffle=True, seed=3)
    free, tight = made(), made(memory_budget=64 << 20)
    free.fit(data, epochs=2)
    tight.fit(data, epochs=2)
    assert read_values(free) == read_values(tight)


def test_files_say_what_is_of_which_type(tmp_path: Path) -> None:
    for folder, method in (
        ("a", AdamW(clip_grad=0.5, groups=[Group(["head.*"], 0.5)])),
        ("b", onnxblock.optim.AdamW(
            clip_grad=onnxblock.optim.ClipGradNorm(0.5), groups=[Group(["head.*"], 0.5)])),
    ):  # fmt: skip
        generate_artifacts(
            forward(), NAMES, loss=CrossEntropyLoss(), optimizer=method,
            artifact_directory=tmp_path / folder,
        )  # fmt: skip
    a, b = (onnx.load(tmp_path / f / "optimizer_model.onnx") for f in "ab")
    assert a.graph.node == b.graph.node
    assert a.graph.input == b.graph.input
    types = {i.name: i.type.sequence_type.elem_type.tensor_type.elem_type for i in a.graph.input}
    assert types["params"] == onnx.TensorProto.FLOAT
    assert types["gradients.f64"] == types["second_order_moments.f64"] == onnx.TensorProto.DOUBLE
    clip, *steps = a.graph.node
    assert list(clip.input) == ["gradients", "gradients.f64"]
    lists = [helper.get_node_attr_value(n, "parameters") for n in steps]
    assert lists == [[b"body.weight"], [b"body.bias"], [b"head.bias"], [b"head.weight"]]
    assert [n.input[2] for n in steps] == ["params", "params.f64"] * 2
    saved = storage.read(tmp_path / "a" / "checkpoint")
    assert list(saved.trainable) == ["body.weight", "body.bias", "head.weight", "head.bias"]


def renamed(folder: Path, change: Any) -> bytes:
    proto = onnx.load(folder / "optimizer_model.onnx")
    change(proto)
    return bytes(proto.SerializeToString())


def listed(at: int, names: list[str]) -> Any:
    def change(proto: onnx.ModelProto) -> None:
        (attribute,) = (a for a in proto.graph.node[at].attribute if a.name == "parameters")
        attribute.strings[:] = [name.encode() for name in names]

    return change


def without_wide(proto: onnx.ModelProto) -> None:
    del proto.graph.node[1]
    proto.graph.output[0].name = proto.graph.node[0].output[0]


def without_inputs(proto: onnx.ModelProto) -> None:
    without_wide(proto)
    del proto.graph.input[5:]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (listed(0, ["body.bias"]), ModelError, "updates parameters of f32, but lists others"),
        (without_wide, ModelError, r"does not update .*: \['body.bias', 'head.weight'\]"),
        (without_inputs, ModelError, r"lacks the inputs \['params.f64', 'gradients.f64'\]"),
        (lambda m: m.graph.node[1].input.__setitem__(3, "gradients"), ModelError,
         "reads 'gradients'; expected 'gradients.f64'"),
    ],
)  # fmt: skip
def test_models_are_checked(change: Any, error: Any, message: str, tmp_path: Path) -> None:
    generate_artifacts(
        forward(), NAMES, loss=CrossEntropyLoss(), optimizer=SGD(momentum=0.5),
        artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    with pytest.raises(error, match=message):
        Optimizer(renamed(tmp_path, change), module).step()


def test_a_block_over_one_sequence_is_refused(tmp_path: Path) -> None:
    class Own(onnxblock.Block):
        def build(self, name: str) -> str:
            return name

    with pytest.raises(DTypeError, match="Own is a block over one sequence of gradients"):
        generate_artifacts(
            forward(), NAMES, loss=CrossEntropyLoss(), artifact_directory=tmp_path,
            optimizer=onnxblock.optim.SGD(clip_grad=Own()),
        )  # fmt: skip


@needs_cc
@pytest.mark.parametrize("how", ["one model", "joined", "op set"])
@pytest.mark.parametrize("kind", [OptimType.Adagrad, OptimType.AdamW], ids=lambda k: k.name)
def test_trimmed_builds_train_as_the_engine_does(kind: OptimType, how: str, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    method = {
        OptimType.AdamW: AdamW(0.05, clip_grad=0.1, skip_nonfinite=True),
        OptimType.Adagrad: Adagrad(0.05, initial_accumulator_value=0.25),
    }[kind]
    generate_artifacts(
        forward(), NAMES, loss=CrossEntropyLoss(), optimizer=method, artifact_directory=folder
    )
    own: Trainer | Any = Trainer(folder, threads=1)
    if how == "op set":
        config = str(tmp_path / "ops.config")
        assert cli.main(["ops", str(folder), "-o", config]) == 0
        with open(config, "a", encoding="utf-8") as file:
            file.write("!globally_allowed_types;float,double\n")
        library = str(tmp_path / "out")
        assert cli.main(["build", "--ops", config, "--name", "mnist", "-o", library]) == 0
        plan = tmp_path / "a.plan"
        words = [str(folder), "--batch", "20", "--ops", config, "-o", str(plan)]
        assert cli.main(["plan", *words]) == 0
        other = load(tmp_path / "out").Trainer(folder / "checkpoint", plan)
    else:
        options = Options("mnist", resolve("native"), PlanRequest([20], joined=how == "joined"))
        build(folder, tmp_path / "out", options)
        other = load(tmp_path / "out").Trainer(folder / "checkpoint")
    other.optimizer.set_learning_rate(0.05)
    for _ in range(3):
        assert other.step(X, LABELS) == pytest.approx(own.step(X, LABELS), rel=1e-6)
    for name, p in own.state.parameters:
        mine = other.state.parameters[name].data
        assert mine.dtype == p.data.dtype
        np.testing.assert_allclose(mine, p.data, rtol=1e-5, atol=1e-7, err_msg=name)
    if how != "op set":
        assert other.state.to_bytes(True) == own.state.to_bytes(True)

"""Optimizers against their rules in float64: steps, groups, clipping, checkpoints between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine.onnxblock as onnxblock
from engine import artifacts
from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.artifacts import (
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Group,
    Lion,
    OptimType,
    RMSprop,
    generate_artifacts,
)
from engine.checkpoint import storage
from engine.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ModelError,
    NameNotFoundError,
    UnsupportedOpError,
)
from engine.runtime.team import Team
from engine.tools.dev.cases.optimizer.case import DECAY, OptimizerCase, Update, list_cases
from tests.support.harness import copy_parameters, drop_type, get_gradient

SHAPES = {  # sorted as saved checkpoints are: clipping adds squares in the order of the layout
    "a.bias": (4,), "a.weight": (5, 2, 3, 4), "b.bias": (70,), "b.weight": (13, 701), "c": (4133,),
}  # fmt: skip
WIDE = ("a.weight", "c")  # of float64 in models of several element types
STEPS, SAVED = 6, 3
RATE = 0.0625  # and all other numbers here: exact in float32, as attributes are

Arrays = dict[str, np.ndarray]


def model(dtype: Any = np.float32, wide: Sequence[str] = ()) -> onnx.ModelProto:
    """Return y = the sum of x times the sum of every parameter; parameters in `wide` are
    float64.
    """
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    nodes, sums = [], []
    for name in SHAPES:
        nodes.append(helper.make_node("ReduceSum", [name], [f"{name}.sum"], name, keepdims=0))
        sums.append(f"{name}.sum")
        if name in wide:
            nodes.append(helper.make_node("Cast", [f"{name}.sum"], [f"{name}.f32"], to=kind))
            sums[-1] = f"{name}.f32"
    nodes.append(helper.make_node("Sum", sums, ["total"], "total"))
    nodes.append(helper.make_node("Mul", ["x", "total"], ["y"], "y"))
    kinds = {n: np.float64 if n in wide else dtype for n in SHAPES}
    values = [
        numpy_helper.from_array(rng.standard_normal(s).astype(kinds[n]), n)
        for n, s in SHAPES.items()
    ]
    x, y = (helper.make_tensor_value_info(n, kind, []) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Training:
    """An optimizer over gradients that are drawn, step after step."""

    def __init__(self, folder: Path, threads: int, point: bytes | None = None) -> None:
        self.state = CheckpointState.load_checkpoint(point or folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", self.state, threads=threads)
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.optimizer.set_learning_rate(RATE)

    def step(self, t: int) -> None:
        for name, g in gradients(t).items():
            get_gradient(self.state, name)[...] = g
        self.optimizer.step()

    def values(self) -> Arrays:
        return copy_parameters(self)


def gradients(t: int) -> Arrays:
    rng = np.random.default_rng(100 + t)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()}


def bits(arrays: Arrays) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in arrays.items()}


CASES = list(list_cases())
GROUPS = (
    Group(["*.bias", "c"], lr_scale=0.25, weight_decay=0.0),
    Group(["b.*"], lr_scale=2.0),
)


def scale_and_decay(name: str, own: float, groups: Any) -> tuple[float, float]:
    """Return the settings of a parameter in GROUPS."""
    if not groups:
        return 1.0, own
    return (0.25, 0.0) if name in ("a.bias", "b.bias", "c") else (2.0 if name[0] == "b" else 1, own)


def expected(method: Any, update: Update, start: Arrays, steps: int) -> Arrays:
    """The parameters after so many steps, in float64."""
    values: Arrays = {n: a.astype(np.float64) for n, a in start.items()}
    states: dict[str, dict[str, Any]] = {n: {} for n in values}
    options = vars(method)
    for t in range(1, steps + 1):
        g = {n: a.astype(np.float64) for n, a in gradients(t).items()}
        if method.clip_grad is not None:
            norm = np.sqrt(sum((a**2).sum() for a in g.values()))
            g = {n: a * min(method.clip_grad / (norm + 1e-6), 1) for n, a in g.items()}
        for n in values:
            own = options.get("weight_decay", 0.0)
            scale, decay = scale_and_decay(n, own, method.groups)
            of = {**options, "weight_decay": decay}
            values[n] = update(t, values[n], g[n], states[n], RATE * scale, of)
    return values


def title(value: Any) -> str:
    if isinstance(value, OptimizerCase):
        options = vars(value.method).items()
        shown = {k: v for k, v in options if v and k not in ("betas", "eps")}
        return f"{type(value.method).__name__}-{','.join(f'{k}={v}' for k, v in shown.items())}"
    return str(value)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(np.float32, ()), (np.float64, [*SHAPES]), (np.float32, WIDE)],
    ids=["f32", "f64", "both"],
)
@pytest.mark.parametrize("how", ["plain", "groups", "clip"])
@pytest.mark.parametrize("case", CASES, ids=title)
def test_steps_follow_the_rule_and_resume_bit_for_bit(
    case: OptimizerCase, how: str, dtype: Any, wide: Sequence[str], tmp_path: Path
) -> None:
    given, moments = case.method, case.states
    ways: dict[str, dict[str, Any]] = {
        "plain": {}, "groups": {"groups": GROUPS}, "clip": {"groups": GROUPS, "clip_grad": 0.5}
    }  # fmt: skip
    method = type(given)(**{**vars(given), **ways[how]})
    divided = method.groups or wide == WIDE
    if isinstance(method, SGD) and divided and not method.momentum:
        moments = 0  # one is there for the format of onnxruntime's own alone
    made = model(dtype, wide)
    generate_artifacts(made, [*SHAPES], optimizer=method, artifact_directory=tmp_path)
    whole = Training(tmp_path, threads=1)
    start, saved = whole.values(), b""
    for t in range(1, STEPS + 1):
        whole.step(t)
        if t == SAVED:
            saved = whole.state.to_bytes(include_optimizer_state=True)
    for name, value in expected(method, case.update, start, STEPS).items():
        exact = name in wide and (method.clip_grad is None or wide != WIDE)
        tolerance = (1e-11, 1e-12) if exact else (1e-5, 2e-6)  # a norm adds squares of float32
        np.testing.assert_allclose(whole.values()[name], value, *tolerance, err_msg=name)
    group = storage.decode(saved).optimizer_groups[0]
    assert group.step == SAVED
    names = {f"momentum{k}" for k in range(moments)}
    assert {n: {*m} for n, m in group.states.items()} == dict.fromkeys(SHAPES, names)

    resumed = Training(tmp_path, threads=3, point=saved)
    for t in range(SAVED + 1, STEPS + 1):
        resumed.step(t)
    assert bits(resumed.values()) == bits(whole.values())
    assert resumed.state.to_bytes(True) == whole.state.to_bytes(True)


@pytest.mark.parametrize("kind", list(OptimType), ids=lambda k: k.name)
def test_enums_and_blocks_make_the_same_models(kind: OptimType, tmp_path: Path) -> None:
    block = getattr(onnxblock.optim, kind.name)
    for folder, method in (("a", kind), ("b", getattr(artifacts, kind.name)()), ("c", block())):
        generate_artifacts(
            model(), [*SHAPES], optimizer=method, artifact_directory=tmp_path / folder
        )
    a, b, c = (onnx.load(tmp_path / f / "optimizer_model.onnx") for f in "abc")
    assert a == b
    assert a.graph.node == c.graph.node
    assert a.graph.input == c.graph.input
    onnx.checker.check_model(a, full_check=True)
    training = Training(tmp_path / "c", threads=1)
    LinearLRScheduler(training.optimizer, 0, 4, 0.5).step()
    before = training.values()
    training.step(1)
    assert all((training.values()[n] != before[n]).all() for n in SHAPES)


def test_groups_of_blocks(tmp_path: Path) -> None:
    block = onnxblock.optim.AdamW(
        weight_decay=DECAY, groups=GROUPS, clip_grad=onnxblock.optim.ClipGradNorm(0.5)
    )
    spec = AdamW(weight_decay=DECAY, groups=GROUPS, clip_grad=0.5)
    for folder, method in (("a", block), ("b", spec)):
        generate_artifacts(
            model(), [*SHAPES], optimizer=method, artifact_directory=tmp_path / folder
        )
    a, b = (onnx.load(tmp_path / f / "optimizer_model.onnx") for f in "ab")
    assert a.graph.node == b.graph.node
    assert [n.op_type for n in a.graph.node] == ["InplaceClipGradNorm", *["AdamWOptimizer"] * 3]
    lists = [helper.get_node_attr_value(n, "parameters") for n in a.graph.node[1:]]
    assert lists == [[b"a.weight"], [b"a.bias", b"b.bias", b"c"], [b"b.weight"]]


@pytest.mark.parametrize("kind", list(OptimType), ids=lambda k: k.name)
def test_nan_is_not_lost(kind: OptimType, tmp_path: Path) -> None:
    generate_artifacts(model(), [*SHAPES], optimizer=kind, artifact_directory=tmp_path)
    training = Training(tmp_path, threads=2)
    before = training.values()
    get_gradient(training.state, "c")[7] = np.nan
    training.optimizer.step()
    lost = np.isnan(training.values()["c"])
    assert lost[7]
    assert lost.all() == (kind is OptimType.LAMB)  # whose step is scaled by a norm
    np.testing.assert_array_equal(training.values()["b.bias"], before["b.bias"])


@pytest.mark.parametrize("kind", list(OptimType), ids=lambda k: k.name)
def test_vectors_alone_are_trained(kind: OptimType, tmp_path: Path) -> None:
    """A state that has nothing of any parameter takes no room and does no harm."""
    generate_artifacts(model(), ["a.bias", "c"], optimizer=kind, artifact_directory=tmp_path)
    training = Training(tmp_path, threads=2)
    before = training.values()
    for t in (1, 2):
        for name in ("a.bias", "c"):
            training.state.parameters[name].grad[...] = gradients(t)[name]  # type: ignore[index]  # it is trained
        training.optimizer.step()
    saved = training.state.to_bytes(include_optimizer_state=True)
    assert Training(tmp_path, 1, saved).state.to_bytes(True) == saved
    for name in ("a.bias", "c"):
        assert (training.values()[name] != before[name]).any()


def test_frozen_parameters_and_zero_elements_stay(tmp_path: Path) -> None:
    """LAMB's ratio is 1 for a tensor of zeros, and for one without gradients."""
    generate_artifacts(
        model(), ["a.bias", "c"], ["b.bias"], optimizer=LAMB(), artifact_directory=tmp_path
    )
    training = Training(tmp_path, threads=2)
    parameters = training.state.parameters
    parameters["c"].data[...] = 0
    before = training.values()
    signs = np.sign(gradients(1)["c"])
    parameters["c"].grad[...] = signs  # type: ignore[index]  # it is trained
    training.optimizer.step()
    np.testing.assert_allclose(parameters["c"].data, -RATE * signs, rtol=1e-4)
    for name in ("a.bias", "b.bias"):
        np.testing.assert_array_equal(parameters[name].data, before[name])


def test_an_interrupted_step_is_counted_if_it_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_artifacts(model(), [*SHAPES], optimizer=Adam(), artifact_directory=tmp_path)
    whole, broken, run = Training(tmp_path, 1), Training(tmp_path, 1), Team.run
    whole.step(1)
    broken.step(1)

    def late(self: Team, *args: Any) -> None:
        run(self, *args)
        raise KeyboardInterrupt

    def early(self: Team, *args: Any) -> None:
        raise KeyboardInterrupt

    for how in (early, late):
        with monkeypatch.context() as patch:
            patch.setattr(Team, "run", how)
            with pytest.raises(KeyboardInterrupt):
                broken.step(2)
    whole.step(2)
    assert broken.state.to_bytes(True) == whole.state.to_bytes(True)
    whole.step(3)
    broken.step(3)
    assert broken.state.to_bytes(True) == whole.state.to_bytes(True)
    assert broken.optimizer._group.step == 3


def test_a_new_hyperparameter_compiles_nothing(tmp_path: Path) -> None:
    kernels = []
    for i, method in enumerate((AdamW(), AdamW(betas=(0.5, 0.75), eps=0.5, weight_decay=0.5))):
        folder = tmp_path / str(i)
        generate_artifacts(model(), [*SHAPES], optimizer=method, artifact_directory=folder)
        training = Training(folder, 1)
        training.step(1)
        program = training.optimizer._program
        assert program is not None
        kernels.append(program.plan.specs)
    assert kernels[0] == kernels[1]


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (lambda: SGD(momentum=-1), InputError, "momentum=-1: expected 0 or more"),
        (lambda: SGD(nesterov=True), InputError, "nesterov=True needs a momentum and no dampening"),
        (
            lambda: SGD(dampening=0.5, momentum=0.5, nesterov=True),
            InputError,
            "needs a momentum and no",
        ),
        (lambda: RMSprop(alpha=1), InputError, "alpha=1: expected from 0 to below 1"),
        (lambda: Adagrad(eps=-1), InputError, "eps=-1: expected 0 or more"),
        (lambda: Lion(betas=(1, 0)), InputError, r"betas\[0\]=1: expected from 0 to below 1"),
        (lambda: LAMB(weight_decay=drop_type("x")), DTypeError, "weight_decay: expected a number"),
        (lambda: Adam(groups=[Group(["a.wieght"])]), NameNotFoundError, "nearest: 'a.weight'"),
        (lambda: Adam(groups=[Group(["*"]), Group(["c"])]), InputError, "group 1 has no parameter"),
        (lambda: Adam(groups=[Group("c")]), InputError, "match: expected a list of names"),
        (
            lambda: Adam(groups=[Group(["c"], lr_scale=-1)]),
            InputError,
            "lr_scale=-1: expected 0 or more",
        ),
        (lambda: Adam(groups=drop_type(["c"])), DTypeError, r"groups\[0\]: expected a Group"),
    ],
)
def test_options_are_checked(
    method: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        generate_artifacts(model(), [*SHAPES], optimizer=method(), artifact_directory=tmp_path)


@dataclass(frozen=True)
class Undecayed(SGD):
    """An optimizer that has no weight decay."""

    def attributes(self) -> dict[str, Any]:
        return {"lr_scale": 1.0}


def test_a_group_cannot_decay_if_the_optimizer_does_not() -> None:
    Undecayed(groups=[Group(["c"], lr_scale=0.5)])
    with pytest.raises(
        InputError, match=r"groups\[1\]: weight_decay=0.0 .*Undecayed has no weight"
    ):
        Undecayed(groups=[Group(["c"]), Group(["*"], weight_decay=0.0)])


def changed(folder: Path, change: Callable[[onnx.ModelProto], Any]) -> bytes:
    proto = onnx.load(folder / "optimizer_model.onnx")
    change(proto)
    return bytes(proto.SerializeToString())


def attribute(at: int, name: str, value: Any) -> Callable[[onnx.ModelProto], Any]:
    def change(proto: onnx.ModelProto) -> None:
        node = proto.graph.node[at]
        others = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, value)])

    return change


def no_moments(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        del node.input[4:]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (attribute(0, "parameters", ["c", "x"]), ModelError, r"more than once: \['c'\]"),
        (attribute(0, "parameters", ["x"]), ModelError, r"that are not trained: \['x'\]"),
        (attribute(1, "parameters", ["c"]), ModelError, r"does not update .*: "
        r"\['a.bias', 'b.bias'\]"),
        (lambda m: m.graph.node[0].input.__setitem__(4, "params"), ModelError, "keeps its state"),
        (lambda m: m.graph.node[0].output.insert(0, ""), ModelError, "lacks its first output"),
        (lambda m: m.graph.input.add().CopyFrom(
            helper.make_tensor_value_info("extra", TensorProto.FLOAT, [1])),
         DTypeError, r"input 'extra' as f32\[1\], expected seq\(f32\)"),
        (lambda m: setattr(m.graph.node[0], "op_type", "AdmOptimizer"), UnsupportedOpError,
         "nearest: 'AdamOptimizer'"),
        (attribute(0, "alpha", 1.5), UnsupportedOpError, "alpha is 1.5, beta .*from 0 to below 1"),
        (attribute(0, "momentum", 0.5), ModelError, "unknown attribute 'momentum'"),
        (no_moments, UnsupportedOpError, "input 4 is missing"),
    ],
)  # fmt: skip
def test_models_are_checked(
    change: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    generate_artifacts(
        model(), [*SHAPES], optimizer=Adam(groups=GROUPS), artifact_directory=tmp_path
    )
    training = Training(tmp_path, 1)
    with pytest.raises(error, match=message):
        Optimizer(changed(tmp_path, change), training.module).step()


def test_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    for folder, method in (("a", Adam()), ("b", SGD(momentum=0.5))):
        generate_artifacts(
            model(), [*SHAPES], optimizer=method, artifact_directory=tmp_path / folder
        )
    training = Training(tmp_path / "a", 1)
    training.step(1)
    saved = training.state.to_bytes(include_optimizer_state=True)
    with pytest.raises(CheckpointError, match=r"has \['momentum0', 'momentum1'\]"):
        Training(tmp_path / "b", 1, point=saved)

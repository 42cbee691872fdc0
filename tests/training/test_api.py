"""The training API: the meaning of onnxruntime-training's, with its defects corrected."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.artifacts import LossType, generate_artifacts
from engine.checkpoint.storage import Checkpoint, OptimizerGroup, encode
from engine.errors import (
    CheckpointError,
    DTypeError,
    EngineError,
    FileError,
    InputError,
    LabelError,
    ModelError,
    NameNotFoundError,
    NonFiniteError,
    ShapeError,
    StateError,
)
from engine.system import config
from engine.training import memory
from engine.training.state import LEARNING_RATE
from tests.support.harness import drop_type, get_gradient
from tests.support.places import GOLDENS

MLP = GOLDENS / "mlp"
SGD = GOLDENS / "regression_sgd"
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def make(folder: Path = MLP, **kwargs: Any) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx",
        state,
        folder / "eval_model.onnx",
        **{"threads": 1, **kwargs},
    )
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def batch(n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 64)).astype(np.float32), rng.integers(0, 10, n)


# --- state


def test_parameters_iterate_sorted_and_print() -> None:
    state, _, _ = make()
    assert [n for n, _ in state.parameters] == sorted(NAMES)
    assert len(state.parameters) == 4
    assert "0.bias" in state.parameters
    assert "nothing" not in state.parameters
    assert repr(state.parameters["0.bias"]) == "Parameter(name='0.bias', requires_grad=True)"
    assert "0.weight" in repr(state.parameters)


def test_parameter_data_is_a_view_before_and_after_a_module() -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    state.parameters["0.bias"].data[...] = 3
    assert state.parameters["0.bias"].grad is None
    module = Module(MLP / "training_model.onnx", state, MLP / "eval_model.onnx")
    x, y = batch()
    before = module.eval()(x, y)
    state.parameters["0.bias"] = np.full(48, -3, np.float32)
    assert module(x, y) != before
    grad = state.parameters["2.bias"].grad
    assert grad is not None
    assert not grad.any()
    module.train()(x, y)
    assert grad.any()


def test_parameter_assignment_is_checked() -> None:
    state, _, _ = make()
    with pytest.raises(ShapeError, match=r"'0.bias': expected shape \(48,\), got \(47,\)"):
        state.parameters["0.bias"].data = np.zeros(47, np.float32)
    with pytest.raises(DTypeError, match="float32, got float64"):
        state.parameters["0.bias"].data = np.zeros(48)
    with pytest.raises(NameNotFoundError, match=r"no parameter '0\.bia'; nearest: '0\.bias'"):
        state.parameters["0.bia"]
    with pytest.raises(KeyError):
        state.parameters["zzz"] = np.zeros(1)


@pytest.mark.parametrize(
    "value", [-1, 0, 1, 1234567890, -1.0, -0.1, 0.1, 1.0, 1234.0, "hello", "world", "!"]
)
def test_properties_round_trip(value: float | str, tmp_path: Path) -> None:
    state, _, _ = make()
    assert len(state.properties) == 0
    state.properties["p"] = value
    expected = float(np.float32(value)) if isinstance(value, float) else value
    assert state.properties["p"] == expected
    assert "p" in state.properties
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    assert again.properties["p"] == expected
    assert type(again.properties["p"]) is type(expected)
    assert list(again.properties) == [("p", expected)]


def test_properties_are_checked() -> None:
    state, _, _ = make()
    with pytest.raises(DTypeError, match="got list"):
        state.properties["p"] = drop_type([1])
    with pytest.raises(InputError, match="64 bits"):
        state.properties["p"] = 2**70
    with pytest.raises(NameNotFoundError, match="no property 'p'"):
        state.properties["p"]
    state.properties["flag"] = True
    assert state.properties["flag"] == 1
    assert repr(state.properties) == "Properties({'flag': 1})"


def test_state_is_made_by_loading_only() -> None:
    with pytest.raises(TypeError, match="load_checkpoint"):
        CheckpointState(drop_type({}))


# --- steps


def test_gradients_accumulate_until_reset() -> None:
    state, module, _ = make()
    x, y = batch()
    module(x, y)
    once = get_gradient(state, "2.weight").copy()
    module(x, y)
    np.testing.assert_allclose(get_gradient(state, "2.weight"), 2 * once, rtol=1e-6)
    module.lazy_reset_grad()
    np.testing.assert_allclose(get_gradient(state, "2.weight"), 2 * once, rtol=1e-6)
    module(x, y)
    np.testing.assert_array_equal(state.parameters["2.weight"].grad, once)


def test_optimizer_step_keeps_gradients_and_changes_parameters() -> None:
    state, module, optimizer = make()
    before = module.get_contiguous_parameters()
    module(*batch())
    grad = get_gradient(state, "0.weight").copy()
    optimizer.step()
    assert not np.array_equal(module.get_contiguous_parameters(), before)
    np.testing.assert_array_equal(state.parameters["0.weight"].grad, grad)


def test_batches_of_any_size_share_one_module() -> None:
    _, module, _ = make()
    for n in (4, 1, 7, 4):
        assert np.isfinite(module(*batch(n)))


def test_plans_of_shapes_long_not_seen_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one of bytes, for all models of a module together."""
    _, module, _ = make()
    first = module.eval()(*batch(1))
    programs = module.session.memory.programs
    (one,) = programs.values()
    monkeypatch.setattr(memory, "plan_bytes", lambda: int(3.5 * one.nbytes))
    for n in (2, 1, 3, 4):  # of 1, 2, 3: 2 goes when 4 comes
        module(*batch(n))
    assert [key[-1][0] for key in programs] == [1, 3, 4]  # the batch of its last input
    assert sum(p.nbytes for p in programs.values()) <= 3.5 * one.nbytes
    module.train()(*batch(5))  # larger than two plans of the eval model
    *_, newest = programs
    assert (newest[0], newest[-1][0]) == ("training model", 5)
    assert len(programs) < 4
    assert module.eval()(*batch(1)) == first


def test_a_step_of_a_known_shape_reads_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one walks over the whole environment, as long as a small model's step takes."""
    _, module, optimizer = make()
    read: list[str] = []
    real = config.switch

    def noted(name: str) -> str:
        read.append(name)
        return real(name)

    for name, loaded in list(sys.modules.items()):
        if name.startswith("engine.") and getattr(loaded, "switch", None) is real:
            monkeypatch.setattr(loaded, "switch", noted)
    for _ in range(2):
        known = len(read)
        module(*batch(2))
        optimizer.step()
        module.lazy_reset_grad()
    assert known
    assert read[known:] == []


def test_a_plan_larger_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, _ = make()
    monkeypatch.setattr(memory, "plan_bytes", lambda: 1)
    for n in (1, 2, 2):
        module(*batch(n))
    assert [key[-1][0] for key in module.session.memory.programs] == [2]


def test_the_limit_of_plans_is_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEGRAD_PLAN_MEMORY", "3")
    assert config.plan_bytes() == 3 << 20
    monkeypatch.setenv("EDGEGRAD_PLAN_MEMORY", "0")
    with pytest.raises(
        EngineError, match=r"EDGEGRAD_PLAN_MEMORY \(MiB\)='0': expected a whole number from 1"
    ):
        make()[1](*batch(6))


def test_plans_share_memory() -> None:
    """Inputs, outputs and values of all shapes lie in the bytes that the largest shape needs."""
    _, module, _ = make()
    for n in (3, 9, 1):
        module.train()(*batch(n))
        module.eval()(*batch(n))
    memory = module.session.memory
    assert len(memory.programs) == 6
    plans = [p.plan for p in memory.programs.values()]
    assert memory.io.nbytes == max(p.compute_region_bytes("io") for p in plans)
    assert memory.work.nbytes == max(p.compute_region_bytes("work") for p in plans)
    for program in memory.programs.values():
        for array in (*program.inputs.values(), *program.outputs.values()):
            assert np.shares_memory(array, memory.io)
    assert len({id(p._own["const"]) for p in memory.programs.values()}) <= 2  # train and eval


def test_lists_and_none_are_accepted_as_inputs() -> None:
    _, module, _ = make()
    x, y = batch()
    expected = module.eval()(x, y)
    assert module(x.tolist(), y.tolist()) == expected
    assert module(x, None, y) == expected


def test_inputs_by_keyword_are_told_their_order() -> None:
    _, module, _ = make()
    x, y = batch()
    with pytest.raises(InputError, match=r"by position, in the order \['input', 'labels'\]; got"):
        module(x, labels=y)


def test_an_input_without_elements_computes(tmp_path: Path) -> None:
    """The sum over a past of no steps and three present ones is that over the three alone."""
    node, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    graph = onnx.helper.make_graph(
        [
            node("Concat", ["past", "x"], ["all"], axis=1),
            node("ReduceSum", ["all", "axes"], ["sum"], keepdims=0),
            node("MatMul", ["sum", "w"], ["y"]),
        ],
        "g",
        [info("past", 1, ["batch", "before", 4]), info("x", 1, ["batch", "now", 4])],
        [info("y", 1, ["batch", 3])],
        [
            onnx.numpy_helper.from_array(rng.standard_normal((4, 3)).astype(np.float32), "w"),
            onnx.numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    generate_artifacts(model, ["w"], loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    x, labels = rng.standard_normal((2, 3, 4)).astype(np.float32), np.array([0, 2])
    actual = []
    for past in (np.zeros((2, 1, 4), np.float32), np.zeros((2, 0, 4), np.float32)):
        actual.append((float(module(past, x, labels)), get_gradient(state, "w").tolist()))
        module.lazy_reset_grad()
    assert actual[0] == actual[1]
    with pytest.raises(InputError, match=r"'past' is empty: shape \[0, 1, 4\]"):
        module(np.zeros((0, 1, 4), np.float32), x[:0], labels[:0])


def test_outputs_are_ort_values_if_all_inputs_are() -> None:
    _, module, _ = make()
    arrays = batch()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in arrays]
    expected = module.eval()(*arrays)
    actual_module = module(*values)
    assert isinstance(actual_module, onnxruntime.OrtValue)
    assert actual_module.numpy() == expected
    assert module(arrays[0], values[1]) == expected


def test_names_follow_the_mode() -> None:
    _, module, _ = make()
    assert module.input_names() == ["input", "labels"]
    assert module.output_names() == ["onnx::loss::2"]
    assert module.training
    assert module.eval() is module
    assert not module.training
    assert module.output_names() == ["onnx::loss::2"]
    assert module.train().training


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((np.zeros((2, 64), np.float32),), InputError, "takes 2 inputs"),
        ((np.zeros((2, 64)), np.zeros(2, np.int64)), DTypeError, "'input': expected float32"),
        ((np.zeros((2, 64), np.float32), np.zeros(2, np.int32)), DTypeError, "got int32"),
        ((np.zeros((2, 63), np.float32), np.zeros(2, np.int64)), ShapeError, "is 63"),
        ((np.zeros((64,), np.float32), np.zeros(2, np.int64)), ShapeError, "2 dimensions"),
        ((np.zeros((2, 64), np.float32), np.zeros(3, np.int64)), ShapeError, "'batch'"),
        ((np.zeros((0, 64), np.float32), np.zeros(0, np.int64)), InputError, "is empty"),
        ((np.zeros((2, 64), np.float32), ["a", "b"]), DTypeError, "expected values of type"),
    ],
)
def test_bad_inputs_are_named(inputs: tuple[object, ...], error: type, message: str) -> None:
    _, module, _ = make()
    with pytest.raises(error, match=message):
        module(*inputs)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("label", [10, -1, 2**40, -(2**62)])
def test_a_label_out_of_range_changes_no_gradient(label: int, threads: int) -> None:
    state, module, _ = make(threads=threads)
    x, y = batch(9)
    module(x, y)
    kept = {n: get_gradient(state, n).copy() for n, _ in state.parameters}
    bad = y.copy()
    bad[5] = label
    with pytest.raises(LabelError, match=rf"label {label} at position 5 is outside \[0, 10\)"):
        module(x, bad)
    for name, p in state.parameters:
        np.testing.assert_array_equal(p.grad, kept[name])
    module(x, y)  # and the module goes on


def test_a_negative_label_is_told_of_ignore_index() -> None:
    """-100 marks samples that do not count where PyTorch trains, whose losses ignore it."""
    _, module, _ = make()
    x, _ = batch(3)
    with pytest.raises(LabelError, match=r"\[0, 10\); a loss made with ignore_index=-100 ignores"):
        module(x, np.array([1, -100, 2]))
    with pytest.raises(LabelError, match=r"label 10 at position 0 is outside \[0, 10\)$"):
        module(x, np.array([10, 1, 2]))


def test_a_loss_that_is_not_finite_is_reported_when_asked() -> None:
    x, y = batch()
    x[0, 0] = np.nan
    _, module, _ = make()
    assert np.isnan(module(x, y))
    _, module, _ = make(check_finite=True)
    with pytest.raises(NonFiniteError, match="training step: output 'onnx::loss::2'"):
        module(x, y)


def test_eval_without_an_eval_model_is_an_error() -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    module = Module(MLP / "training_model.onnx", state)
    module.eval()
    with pytest.raises(StateError, match="no eval model"):
        module(*batch())
    with pytest.raises(StateError, match="no eval model"):
        module.export_model_for_inferencing("x.onnx", ["output"])


def test_only_the_cpu_is_a_device() -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    with pytest.raises(EngineError, match="'cuda' is not supported; only 'cpu' is"):
        Module(MLP / "training_model.onnx", state, device="cuda")


# --- buffers, checkpoints


def test_parameters_as_one_buffer() -> None:
    state, module, optimizer = make()
    assert module.get_parameters_size() == 3610
    buffer = module.get_contiguous_parameters(trainable_only=True)
    np.testing.assert_array_equal(
        buffer.numpy(), np.concatenate([state.parameters[n].data.ravel() for n in NAMES])
    )
    module(*batch())
    optimizer.step()
    module.copy_buffer_to_parameters(buffer)
    np.testing.assert_array_equal(module.get_contiguous_parameters(), buffer)
    with pytest.raises(ShapeError, match="3610 elements, the buffer 3609"):
        module.copy_buffer_to_parameters(buffer[:-1])
    with pytest.raises(DTypeError, match="float32"):
        module.copy_buffer_to_parameters(buffer.astype(np.float64))


@pytest.mark.parametrize("folder", [MLP, SGD], ids=["adamw", "sgd"])
def test_training_resumes_where_it_was_saved(folder: Path, tmp_path: Path) -> None:
    def inputs(module: Module) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        if folder is MLP:
            return batch()
        return (
            rng.standard_normal((4, 7)).astype(np.float32),
            rng.standard_normal((4, 2)).astype(np.float32),
        )

    state, module, optimizer = make(folder)
    optimizer.set_learning_rate(0.01)
    for _ in range(3):
        module(*inputs(module))
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    data = state.to_bytes(include_optimizer_state=True)
    assert data == (tmp_path / "c").read_bytes()
    resumed = CheckpointState.from_bytes(data)
    assert len(resumed.properties) == 0
    module2 = Module(folder / "training_model.onnx", resumed, threads=1)
    optimizer2 = Optimizer(folder / "optimizer_model.onnx", module2)
    assert optimizer2.get_learning_rate() == pytest.approx(0.01)
    for m, o in ((module, optimizer), (module2, optimizer2)):
        m(*inputs(m))
        o.step()
    np.testing.assert_array_equal(
        module.get_contiguous_parameters(), module2.get_contiguous_parameters()
    )


def test_a_checkpoint_without_optimizer_state_forgets_it(tmp_path: Path) -> None:
    state, module, optimizer = make()
    optimizer.set_learning_rate(0.5)
    module(*batch())
    optimizer.step()
    CheckpointState.save_checkpoint(state, tmp_path / "c")
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    assert again.groups == []
    module2 = Module(MLP / "training_model.onnx", again, threads=1)
    assert Optimizer(MLP / "optimizer_model.onnx", module2).get_learning_rate() == 0.001


def test_models_and_checkpoints_from_bytes() -> None:
    state = CheckpointState.from_bytes((MLP / "checkpoint").read_bytes())
    module = Module(
        (MLP / "training_model.onnx").read_bytes(), state, (MLP / "eval_model.onnx").read_bytes()
    )
    optimizer = Optimizer((MLP / "optimizer_model.onnx").read_bytes(), module)
    assert np.isfinite(module(*batch()))
    optimizer.step()
    assert module.inference_model_to_bytes(["output"])


def test_a_module_refuses_a_checkpoint_of_another_model() -> None:
    state = CheckpointState.load_checkpoint(SGD / "checkpoint")
    with pytest.raises(
        ShapeError, match=r"'0.weight' is \[48, 64\] in the training model, but \[16, 7\]"
    ):
        Module(MLP / "training_model.onnx", state)
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    module = Module(MLP / "training_model.onnx", state)
    with pytest.raises(ModelError, match="the model has no optimizer node: expected one of"):
        Optimizer(MLP / "eval_model.onnx", module)


def test_an_optimizer_refuses_state_of_another_one() -> None:
    state, module, optimizer = make()
    module(*batch())
    optimizer.step()
    data = state.to_bytes(include_optimizer_state=True)
    module2 = Module(MLP / "training_model.onnx", CheckpointState.from_bytes(data))
    with pytest.raises(CheckpointError, match="momentum0"):
        Optimizer(SGD / "optimizer_model.onnx", module2)


def test_files_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    state, module, _ = make()
    with pytest.raises(FileError, match="missing"):
        CheckpointState.save_checkpoint(state, tmp_path / "missing" / "c")
    with pytest.raises(FileError, match="missing"):
        module.export_model_for_inferencing(tmp_path / "missing" / "m.onnx", ["output"])
    with pytest.raises(FileError, match=r"none\.onnx"):
        Module(tmp_path / "none.onnx", state)
    (tmp_path / "bad.onnx").write_bytes((MLP / "training_model.onnx").read_bytes()[:700])
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        Module(tmp_path / "bad.onnx", state)


# --- learning rate


def test_learning_rate_is_kept() -> None:
    _, _, optimizer = make()
    assert optimizer.get_learning_rate() == 0.001
    optimizer.set_learning_rate(0.5)
    assert optimizer.get_learning_rate() == 0.5
    with pytest.raises(InputError, match="not finite"):
        optimizer.set_learning_rate(float("nan"))
    with pytest.raises(InputError, match="-1 is negative"):
        optimizer.set_learning_rate(-1)


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, -math.inf])
def test_a_learning_rate_of_a_checkpoint_that_no_training_can_use(value: float) -> None:
    for content in (
        Checkpoint(properties={LEARNING_RATE: value}),
        Checkpoint(optimizer_groups=[OptimizerGroup(initial_learning_rate=value)]),
    ):
        with pytest.raises(CheckpointError, match=rf"learning_rate is {value}: expected"):
            CheckpointState.from_bytes(encode(content)[0])
    early, _ = encode(Checkpoint(optimizer_groups=[OptimizerGroup(step=-1)]))
    with pytest.raises(CheckpointError, match="step of 'group0' is -1"):
        CheckpointState.from_bytes(early)


def test_linear_schedule_warms_up_then_decays() -> None:
    _, module, optimizer = make()
    schedule = LinearLRScheduler(optimizer, 2, 6, 1.0)
    rates = [optimizer.get_learning_rate()]
    for _ in range(7):
        module(*batch())
        optimizer.step()
        schedule.step()
        rates.append(optimizer.get_learning_rate())
    assert rates == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0])
    with pytest.raises(InputError, match="warm-up <= total"):
        LinearLRScheduler(optimizer, 7, 6, 1.0)

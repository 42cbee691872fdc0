"""Trimmed builds from Python: they train like the engine to the last bit, without its packages."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine.api import CheckpointState, LinearLRScheduler
from engine.artifacts import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    AdamW,
    Group,
    LossType,
    OptimType,
    RMSprop,
    SparseUpdate,
    generate_artifacts,
)
from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError, DTypeError, EngineError
from engine.kernels.machine.target import detect_host
from engine.quantization import Qat, prepare_qat
from engine.tools import cli
from engine.tools.trimmed.build import build
from engine.tools.trimmed.generate import quote
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.plans import Planned, list_artifacts, make_plans
from engine.tools.trimmed.selftest import A, C, draw_words
from engine.tools.trimmed.targets import resolve
from engine.trainer.trainer import Trainer
from engine.training.loss_scale import GROWTH_INTERVAL, INITIAL, MOST
from tests.support import tiny
from tests.support.build_twins import Both
from tests.support.builds import load, needs_cc, run
from tests.support.builds import make_build as built
from tests.support.harness import evaluate
from tests.support.places import GOLDENS

pytestmark = needs_cc


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "case",
    ["mlp", "cnn", *(pytest.param(c, marks=pytest.mark.whole) for c in ("mobilenet", "lstm"))],
)
def test_ten_steps_equal_the_engine_to_the_last_bit(case: str, threads: int) -> None:
    both = Both(case, threads)
    for k in range(10):
        actual, expected = both.step(k)
        assert actual == expected
        both.assert_equal()
        assert both.trainer.evaluate(*both.batch(k)) == both.module.eval()(*both.batch(k))
    for include in (False, True):
        assert both.trainer.state.to_bytes(include) == both.state.to_bytes(include)


def test_sgd_and_gradient_accumulation_equal_the_engine() -> None:
    both = Both("regression_sgd")
    for k in range(3):
        both.module.train()(*both.batch(k))
        both.trainer.module.train()(*both.batch(k))
    both.assert_equal()
    actual, expected = both.step(3)
    assert actual == expected
    both.assert_equal()
    saved = both.trainer.state.to_bytes(True)
    assert saved == both.state.to_bytes(True)
    assert both.face.Trainer(saved).state.to_bytes(True) == saved
    manifest = json.loads((both.face.HERE / "manifest.json").read_text())
    kept = manifest["report"]["areas"]["optimizer state"]
    assert kept == 0, "checkpoints have a moment that nobody reads"


OTHERS = {
    "rmsprop": RMSprop(
        momentum=0.5, centered=True, clip_grad=0.5,
        groups=[Group(["*.bias"], lr_scale=0.5, weight_decay=0.25)],
    ),
    "lamb": LAMB(weight_decay=0.25),
    "decay": SGD(weight_decay=0.25),  # which keeps no states
    "adagrad": Adagrad(initial_accumulator_value=0.25),  # whose state begins with another value
    "adafactor": Adafactor(beta1=0.5, groups=[Group(["*.bias"], lr_scale=0.5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_equal_the_engine(name: str, tmp_path: Path) -> None:
    spec = json.loads((GOLDENS / "mlp/case.json").read_text())
    generate_artifacts(
        GOLDENS / "mlp/forward.onnx", spec["requires_grad"], loss=LossType[spec["loss"]],
        optimizer=OTHERS[name], artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    build(
        tmp_path / "artifacts",
        tmp_path / "out",
        Options("mnist", resolve("native"), PlanRequest([4])),
    )
    both = Both("mlp", folder=tmp_path / "artifacts", made=tmp_path / "out")
    for k in range(3):
        actual, expected = both.step(k)
        assert actual == expected
        both.assert_equal()
    saved = both.trainer.state.to_bytes(True)
    assert saved == both.state.to_bytes(True)
    (tmp_path / "saved").write_bytes(saved)
    resumed = both.face.Trainer(tmp_path / "saved")
    assert resumed.step(*both.batch(3)) == both.trainer.step(*both.batch(3))
    assert resumed.state.to_bytes(True) == both.trainer.state.to_bytes(True)


def test_a_sparse_update_equals_the_engine_and_exports_whole_weights(tmp_path: Path) -> None:
    update = SparseUpdate(biases=True, channels={"[28].weight": 0.5})
    generate_artifacts(
        GOLDENS / "cnn/forward.onnx", loss=LossType.CrossEntropyLoss, optimizer=AdamW(),
        artifact_directory=tmp_path / "artifacts", update=update,
    )  # fmt: skip
    build(
        tmp_path / "artifacts",
        tmp_path / "out",
        Options("mnist", resolve("native"), PlanRequest([4])),
    )
    both = Both("cnn", folder=tmp_path / "artifacts", made=tmp_path / "out")
    for k in range(3):
        actual, expected = both.step(k)
        assert actual == expected
        both.assert_equal()
    assert both.trainer.state.to_bytes(True) == both.state.to_bytes(True)
    data = both.module.inference_model_to_bytes(["output"])
    assert both.trainer.module.inference_model_to_bytes(["output"]) == data
    shapes = {a.name: tuple(a.dims) for a in onnx.load_from_string(data).graph.initializer}
    whole = onnx.load(GOLDENS / "cnn/forward.onnx").graph.initializer
    assert shapes.items() >= {(a.name, tuple(a.dims)) for a in whole if a.name in shapes}
    assert "2.weight" in shapes


@pytest.mark.parametrize(("case", "threads"), [("mlp", 1), ("cnn", 2)])
def test_a_joined_build_equals_two_calls_to_the_last_bit(
    case: str, threads: int, tmp_path: Path
) -> None:
    """And takes memory for one gradient at a time."""
    platform = resolve("native")
    manifest = build(
        GOLDENS / case, tmp_path, Options("mnist", platform, PlanRequest([4], threads, joined=True))
    )
    both = Both(case, threads, made=tmp_path)
    for k in range(4):
        actual, expected = both.step(k)
        assert actual == expected
        assert both.trainer.state.to_bytes(True) == both.state.to_bytes(True)
    assert all(p.grad is None for _, p in both.trainer.state.parameters)
    with pytest.raises(both.face.StateError, match="update the parameters themselves"):
        both.trainer.optimizer.step()
    apart = json.loads((built(case, threads) / "manifest.json").read_text())["sizes"]["memory"]
    weights = [p.data.nbytes for _, p in both.state.parameters if p.requires_grad]
    assert manifest["sizes"]["memory"] < apart - (sum(weights) - max(weights))
    x, y = both.batch(4)
    before = both.trainer.state.to_bytes(True)
    with pytest.raises(both.face.LabelError):
        both.trainer.step(x, np.full_like(y, 10))
    assert both.trainer.state.to_bytes(True) == before


@pytest.mark.parametrize("ranges", ["moving", pytest.param("learned", marks=pytest.mark.whole)])
def test_a_build_trains_with_roundings_like_the_engine(
    ranges: Literal["moving", "learned"], tmp_path: Path
) -> None:
    """Ranges move or are trained, too; its checkpoint becomes integers, and not on the device."""
    artifacts, out = tmp_path / "artifacts", tmp_path / "out"
    data = np.load(GOLDENS / "cnn/trace.npz")["x"][0]
    weights: Any = "learned" if ranges == "learned" else "largest"
    options = Qat(weight_bits=4, ranges=ranges, weight_ranges=weights, threads=1)
    aware = prepare_qat(GOLDENS / "cnn/forward.onnx", data, options)
    trainer = Trainer.from_onnx(aware.to_bytes(), "cross_entropy", SGD(), folder=artifacts)
    asked = Options("mnist", resolve("native"), PlanRequest([4]))
    with pytest.raises(EngineError, match="weights are rounded in training"):
        build(artifacts, out, replace(asked, export=True))
    build(artifacts, out, asked)
    both = Both("cnn", folder=artifacts, made=out)
    for k in range(3):
        actual, expected = both.step(k)
        assert actual == expected
        both.assert_equal()
    with pytest.raises(both.face.StateError):
        both.trainer.module.inference_model_to_bytes(["output"])
    (tmp_path / "trained").write_bytes(both.trainer.state.to_bytes(True))
    trainer.load(tmp_path / "trained")
    trainer.export(tmp_path / "int8.onnx")
    kinds = {t.data_type for t in onnx.load(tmp_path / "int8.onnx").graph.initializer
             if len(t.dims) > 1}  # fmt: skip
    assert kinds == {onnx.TensorProto.INT4}


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_a_build_skips_updates_whose_gradients_are_not_finite(joined: bool, tmp_path: Path) -> None:
    names = [t.name for t in onnx.load(GOLDENS / "mlp/forward.onnx").graph.initializer]
    generate_artifacts(
        GOLDENS / "mlp/forward.onnx", loss=LossType.CrossEntropyLoss, requires_grad=names,
        optimizer=AdamW(skip_nonfinite=True), artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    options = Options("mnist", resolve("native"), PlanRequest([4], joined=joined))
    build(tmp_path / "artifacts", tmp_path / "out", options)
    both = Both("mlp", folder=tmp_path / "artifacts", made=tmp_path / "out")
    both.step(0)
    before = both.trainer.state.to_bytes(True)
    x, y = both.batch(1)
    bad = np.full_like(x, np.nan)
    both.trainer.step(bad, y)
    both.module.train()(bad, y)
    both.optimizer.step()
    both.module.lazy_reset_grad()
    after = CheckpointState.from_bytes(both.trainer.state.to_bytes(True))
    after.skipped = 0
    assert after.to_bytes(True) == before
    assert (both.trainer.optimizer.get_skipped(), both.trainer.steps) == (1, 1)
    actual, expected = both.step(1)
    assert actual == expected
    assert both.trainer.state.to_bytes(True) == both.state.to_bytes(True)
    assert (both.trainer.optimizer.get_skipped(), both.trainer.steps) == (1, 2)


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
def test_a_build_in_float16_scales_its_loss_like_the_engine(joined: bool, tmp_path: Path) -> None:
    """Through overflow and growth, and from the engine's checkpoint and back."""
    planning = PlanOptions(precision="f16")
    options = Options(
        "mnist", resolve("native"), PlanRequest([16], joined=joined, planning=planning)
    )
    build(GOLDENS / "cnn", tmp_path, options)
    both = Both("cnn", made=tmp_path, precision="f16", copies=4)
    whole = Trainer(GOLDENS / "cnn", precision="f16", threads=1)
    if joined:
        both.state = whole.state
    scaled = whole.optimizer if joined else both.optimizer
    assert scaled is not None
    scales = [both.trainer.loss_scale]
    for k in range(8):
        if k in (2, 5):  # saved by the engine; first with a factor that must overflow
            factor, good = (MOST, GROWTH_INTERVAL - 1) if k == 2 else (1024.0, GROWTH_INTERVAL - 2)
            both.state.loss_scale, both.state.good_steps = factor, good
            if k == 2:  # gradients of many samples are small
                both.state.parameters["6.weight"].data[...] *= 16
            both.trainer = both.face.Trainer(both.state.to_bytes(True))
        if joined:
            whole.learning_rate = both.trainer.learning_rate = 0.01
            actual, expected = both.trainer.step(*both.batch(k)), whole.step(*both.batch(k))
        else:
            actual, expected = both.step(k)
        assert actual == expected
        for include in (False, True):
            assert both.trainer.state.to_bytes(include) == both.state.to_bytes(include)
        assert both.trainer.loss_scale == scaled.loss_scale
        assert both.trainer.optimizer.get_skipped() == both.state.skipped
        scales.append(scaled.loss_scale)
    assert scales[:3] == [INITIAL] * 3
    assert scales[3] == MOST / 2, "nothing overflowed"
    assert scales[6:] == [1024, 2048, 2048]
    both.trainer.optimizer.set_loss_scale(512)
    assert both.trainer.loss_scale == 512
    for bad in (0.5, MOST * 2):
        with pytest.raises(both.face.InputError, match="give 1 to 16777216"):
            both.trainer.optimizer.set_loss_scale(bad)
    assert "passed" in run(tmp_path / "selftest")


def test_a_build_within_a_budget_equals_the_engine(tmp_path: Path) -> None:
    planned = make_plans(
        list_artifacts(GOLDENS / "cnn"), detect_host(), PlanRequest([4], joined=True)
    )
    budget = max(plan.nbytes for plan in planned.list_plans()) - 1
    planning = PlanOptions(budget=budget)
    options = Options("mnist", resolve("native"), PlanRequest([4], joined=True, planning=planning))
    build(GOLDENS / "cnn", tmp_path, options)
    both = Both("cnn", made=tmp_path)
    for k in range(2):
        actual, expected = both.step(k)
        assert actual == expected
    assert both.trainer.state.to_bytes(True) == both.state.to_bytes(True)
    plans = replace(options.plans, planning=PlanOptions(budget=1 << 10))
    tight = replace(options, plans=plans)
    with pytest.raises(BudgetError, match="smallest"):
        build(GOLDENS / "cnn", tmp_path / "none", tight)


def test_a_build_has_plans_for_several_batches() -> None:
    folder = built("cnn", batches=(4, 1, 3))
    both, face = Both("cnn"), load(folder)
    both.face, both.trainer = face, face.Trainer(GOLDENS / "cnn" / "checkpoint")
    for k, n in enumerate((4, 3, 4, 1, 3)):
        x, y = (a[:n] for a in both.batch(k))
        expected = both.module.train()(x, y)
        both.optimizer.step()
        both.module.lazy_reset_grad()
        assert both.trainer.step(x, y) == expected
        assert both.trainer.evaluate(x, y) == both.module.eval()(x, y)
    for name, p in both.state.parameters:
        np.testing.assert_array_equal(both.trainer.state.parameters[name].data, p.data)
    with pytest.raises(face.InputError, match=r"\[4, 1, 14, 14\] \(batches: 4, 1, 3\), got"):
        both.trainer.step(np.zeros((2, 1, 14, 14), np.float32), np.zeros(2, np.int64))
    assert "passed" in run(folder / "selftest")
    one = json.loads((built("cnn") / "manifest.json").read_text())["sizes"]
    sizes = json.loads((folder / "manifest.json").read_text())["sizes"]
    assert sizes["memory"] < 1.5 * one["memory"], "arenas are shared"
    assert sizes["library"] < 1.3 * one["library"], "kernels are shared"


def test_the_scheduler_is_that_of_the_api() -> None:
    both = Both("mlp")
    mine = both.face.LinearLRScheduler(both.trainer.optimizer, 2, 6, 0.02)
    theirs = LinearLRScheduler(both.optimizer, 2, 6, 0.02)
    both.trainer.module(*both.batch(0))  # an optimizer has nothing to do before
    both.module(*both.batch(0))
    for k in range(8):
        for step in (both.optimizer.step, both.trainer.optimizer.step):
            if k:
                step()
        mine.step()
        theirs.step()
        rate = both.trainer.optimizer.get_learning_rate()
        assert rate == np.float32(both.optimizer.get_learning_rate())
    with pytest.raises(both.face.InputError, match="warm-up"):
        both.face.LinearLRScheduler(both.trainer.optimizer, 7, 6, 0.02)


def test_checkpoints_go_both_ways(tmp_path: Path) -> None:
    both = Both("mlp")
    both.step(0)
    rate = 0.0375
    both.trainer.optimizer.set_learning_rate(rate)
    for name, value in (("epoch", 3), ("loss", 0.25), ("note", "é"), ("zero", 0), ("z", 2.0)):
        both.trainer.state.properties[name] = value
        both.state.properties[name] = value
    both.trainer.state.properties["note"] = both.state.properties["note"] = "a longer text"
    both.optimizer.set_learning_rate(rate)
    both.trainer.save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == both.state.to_bytes(include_optimizer_state=True)
    assert list(both.trainer.state.properties) == list(both.state.properties)
    again = CheckpointState.load_checkpoint(tmp_path / "c")
    assert again.properties["note"] == "a longer text"
    both.state.loss_scale, both.state.good_steps = 512.0, 3  # of a training run in float16
    CheckpointState.save_checkpoint(both.state, tmp_path / "c", include_optimizer_state=True)
    resumed = both.face.Trainer(tmp_path / "c")
    assert resumed.state.to_bytes(True) == (tmp_path / "c").read_bytes()
    assert resumed.loss_scale is None
    assert list(resumed.state.properties) == list(both.state.properties)
    assert resumed.optimizer.get_learning_rate() == np.float32(rate)
    assert resumed.step(*both.batch(1)) == both.trainer.step(*both.batch(1))
    np.testing.assert_array_equal(
        resumed.module.get_contiguous_parameters(),
        both.trainer.module.get_contiguous_parameters(),
    )
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_label_out_of_range_changes_nothing() -> None:
    both = Both("mlp", 2)
    both.step(0)
    both.trainer.module.train()(*both.batch(1))
    before = {n: p.grad.copy() for n, p in both.trainer.state.parameters}
    x, y = both.batch(1)
    bad = y.copy()
    bad[2] = 10
    with pytest.raises(both.face.LabelError, match=r"label 10 at position 2 is outside \[0, 10\)"):
        both.trainer.step(x, bad)
    for name, p in both.trainer.state.parameters:
        np.testing.assert_array_equal(p.grad, before[name])


def test_inference_and_its_model_equal_the_engine(tmp_path: Path) -> None:
    both = Both("mlp")
    both.step(0)
    both.trainer.module.export_model_for_inferencing(tmp_path / "m.onnx", ["output"])
    data = both.module.inference_model_to_bytes(["output"])
    assert (tmp_path / "m.onnx").read_bytes() == data
    x, _ = both.batch(0)
    (expected,) = evaluate(onnx.load(tmp_path / "m.onnx"), {"input": x})
    np.testing.assert_allclose(both.trainer.predict(x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(both.face.StateError, match="'output'"):
        both.trainer.module.inference_model_to_bytes(["something"])


def test_parameters_as_one_buffer() -> None:
    both = Both("cnn")
    module = both.trainer.module
    buffer = module.get_contiguous_parameters()
    np.testing.assert_array_equal(buffer, both.module.get_contiguous_parameters())
    assert module.get_parameters_size() == both.module.get_parameters_size()
    module.copy_buffer_to_parameters(2 * buffer)
    np.testing.assert_array_equal(module.get_contiguous_parameters(), 2 * buffer)
    with pytest.raises(both.face.InputError, match="elements, the buffer"):
        module.copy_buffer_to_parameters(buffer[1:])
    with pytest.raises(both.face.InputError, match="float64"):
        module.copy_buffer_to_parameters(buffer.astype(np.float64))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((np.zeros((4, 64), np.float32),), "takes"),
        ((np.zeros((4, 64)), np.zeros(4, np.int64)), "float64"),
        ((np.zeros((5, 64), np.float32), np.zeros(5, np.int64)), r"\[5, 64\]"),
    ],
)
def test_bad_inputs_are_named(inputs: tuple[np.ndarray, ...], message: str) -> None:
    both = Both("mlp")
    with pytest.raises(both.face.InputError, match=message):
        both.trainer.step(*inputs)


def test_names_and_views_are_those_of_the_api() -> None:
    both = Both("mlp")
    state, face = both.trainer.state, both.face
    assert both.trainer.module.input_names() == both.module.input_names()
    assert both.trainer.module.output_names() == both.module.output_names()
    assert [n for n, _ in state.parameters] == [n for n, _ in both.state.parameters]
    weight = state.parameters["0.bias"].data
    weight[...] = 7
    del state, both.trainer
    np.testing.assert_array_equal(weight, np.full(48, 7, np.float32))
    with pytest.raises(face.CheckpointError, match="ODTC"):
        face.Trainer(b"nothing")
    with pytest.raises(face.FileError, match="No such file"):
        face.Trainer("/nowhere/at/all")


def test_the_python_face_needs_numpy_alone() -> None:
    folder = built("mlp")
    code = f"""
import sys
for name in ("numba", "llvmlite", "onnx", "flatbuffers", "engine"):
    sys.modules[name] = None
sys.path.insert(0, {str(folder)!r})
import mnist, numpy as np
t = mnist.Trainer()
x, y = np.zeros((4, 64), np.float32), np.arange(4)
losses = [float(t.step(x, y)) for _ in range(3)]
assert losses[2] < losses[0], losses
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("mnist.py", "mnist_library.py"):
        assert len((folder / name).read_text().splitlines()) < 450


def test_the_selftest_passes_here() -> None:
    out = run(built("cnn", 2) / "selftest")
    assert out.count(", equal;") == 3
    assert "passed" in out


def test_the_command_builds_and_says_how_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(GOLDENS / "mlp"), "--batch", "4", "--static", "--size", "-o", str(tmp_path)]
    assert cli.main(["build", *words]) == 0
    assert "plan training_model" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["library"] == "libmlp.a"
    assert manifest["sizes"]["library"] == (tmp_path / "libmlp.a").stat().st_size
    assert "passed" in run(tmp_path / "selftest")


def test_what_cannot_be_built_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EngineError, match=r"training_model\.onnx"):
        list_artifacts(tmp_path)
    words = ["build", str(GOLDENS / "mlp"), "-o", str(tmp_path / "out")]
    assert cli.main([*words, "--batch", "1", "--shape", "x=1,a"]) == 2
    assert "NAME=D" in capsys.readouterr().err
    assert cli.main(words) == 1
    assert "does not fix its number of samples (input ['batch', 64]" in capsys.readouterr().err
    for bad in (["--batch", "0"], ["--batch", "8,"], ["--batch", "x"]):
        assert cli.main([*words, *bad]) == 2
        assert "--batch" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("target", "more"), [("cortex-m7", ["--freestanding"]), ("raspberrypi2", []), ("wasm32", [])]
)
def test_a_batch_beyond_the_addresses_of_a_target_is_refused_before_work(
    target: str, more: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(GOLDENS / "mlp"), "--batch", "999999999", "-o", str(tmp_path / "out")]
    assert cli.main(["build", *words, "--target", target, *more]) == 1
    assert re.search(
        rf"edgegrad build: target {target}: the model takes \d+\.\d MiB, and addresses of 32 bits "
        r"reach 2048\.0 MiB at most: give a smaller --batch, or a --budget\n",
        capsys.readouterr().err,
    )
    assert not (tmp_path / "out").exists()


def test_a_model_that_fixes_its_samples_needs_no_batch(tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "mlp", tmp_path, dirs_exist_ok=True)
    assert [*plan_native(tmp_path, {"input": (4, 64)}).batches] == [4]
    for path in tmp_path.glob("*_model.onnx"):
        model = onnx.load(path)
        for value in model.graph.input:
            for d in value.type.tensor_type.shape.dim[:1]:
                if d.dim_param:
                    d.dim_value = 3
        onnx.save(model, path)
    assert [*plan_native(tmp_path, {}).batches] == [3]


def plan_native(folder: Path, shapes: dict[str, tuple[int, ...]]) -> Planned:
    return make_plans(list_artifacts(folder), resolve("native").target, PlanRequest(shapes=shapes))


def test_half_floats_do_not_cross_the_border_of_a_build(tmp_path: Path) -> None:
    """C has no type for them, so an input of half floats is refused before anything is linked."""
    spec = json.loads((GOLDENS / "mlp/case.json").read_text())
    model = onnx.load(GOLDENS / "mlp/forward.onnx")
    graph, half = model.graph, onnx.TensorProto.FLOAT16
    name = graph.input[0].name
    for node in graph.node:
        node.input[:] = ["single" if n == name else n for n in node.input]
    graph.node.insert(0, onnx.helper.make_node("Cast", [name], ["single"], to=1))
    graph.input[0].type.tensor_type.elem_type = half
    onnx.save(model, tmp_path / "forward.onnx")
    generate_artifacts(
        tmp_path / "forward.onnx", spec["requires_grad"], loss=LossType[spec["loss"]],
        artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    with pytest.raises(DTypeError, match=f"'{name}' is FLOAT16"):
        build(
            tmp_path / "artifacts",
            tmp_path / "out",
            Options("mnist", resolve("native"), PlanRequest([4])),
        )


def test_text_of_names_survives_c() -> None:
    assert quote('a"b\\c?\n\u00e9') == '"a\\042b\\134c\\077\\012\\303\\251"'


def test_the_generator_of_the_selftest_is_the_plain_recurrence() -> None:
    words, last = draw_words(100, 7)
    seed = 7
    for word in words:
        seed = (A * seed + C) % 2**32
        assert word == seed
    assert last == seed


@needs_cc
def test_parameters_in_float64_are_one_buffer(tmp_path: Path) -> None:
    """Their own functions change no bit; the ones for float32 refuse them."""
    text = tiny.PLAIN.replace("float[", "double[")
    proto = tiny.forward(text)
    for value in proto.graph.initializer:
        wide = numpy_helper.to_array(value).astype(np.float64)
        value.CopyFrom(numpy_helper.from_array(wide, value.name))
    generate_artifacts(
        proto, requires_grad=tiny.NAMES, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
        artifact_directory=tmp_path / "artifacts",
    )  # fmt: skip
    build(
        tmp_path / "artifacts",
        tmp_path / "built",
        Options("mnist", resolve("native"), PlanRequest([8])),
    )
    face = load(tmp_path / "built")
    trainer = face.Trainer(tmp_path / "built" / "checkpoint")
    handle, library = trainer.state._handle.pointer, face._L._library
    count = face._L.functions["parameters_size"](handle, 0)
    values = np.arange(count, dtype=np.float64) / 3
    pointer = ctypes.c_void_p(values.ctypes.data)
    size = ctypes.c_size_t(count)
    assert library.mnist_set_parameters_f64(handle, pointer, size, 0) == 0
    held = np.concatenate([p.data.ravel() for _, p in trainer.state.parameters])
    assert np.sort(held).tobytes() == values.tobytes()
    values[:] = 0
    assert library.mnist_get_parameters_f64(handle, pointer, size, 0) == 0
    assert values.tobytes() == (np.arange(count, dtype=np.float64) / 3).tobytes()
    assert library.mnist_get_parameters_f64(handle, pointer, ctypes.c_size_t(count - 1), 0) == 1
    assert library.mnist_set_parameters(handle, pointer, size, 0) == 1
    assert b"is not float32" in face._L.functions["message"](handle)
    module = trainer.module
    module.copy_buffer_to_parameters(2 * values, trainable_only=False)
    assert module.get_contiguous_parameters().tobytes() == (2 * values).tobytes()
    with pytest.raises(face.InputError, match="float32: this model has float64"):
        module.copy_buffer_to_parameters(values.astype(np.float32))
    module.set_draws(3)
    trainer.optimizer.set_step(5)
    assert (module.get_draws(), trainer.steps) == (3, 5)
    assert module.get_cpu() == detect_host().cpu
    with pytest.raises(face.Error, match="draws"):
        module.set_draws(-1)

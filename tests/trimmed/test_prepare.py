"""`edgegrad prepare`: plans beside artifacts, with which a device needs numpy and nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Trainer, custom
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import CacheWarning, EngineError, FileError, InputError
from engine.kernels.binaries import shipped, source
from engine.kernels.machine import levels
from engine.plan.plan import KernelSpec
from engine.system import cache
from engine.tools import cli
from engine.tools.actions import prepare
from engine.tools.dev import ship, zoo
from engine.training import plan_cache
from tests.support.places import GOLDENS, ROOT
from tests.support.plan_records import ALL, MLP, NONE, TRACE, Work, train

MODELS = ("mlp", "cnn", "mobilenet", "transformer")
FILES = ("checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx")
HERE = levels.list_levels()[:1]
needs_level = pytest.mark.skipif(not HERE, reason="no kernels are shipped for this CPU")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Work:
    """Counts what planning does; nothing is kept in the cache folder."""
    actual_work = Work(monkeypatch, tmp_path / "plans")
    monkeypatch.setattr(plan_cache, "find_folder", lambda: None)
    return actual_work


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy("mlp", tmp_path / "artifacts")


def copy(name: str, to: Path) -> Path:
    """The artifacts of a golden model in a folder of their own."""
    to.mkdir(parents=True)
    for file in FILES:
        shutil.copy(GOLDENS / name / file, to)
    return to


SIZE = len(TRACE["y"][0])


# --- on this machine


def test_plans_within_a_budget_are_prepared(work: Work, tmp_path: Path) -> None:
    folder = copy("cnn", tmp_path / "artifacts")
    free = Trainer(folder, threads=1)
    batch = (np.zeros((8, 1, 14, 14), np.float32), np.zeros(8, np.int64))
    budget = free.plan_of(*batch).nbytes - 1000
    assert (
        cli.invoke(["prepare", str(folder), "--batch=8", "--threads=1", f"--budget={budget}"]) == 0
    )

    def work_of(budget: int) -> Any:
        trainer = Trainer(folder, threads=1, memory_budget=budget)
        trainer.evaluate_batch(*batch)
        trainer.step(*batch)
        return trainer.plan.nbytes

    before = work.read, work.planned
    assert work_of(budget) <= budget
    assert (work.read, work.planned) == before
    work_of(budget + 1)  # another budget is another plan
    assert work.planned > before[1]


def test_nothing_is_planned_that_was_prepared(
    work: Work, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {(rows, n): train(folder, n, slice(0, rows)) for rows in (1, 2) for n in (1, 2)}
    words = [str(folder), "--batch", "1,2", "--threads", "1,2"]
    assert cli.invoke(["prepare", *words]) == 0
    path = folder / plan_cache.PREPARED
    assert capsys.readouterr().out == f"{path}: {path.stat().st_size:,} bytes\n"
    for (rows, threads), values in expected.items():
        before = work.read, work.planned
        np.testing.assert_array_equal(train(folder, threads, slice(0, rows)), values)
        assert (work.read, work.planned) == before
    assert work.of(lambda: train(folder, rows=slice(0, 3))) == (2, 2)  # and no warning
    assert not list(folder.glob("*.tmp"))


def test_a_state_that_was_saved_fits_the_same_plans(work: Work, folder: Path) -> None:
    """Files of generate_artifacts and saved ones differ in the order of parameters."""
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=1)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    module(TRACE["x"][0], TRACE["y"][0])
    optimizer.step()
    CheckpointState.save_checkpoint(state, folder / "checkpoint", include_optimizer_state=True)
    assert work.of(lambda: train(folder)) == NONE


def test_shapes_are_given_by_name(work: Work, folder: Path) -> None:
    width = TRACE["x"].shape[-1]
    shapes = [f"x=2,{width}", f"x=1,{width}"]
    cli.invoke(
        ["prepare", str(folder), *(w for s in shapes for w in ("--shape", s)), "--threads", "1"]
    )
    for rows in (1, 2):
        assert work.of(partial(train, folder, rows=slice(0, rows))) == NONE


def test_a_trainer_evaluates_and_predicts_from_prepared_plans(work: Work, folder: Path) -> None:
    """These artifacts do not name the outputs of their model; what was found out is kept."""
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])

    def use() -> None:
        trainer = Trainer(folder, threads=1)
        trainer.step(TRACE["x"][0], TRACE["y"][0])
        loss, outputs = trainer.evaluate_batch(TRACE["x"][0], TRACE["y"][0])
        assert np.isfinite(loss)
        predicted = trainer.predict_batch(TRACE["x"][0])
        assert list(predicted) == list(outputs) == trainer.outputs
        np.testing.assert_array_equal(predicted[trainer.outputs[0]], outputs[trainer.outputs[0]])

    assert work.of(use) == NONE


def test_an_artifact_may_be_missing(work: Work, folder: Path) -> None:
    for name in ("eval_model.onnx", "optimizer_model.onnx"):
        (folder / name).unlink()
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])

    def step() -> None:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, threads=1)
        module(TRACE["x"][0], TRACE["y"][0])

    assert work.of(step) == NONE


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], click.UsageError, "as --batch 8, or --shape"),
        (["--batch", "0"], click.UsageError, "expected numbers from 1 to"),
        (["--batch", "1", "--threads", "two"], click.UsageError, "'two': expected numbers"),
        (["--batch", "1", "--threads", "9999"], click.UsageError, "numbers from 1 to 1024"),
        (["--batch", "1", "--shape", "x=a"], click.UsageError, "'x=a': expected NAME=D,D"),
        (["--batch", "1", "--target", "raspberrypi1"], EngineError, "one of x86-64-v4-bf16, "),
        (["--batch", "1", "--target", "vax"], EngineError, "unknown target 'vax'"),
    ],
)
def test_wrong_words(words: list[str], error: Any, message: str, folder: Path) -> None:
    with pytest.raises(error, match=message):
        cli.invoke(["prepare", str(folder), *words])
    assert not (folder / plan_cache.PREPARED).exists()


def test_folders_that_cannot_be_prepared(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"no file 'training_model\.onnx'"):
        cli.invoke(["prepare", str(tmp_path / "empty"), "--batch", "1"])
    model = onnx.load(folder / "eval_model.onnx")
    model.opset_import.append(helper.make_opsetid("my.ops", 1))
    big = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "big")
    model.graph.initializer.append(big)
    model.graph.node.append(helper.make_node("Twice", ["big"], ["twice"], domain="my.ops"))
    onnx.save(model, folder / "eval_model.onnx")
    op = custom.elementwise("Twice", "x + x", domain="my.ops")
    custom.register(op)
    try:
        with pytest.raises(InputError, match="plans of the eval model cannot be kept: it has oper"):
            cli.invoke(["prepare", str(folder), "--batch", "1"])
    finally:
        custom.unregister(op)


# --- stale and foreign files


def other_model(folder: Path) -> None:
    shutil.copy(MLP / "eval_model.onnx", folder / "other.onnx")
    model = onnx.load(folder / "training_model.onnx")
    model.doc_string = "edited"
    onnx.save(model, folder / "training_model.onnx")


def of_others(folder: Path, **changes: Any) -> None:
    """The prepared file as others would have made it: no key of its records is known here."""
    path = os.fspath(folder / plan_cache.PREPARED)
    made = plan_cache.Prepared(path).made
    assert made is not None
    plan_cache.write_prepared(path, replace(made, **changes), {})


def cut(folder: Path) -> None:
    path = folder / plan_cache.PREPARED
    path.write_bytes(path.read_bytes()[:200])


STALE: dict[str, Callable[[Path], None]] = {
    "was made for other models": other_model,
    r"was made by another version of edgegrad \(0.0.9\)": partial(
        of_others, version="0.0.9", sources="others"
    ),
    "is damaged": cut,
    "was made for kernel set of another, cpu, 1 thread, and this is kernel set": partial(
        of_others, settings=[("of another", "cpu", 1)]
    ),
}


@pytest.mark.parametrize("message", STALE)
def test_a_stale_file_is_told_once_and_costs_time_only(
    message: str, work: Work, folder: Path
) -> None:
    expected = train(folder)
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])
    STALE[message](folder)
    with pytest.warns(
        CacheWarning, match=f"{plan_cache.PREPARED} {message}.*`edgegrad prepare {folder}"
    ):
        np.testing.assert_array_equal(train(folder), expected)
    assert work.of(lambda: np.testing.assert_array_equal(train(folder), expected))[1] > 0


def indexed(index: bytes) -> bytes:
    """Return a prepared file with an index after the right digest."""
    sealed = cache.seal("index", "", index)
    return plan_cache._HEAD.pack(plan_cache.MAGIC, len(sealed)) + sealed


def wrong_indexes(whole: bytes) -> list[bytes]:
    """Return data that are complete but no index, or an index of other fields."""
    magic, size = plan_cache._HEAD.unpack(whole[: plan_cache._HEAD.size])
    text = cache.unseal("index", "", whole[plan_cache._HEAD.size :][:size])
    assert magic == plan_cache.MAGIC
    assert text is not None
    index = json.loads(text)
    key = next(iter(index["records"]))
    changes: tuple[dict[str, object], ...] = (
        {"models": {"a": 1}}, {"models": []}, {"models": {"a": None, "b": "c"}},
        {"settings": [["native", "cpu", "one"]]}, {"settings": [[[], {}, 1]]}, {"settings": 5},
        {"records": {"no key": [0, 10]}}, {"records": {key: [-5, 5]}},
        {"records": {key: [0, 1 << 70]}}, {"records": [1]},
        {"records": {key: [1.5, 2]}}, {"version": [1]}, {"sources": 1},
    )  # fmt: skip
    texts = [json.dumps(index | change).encode() for change in changes]
    return [*texts, b"[" * 100_000, b"null", b"\xff", b"{}"]


def test_no_prepared_file_stops_a_training(work: Work, folder: Path) -> None:
    """Any bytes in the file lead to a result, perhaps after a warning."""
    expected = train(folder)
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])
    path = folder / plan_cache.PREPARED
    whole = path.read_bytes()
    rng = random.Random(0)
    spoiled = [b"", whole[:10], whole[:-1], whole + b"more"]
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        spoiled.append(bytes(flipped))
    spoiled.append(whole[:8] + (1 << 62).to_bytes(8, "little") + whole[16:])
    spoiled += map(indexed, wrong_indexes(whole))
    spoiled.append(whole[:7] + b"\1" + whole[8:])
    for data in (*spoiled, None):
        path.unlink()
        path.write_bytes(data) if data is not None else os.mkfifo(path)
        plan_cache._told.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            np.testing.assert_array_equal(train(folder), expected)


def test_the_best_set_that_plans_were_prepared_for_is_used(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.invoke(["prepare", str(folder), "--batch", str(SIZE), "--threads", "1"])
    here = source.choose_current()
    better = source.KernelSet("better", here.target)
    monkeypatch.setattr(source, "list_usable", lambda: [better, here])
    assert work.of(lambda: train(folder)) == NONE
    with pytest.warns(CacheWarning, match="and this is kernel set better.*2 threads"):
        assert work.of(lambda: train(folder, threads=2)) == ALL


# --- a device


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return shipped kernels for this machine, enough for the models."""
    out = tmp_path_factory.mktemp("shipped")
    used = zoo.list_kernels(plan for name in MODELS for plan in zoo.of_golden(GOLDENS / name))
    used = {
        *used,
        *(KernelSpec("gemm_pack", ("f32", trans)) for trans in (0, 1)),
    }  # of answers alone
    ship.ship_kernels(used, HERE, sys.platform, out)
    return out


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that has numpy and nothing else."""
    out = tmp_path_factory.mktemp("packages")
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    for name in ("numpy", "numpy.libs"):
        place = Path(spec.origin).parents[1] / name
        if place.exists():
            (out / name).symlink_to(place)
    return out


DEVICE = """
import sys
from pathlib import Path
import numpy as np
from engine.kernels.binaries import shipped
from engine.api import CheckpointState, Module, Optimizer

shipped.FOLDER = Path(sys.argv[1])
folder, trace, steps = Path(sys.argv[2]), np.load(sys.argv[3]), 2
for first in range(2):  # the second time from what the first has saved
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    for step in range(2):
        module.train()(trace["x"][step], trace["y"][step])
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()(trace["x"][0], trace["y"][0])
    CheckpointState.save_checkpoint(state, folder / "checkpoint", include_optimizer_state=True)
np.asarray(module.get_contiguous_parameters()).tofile(folder / "parameters")
print(*sorted({n.partition(".")[0] for n in sys.modules} - set(sys.stdlib_module_names)))
print(*sorted(n for n in sys.modules if n.startswith(("engine.graphs", "engine.kernels."))))
"""


def on_device(
    packages: Path, kernels: Path, folder: Path, trace: Path
) -> subprocess.CompletedProcess[str]:
    """Train in a process that sees numpy, the sources and the standard library."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (packages, ROOT))),
        "EDGEGRAD_CACHE_DIR": str(folder / "cache"),
        "EDGEGRAD_KERNELS": "auto",
    }
    return subprocess.run(
        [sys.executable, "-S", "-c", DEVICE, kernels, folder, trace],
        env=env, capture_output=True, text=True,
    )  # fmt: skip


@needs_level
@pytest.mark.parametrize("name", MODELS)
def test_a_device_with_numpy_alone_trains(
    name: str,
    kernels: Path,
    packages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It trains, evaluates, saves and resumes, with the same bits as the same kernels here."""
    monkeypatch.setattr(shipped, "FOLDER", kernels)
    monkeypatch.setenv("EDGEGRAD_KERNELS", "shipped")
    device, here = (copy(name, tmp_path / where) for where in ("device", "here"))
    trace = GOLDENS / name / "trace.npz"
    rows = str(np.load(trace)["x"].shape[1])
    cli.invoke(
        ["prepare", str(device), "--batch", rows, "--threads", "1", "--target", HERE[0].name]
    )
    again = tmp_path / "again"
    shutil.copytree(device, again)
    for folder in (device, again):
        done = on_device(packages, kernels, folder, trace)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        loaded, ours = done.stdout.splitlines()
        assert [m for m in loaded.split() if not m.startswith("_")] == ["engine", "numpy"]
        assert "engine.graphs" not in ours
        # The cache tells the next process the results of the first planning.
        assert ("engine.kernels.ops.registry" in ours.split()) == (folder == device)
        if folder == device:
            shutil.copytree(device / "cache", again / "cache")
    monkeypatch.setattr(sys, "argv", ["", str(kernels), str(here), str(trace)])
    exec(compile(DEVICE, "device", "exec"), {})
    assert (device / "parameters").read_bytes() == (here / "parameters").read_bytes()
    assert not (device / "cache").exists() or not list((device / "cache").rglob("*.o"))


@needs_level
def test_a_device_says_what_to_prepare(
    kernels: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", kernels)
    trace = MLP / "trace.npz"

    def told(folder: Path) -> str:
        done = on_device(packages, kernels, folder, trace)
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    folder = copy("mlp", tmp_path / "plain")
    error = "engine.errors.MissingPackageError: the training model must be "
    command = f"run `edgegrad prepare {folder} --batch N --threads 1` where it is"
    assert told(folder).startswith(f"{error}read, which needs the package 'onnx', and it is not")
    assert command in told(folder)
    assert "kernels" not in told(folder)
    words = [str(folder), "--threads", "1", "--target", HERE[0].name]
    cli.invoke(["prepare", *words, "--batch", str(SIZE + 1)])
    shape = f"planned for input {list(TRACE['x'][0].shape)}, labels [{SIZE}], which needs"
    assert told(folder).startswith(f"{error}{shape}")
    cli.invoke(["prepare", *words[:2], "2", *words[3:], "--batch", str(SIZE)])
    assert "2 threads, and this is kernel set" in told(folder)
    assert command in told(folder)


@needs_level
def test_a_target_needs_an_installation_that_ships_kernels(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "none")
    with pytest.raises(EngineError, match="--target aarch64: this installation ships no kernels"):
        cli.invoke(["prepare", str(folder), "--batch", "1", "--target", "aarch64"])
    with pytest.raises(EngineError, match="--target windows-x86_64: give the level of its"):
        prepare.make_kernel_set("windows-x86_64")


@needs_level
@pytest.mark.parametrize("target", ["raspberrypi4", "raspberrypi5", "apple-m1"])
def test_plans_for_another_architecture(
    target: str, folder: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", kernels)
    cli.invoke(["prepare", str(folder), "--batch", "4", "--threads", "1,4", "--target", target])
    prepared = plan_cache.Prepared(os.fspath(folder / plan_cache.PREPARED))
    assert prepared.made is not None
    level = prepare.make_kernel_set(target)
    assert {s[:2] for s in prepared.made.settings} == {(level.name, level.target.name)}
    assert level.target.arch == "aarch64"
    assert level.target.multiplies("f16") == (target != "raspberrypi4")
    assert [s[2] for s in prepared.made.settings] == [1, 4]


def test_plans_of_the_cache_are_prepared_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that the cache folder had was not made, and so left out of the file."""
    monkeypatch.setattr(plan_cache, "find_folder", lambda: tmp_path / "plans")
    plan_cache.Records().put("name", b"content")
    assert plan_cache.Records().read_cached("name") == b"content"
    assert prepare.Collected().read_cached("name") is None
    assert prepare.Collected().read_prepared("name") is None

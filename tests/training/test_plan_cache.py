"""Results of planning on disk: found again, bounded, never trusted too far.

Graphs read and plans made are counted, because a kept plan spares them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
from engine import artifacts, backend, custom
from engine.api import CheckpointState, Module, Optimizer
from engine.errors import EngineError, ModelError
from engine.graphs.io import onnx_io
from engine.kernels.machine.target import detect_host
from engine.system import cache
from engine.training import model_file, plan_cache
from engine.training.interface import Interface, Large, list_pieces
from engine.training.model import Model
from tests.support.harness import drop_type
from tests.support.places import GOLDENS, ROOT
from tests.support.plan_records import ALL, MLP, NONE, TRACE, Work, train


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Work:
    return Work(monkeypatch, tmp_path / "plans")


FRESH = """
import sys
import numpy as np
from engine.api import CheckpointState, Module, Optimizer
folder, trace = sys.argv[1], np.load(sys.argv[2])
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx", threads=1)
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
module(trace["x"][0], trace["y"][0])
optimizer.step()
module.get_contiguous_parameters().tofile(sys.argv[3])
heavy = ("onnx", "engine.graphs", "numba", "numpy.ma.")
print(*sorted({n for n in sys.modules if n.startswith(heavy)}))
"""


def test_a_fresh_process_with_kept_plans_imports_no_planner(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    known = cache.find_cache_dir()
    for kernels in known.glob("??") if known else ():
        (folder / kernels.name).symlink_to(kernels)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEGRAD_CACHE_DIR": str(folder)}
    imported, values = [], []
    for name in ("first", "second"):
        out = str(tmp_path / name)
        words = [sys.executable, "-c", FRESH, str(MLP), str(MLP / "trace.npz"), out]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        imported.append(set(done.stdout.split()))
        values.append((tmp_path / name).read_bytes())
    assert "engine.graphs.planner.planner" in imported[0]
    assert (
        not {"onnx", "onnx.helper", "numpy.ma.core"} & imported[0]
    )  # a model is read without them
    assert imported[1] == set()
    assert values[0] == values[1]


def test_plans_are_made_once(work: Work) -> None:
    assert work.of(train) == ALL
    assert work.of(train) == NONE
    np.testing.assert_array_equal(train(), train())


def test_whatever_decides_a_plan_is_in_its_key(
    work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train()
    assert work.of(lambda: train(rows=slice(0, 2))) == (2, 2)
    assert work.of(lambda: train(threads=2)) == ALL
    monkeypatch.setenv("EDGEGRAD_REUSE", "1")  # the default
    assert work.of(train) == NONE
    monkeypatch.setenv("EDGEGRAD_REUSE", "0")
    assert work.of(train) == ALL
    monkeypatch.undo()
    again = Work(monkeypatch, work.folder)
    assert again.of(train) == NONE
    content = dict(_parameters(MLP))
    other = _artifacts(tmp_path / "other", frozen=list(content)[:1])  # another layout
    shutil.copy(MLP / "eval_model.onnx", other)
    train(other)
    assert again.planned == 3
    monkeypatch.setattr(plan_cache, "digest_sources", lambda: "another version")
    assert again.of(train) == ALL


def test_every_file_that_decides_a_plan_is_among_the_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables that modules read decide plans as much as the modules."""
    read: set[str] = set()

    def digest_of(path: str) -> bytes:
        read.add(path)
        return b""

    monkeypatch.setattr(plan_cache, "_digest_file", digest_of)
    plan_cache.digest_sources.__wrapped__()
    root = Path(engine.__file__).parent
    for room in ("kernels", "graphs"):
        for path in (root / room).resolve().rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__":
                assert os.fspath(path) in read


def test_a_plan_of_another_kernel_set_is_not_used(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    train()
    setting = Model.make_setting

    def other(model: Model) -> plan_cache.Setting:
        name, target, threads = setting(model)
        return f"another {name}", target, threads

    monkeypatch.setattr(Model, "make_setting", other)
    assert work.of(train) == ALL


def test_a_plan_whose_kernels_are_gone_is_not_used(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that compiled what it lacked, and cannot any more, has the same name."""
    from engine.kernels.binaries.source import KernelSet

    train()
    monkeypatch.setattr(KernelSet, "__contains__", lambda *_: False)
    with pytest.raises(EngineError, match="is not shipped, and nothing can"):
        train()


def _parameters(folder: Path) -> Any:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return ((name, p.data) for name, p in state.parameters)


def _artifacts(folder: Path, frozen: list[str]) -> Path:
    spec = json.loads((MLP / "case.json").read_text())
    artifacts.generate_artifacts(
        MLP / "forward.onnx",
        requires_grad=[n for n in spec["requires_grad"] if n not in frozen],
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    return folder


# --- damage


def test_damaged_records_cost_time_only(work: Work) -> None:
    expected = train()
    count = len(work.list_records())
    names = dict[bytes, str]()
    name_of = names.__getitem__
    for spoil in (
        lambda raw: raw[: len(raw) // 2],
        lambda _: b"",
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
        lambda raw: cache.seal("plan", name_of(raw), b"something else"),
        lambda raw: cache.seal("plan", name_of(raw), b""),
        lambda raw: cache.seal("plan", name_of(raw), b"[" * 100_000),
    ):
        names.clear()
        for record in work.list_records():
            raw = record.read_bytes()
            names[raw] = record.name
            record.write_bytes(spoil(raw))
        assert work.of(lambda: np.testing.assert_array_equal(train(), expected)) == ALL
        assert work.of(train) == NONE
    assert len(work.list_records()) == count


def test_a_record_under_the_name_of_another_is_no_plan(work: Work) -> None:
    expected = train()
    records = work.list_records()
    contents = [r.read_bytes() for r in records]
    for record, content in zip(records, contents[1:] + contents[:1], strict=True):
        record.write_bytes(content)
    assert work.of(lambda: np.testing.assert_array_equal(train(), expected)) == ALL


def test_a_disk_that_is_full_or_read_only_costs_time_only(
    work: Work, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = train()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    work.folder = tmp_path / "full"
    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        assert work.of(lambda: np.testing.assert_array_equal(train(), expected)) == ALL
    assert work.list_records() == []  # no temporary file
    monkeypatch.undo()
    (tmp_path / "file").write_bytes(b"")
    work = Work(monkeypatch, tmp_path / "file" / "plans")
    for _ in range(2):
        assert work.of(lambda: np.testing.assert_array_equal(train(), expected)) == ALL


def test_the_cache_is_bounded(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    size = sum(r.stat().st_size for r in work.list_records())
    monkeypatch.setattr(plan_cache, "CACHE_BYTES", size)
    for rows in (1, 2, 3):
        train(rows=slice(0, rows))
        assert 0 < sum(r.stat().st_size for r in work.list_records()) <= size
    monkeypatch.setattr(plan_cache, "CACHE_BYTES", 1)
    for record in work.list_records():
        record.unlink()
    assert work.of(train) == work.of(train) == ALL
    assert work.list_records() == []


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abcd"]
    for k, path in enumerate(paths):
        cache.write(cache.Entry(path, "plan", path.name), bytes(100))
        os.utime(path, (k, k))
    size = paths[0].stat().st_size
    cache.mark_used(paths[0])
    written, abandoned = tmp_path / "young.tmp", tmp_path / "old.tmp"
    for path in (written, abandoned):
        path.write_bytes(bytes(1000))
    os.utime(abandoned, (0, 0))
    cache.limit_size(tmp_path, 3 * size)
    assert sorted(tmp_path.iterdir()) == [paths[0], paths[2], paths[3], written]
    cache.limit_size(tmp_path, 2 * size - 1)
    assert sorted(tmp_path.iterdir()) == [paths[0], written]
    cache.limit_size(tmp_path / "none", 0)


def test_processes_that_write_and_remove_do_not_disturb_one_another(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_cache, "CACHE_BYTES", 20_000)  # always somebody removes something
    expected, wrong = train(), list[object]()

    def run() -> None:
        for rows in (None, slice(0, 2), None, slice(0, 3), None):
            trained = train(rows=rows)
            if rows is None and trained.tobytes() != expected.tobytes():
                wrong.append(rows)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not [r for r in work.list_records() if r.suffix == ".tmp"]


# --- the interface of a model


def test_checks_and_errors_are_those_of_the_graph(work: Work, tmp_path: Path) -> None:
    other = GOLDENS / "cnn"

    def told() -> list[str]:
        actual = []
        state = CheckpointState.load_checkpoint(MLP / "checkpoint")
        train_model, eval_model = MLP / "training_model.onnx", MLP / "eval_model.onnx"
        module = Module(train_model, state, eval_model)
        for call in (
            lambda: Module(other / "training_model.onnx", state),
            lambda: Module(eval_model, state),
            lambda: Module(train_model, state, train_model),
            lambda: Module(MLP / "forward.onnx", state),
            lambda: Optimizer(train_model, module),
            lambda: module(TRACE["x"][0]),
            lambda: module(TRACE["x"][0].astype(np.float64), TRACE["y"][0]),
            lambda: module(TRACE["x"][0][0], TRACE["y"][0]),
            lambda: module(TRACE["x"][0][:, :3], TRACE["y"][0]),
            lambda: module(TRACE["x"][0][:0], TRACE["y"][0][:0]),
            lambda: module.plan((2,)),
        ):
            with pytest.raises(EngineError) as error:
                drop_type(call)()
            actual.append(f"{type(error.value).__name__}: {error.value}")
        names = [*module.input_names(), *module.output_names()]
        return [*actual, *names, str(module.get_parameters_size())]

    first = told()
    before = work.read
    assert told() == first
    assert work.read - before <= 2  # of the optimizer and of the plan, which fail


def test_a_model_that_is_refused_is_not_kept(work: Work) -> None:
    state = CheckpointState.load_checkpoint(MLP / "checkpoint")
    for _ in range(2):
        with pytest.raises(ModelError, match="not an ONNX model"):
            Module(b"nonsense", state)
    assert not work.folder.exists()


def table(n: int) -> onnx.ModelProto:
    """y = (x + two large constants) w, one of them by a constant's sum with itself."""
    values = {
        "big": np.arange(n, dtype=np.float32),
        "half": np.full(n, 0.5, np.float32),
        "w": np.full(n, 2, np.float32),
    }
    nodes = [
        helper.make_node("Add", ["half", "half"], ["one"]),
        helper.make_node("Add", ["x", "big"], ["a"]),
        helper.make_node("Add", ["a", "one"], ["b"]),
        helper.make_node("Mul", ["b", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "table",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", n])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", n])],
        [numpy_helper.from_array(a, name) for name, a in values.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_large_constants_are_not_kept_twice(work: Work, tmp_path: Path) -> None:
    """Those of the file stay there; only what constant folding has made is in the record."""
    n = model_file.FROZEN_BYTES
    path = tmp_path / "forward.onnx"
    onnx.save(table(n), path)
    artifacts.generate_artifacts(
        path, ["w"], loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )  # fmt: skip
    x = np.ones((2, n), np.float32)
    y = (x + np.arange(n) + 1).astype(np.float32) * 2

    def run() -> bytes:
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        assert module(x, y) == 0
        assert module.eval()(x, y) == 0
        assert module.session.memory.frozen.nbytes == 2 * 4 * n
        return module.inference_model_to_bytes(["y"])

    exported = run()
    size = sum(r.stat().st_size for r in work.list_records())
    assert size < 2 * 4 * n + 20_000  # the folded constant, in the records of two models
    assert work.of(lambda: exported == run() or pytest.fail("exported differently")) == (1, 0)
    assert work.of(lambda: backend.prepare(path).run([x])) == (1, 1)
    assert work.of(lambda: backend.prepare(path.read_bytes()).run([x])) == NONE
    np.testing.assert_array_equal(backend.prepare(path).run([x])[0], y)


def test_the_file_is_whole_again_when_its_graph_is_read() -> None:
    data = table(model_file.FROZEN_BYTES).SerializeToString()
    graph = onnx_io.load(data)
    constants = Interface.of(graph, graph, 1).locate_constants(graph.initializers, data)
    assert Interface.from_bytes(constants.to_bytes(), len(data)) == constants
    assert all(constant.at is not None for constant in constants.large)
    offsets, top = {}, 0
    for name, array in constants.list_contents(data):
        np.testing.assert_array_equal(array, graph.initializers[name])
        offsets[name], top = top, top + array.nbytes
    frozen = b"".join(array.tobytes() for _, array in constants.list_contents(data))
    parts = list_pieces(constants.large, offsets, data)
    assert sum(len(p) for p in parts if isinstance(p, bytes)) == len(data) - top
    again = b"".join(p if isinstance(p, bytes) else frozen[slice(*p)] for p in parts)
    assert again == data


@pytest.mark.parametrize(
    "raw",
    [b"", b"\1\0\0\0", b"\2\0\0\0{}", b"\4\0\0\0null", b"\0\0\0\0", b"\xff" * 4 + b"[" * 100_000],
)
def test_what_is_no_interface_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        Interface.from_bytes(raw, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("external", [["../secret", 0, 8]]),
        ("external", [["/etc/passwd", 0, 8]]),
        ("external", [["a\\..\\..\\b", 0, 8]]),
        ("external", [["a", -1, 8]]),
        ("external", [["a", 0, 1.5]]),
        ("large", [["c", "f32", [4], 0, "../secret"]]),
        ("large", [["c", "f32", [4], 90, ""]]),
        ("large", [["c", "f32", [4], -4, ""]]),
        ("large", [["c", "f32", [-4], 0, ""]]),
        ("large", [["c", "f31", [4], 0, ""]]),
        ("large", [["c", "f32", ["4"], 0, ""]]),
        ("inputs", [["x", "f32", [1.5]]]),
        ("inputs", [["x", 4, [1]]]),
        ("outputs", [4]),
        ("texts", 4),
        ("notes", {"lora": 1}),
        ("stamp", None),
    ],
)
def test_an_interface_reaches_for_nothing_beyond_its_model(field: str, value: object) -> None:
    """As of a prepared file that came with the artifacts of a stranger."""
    known = {
        "inputs": [["x", "f32", ["n", 2]]], "outputs": ["y"], "texts": [], "constants": ["c"],
        "large": [["c", "f32", [4], 84, ""]], "external": [["data", 0, 8]], "stamp": "",
        "notes": {},
    }  # fmt: skip

    def raw(**changes: object) -> bytes:
        text = json.dumps(known | changes).encode()
        return len(text).to_bytes(4, "little") + text

    assert Interface.from_bytes(raw(), 100).large[0].at == 84
    with pytest.raises((ValueError, LookupError, TypeError)):
        Interface.from_bytes(raw(**{field: value}), 100)


def test_files_may_go_once_a_module_is_made(work: Work, tmp_path: Path) -> None:
    """Its graphs are read later, or never, but always from what the files held."""
    for _ in range(2):
        folder = shutil.copytree(MLP, tmp_path / "artifacts")
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        shutil.copy(GOLDENS / "cnn" / "eval_model.onnx", folder)
        shutil.rmtree(folder)
        module(TRACE["x"][0], TRACE["y"][0])
        optimizer.step()
        module.export_model_for_inferencing(tmp_path / "out.onnx", ["output"])
        assert len(onnx.load(tmp_path / "out.onnx").graph.initializer) == 4


def test_external_data_decides_plans_as_the_file_does(work: Work, tmp_path: Path) -> None:
    """Large values stay in their file; if foldable values have changed, all is made again."""
    path, data = tmp_path / "table.onnx", tmp_path / "data"
    onnx.save(table(2000), path, save_as_external_data=True, size_threshold=0, location="data")
    x = np.zeros((1, 2000), np.float32)
    actual = []
    for expected in ((1, 1), NONE):
        assert work.of(lambda: actual.append(backend.prepare(path).run([x])[0])) == expected
    np.testing.assert_array_equal(actual[0], actual[1])
    other = bytearray(data.read_bytes())
    other[2000] ^= 1
    (tmp_path / "new").write_bytes(other)
    os.replace(tmp_path / "new", data)
    for expected in ((1, 1), NONE):
        assert work.of(lambda: actual.append(backend.prepare(path).run([x])[0])) == expected
    np.testing.assert_array_equal(actual[2], actual[3])
    assert not np.array_equal(actual[1], actual[2])


def test_operators_of_ones_own_are_planned_anew(work: Work) -> None:
    """Their plans depend on more than the file of the model and this package."""
    x = np.zeros((1, 2000), np.float32)
    op = custom.elementwise("Twice", "x + x", domain="my.ops")
    node = helper.make_node("Twice", ["x"], ["y"], domain="my.ops")
    graph = helper.make_graph(
        [node], "own", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    custom.register(op)
    try:
        for _ in range(2):
            assert work.of(lambda: backend.prepare(data).run([x[0, :3]])) == (1, 1)
    finally:
        custom.unregister(op)
    assert not work.folder.exists()


def test_debugging_sees_what_planning_does(
    work: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train()
    for value, expected in (("1", NONE), ("2", ALL)):
        monkeypatch.setenv("EDGEGRAD_DEBUG", value)
        capsys.readouterr()
        assert work.of(train) == expected
        assert capsys.readouterr().err.count("plan training_model  ") == 1


def test_closed_plans_are_kept_as_others_are(work: Work) -> None:
    """They are for a CPU, whichever kernels are here, and can be asked for again."""

    def run() -> str:
        state = CheckpointState.load_checkpoint(MLP / "checkpoint")
        module = Module(MLP / "training_model.onnx", state, threads=1)
        module.session.training.closed = True
        module(TRACE["x"][0], TRACE["y"][0])
        return str(module.plan(TRACE["x"][0].shape, TRACE["y"][0].shape))

    first = run()
    assert detect_host().name in first.splitlines()[0]
    assert work.of(lambda: None if run() == first else pytest.fail("another plan")) == NONE


def test_constants_at_one_place_of_the_file_are_left_out_once() -> None:
    """The bytes of equal constants may be found at the place of the first of them."""
    data = bytes(range(40))
    large = [Large("b", "f32", (4,), 8), Large("a", "f32", (4,), 8), Large("c", "f32", (2,), 30)]
    parts = list_pieces(large, {"a": 0, "b": 64, "c": 128}, data)
    assert parts == [data[:8], (64, 80), data[24:30], (128, 136), data[38:]]

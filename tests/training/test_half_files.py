"""Model files of float16 and bfloat16 at every entry that takes a model: a row for each.

A row runs the entry on the tiny model in both types, and returns the files that it has written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import engine
from engine import Trainer, backend, lora, onnxblock, quantization
from engine.api import CheckpointState, Module
from engine.artifacts import CrossEntropyLoss, generate_artifacts
from engine.errors import ModelWarning
from engine.models.weights import read
from engine.tools import cli
from tests.support.halves import make_bfloats, make_halved
from tests.support.tiny import LABELS, NAMES, X

CODES = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
FLOATS = {*CODES.values(), TensorProto.FLOAT, TensorProto.DOUBLE}
Files = Iterable[Path]
pytestmark = pytest.mark.filterwarnings("ignore::engine.errors.ModelWarning")


def feed(path: Path) -> np.ndarray:
    """The inputs in the type that a session of a file takes: NumPy has float16 only."""
    code = onnx.load(path).graph.input[0].type.tensor_type.elem_type
    return X.astype(np.float16) if code == TensorProto.FLOAT16 else X


def train(trainer: Trainer, folder: Path) -> Path:
    before = trainer.step(X, LABELS)
    assert trainer.step(X, LABELS) < before
    trainer.export(folder / "trained.onnx")
    return folder / "trained.onnx"


def call(*words: object) -> None:
    assert cli.invoke([str(word) for word in words]) == 0


def write_table(folder: Path) -> Path:
    lines = [",".join([*(f"{v:g}" for v in x), f"c{y}"]) for x, y in zip(X, LABELS, strict=True)]
    table = folder / "rows.csv"
    table.write_text("\n".join(["a,b,c,d,e,f,kind", *lines]))
    return table


def answer(path: Path, folder: Path) -> Files:
    session = engine.Session(path, threads=1)
    (y,) = session.run(None, {"x": feed(path)})
    assert session.get_outputs()[0].type == f"tensor({'float16' if y.itemsize == 2 else 'float'})"
    proto = onnx.load(path)
    for t in proto.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float32), t.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    (expected,) = engine.Session(proto, threads=1).run(None, {"x": feed(path).astype(np.float32)})
    np.testing.assert_array_equal(y, expected.astype(y.dtype))
    return []


def prepare(path: Path, folder: Path) -> Files:
    model = onnx.load(path)
    x = numpy_helper.to_array(
        onnx.helper.make_tensor("x", model.graph.input[0].type.tensor_type.elem_type, X.shape, X)
    )
    (y,) = backend.run_model(model, [x])
    assert y.dtype == x.dtype
    return []


def support(path: Path, folder: Path) -> Files:
    table = backend.supported(path)
    assert any("they are trained as float32" in note for note in table.notes)
    return []


def fit(path: Path, folder: Path) -> Files:
    return [train(Trainer.from_onnx(path, "cross_entropy", threads=1), folder)]


def fit_parts(path: Path, folder: Path) -> Files:
    trainer = Trainer.from_onnx(path, "cross_entropy", threads=1)
    parts = {"head.*": 0, "body.*": 1}
    trainer.fit((X, LABELS), epochs=2, batch_size=8, unfreeze=parts)
    trainer.export(folder / "trained.onnx")
    return [folder / "trained.onnx"]


def fit_head(path: Path, folder: Path) -> Files:
    trainer = Trainer.from_onnx(path, "cross_entropy", threads=1, train="head", classes=5)
    return [train(trainer, folder)]


def fit_adapters(path: Path, folder: Path) -> Files:
    return [train(Trainer.from_onnx(path, "cross_entropy", threads=1, lora="."), folder)]


def adapt(path: Path, folder: Path) -> Files:
    lora.adapt(path, ".").save(folder / "adapted.onnx")
    trained = train(Trainer.from_onnx(folder / "adapted.onnx", "cross_entropy", threads=1), folder)
    assert lora.merge(trained, folder / "merged.onnx") == []
    lora.open_inputs(trained, folder / "open.onnx")
    return [trained, folder / "merged.onnx", folder / "open.onnx"]


def keep_adapters(path: Path, folder: Path) -> Files:
    lora.adapt(path, ".").save(folder / "adapted.onnx")
    names = lora.parameters(folder / "adapted.onnx")
    trainer = Trainer.from_onnx(folder / "adapted.onnx", "cross_entropy", threads=1)
    trained = train(trainer, folder)
    answers = trainer.predict(X)
    made = lora.Adapter.of_model(trained)
    assert lora.parameters(trained) == list(made.tensors) == names
    for place in (folder / "poems", folder / "poems.onnx_adapter"):
        made.save(place)
        loaded = lora.Adapter.load(place)
        for name, value in made.tensors.items():
            np.testing.assert_array_equal(loaded.tensors[name], value)
        adapters = lora.Adapters(trainer, "as trained")
        adapters.add("as exported", loaded)
        adapters.use("as exported")
        np.testing.assert_allclose(trainer.predict(X), answers, atol=0.02)
        np.testing.assert_array_equal(
            adapters["as exported"].tensors[names[0]], made.tensors[names[0]]
        )
    return [trained]


def generate(path: Path, folder: Path) -> Files:
    with pytest.warns(ModelWarning, match="they are trained as float32"):
        generate_artifacts(path, NAMES, loss=CrossEntropyLoss(), artifact_directory=folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    models = [folder / f"{name}_model.onnx" for name in ("training", "eval")]
    module = Module(models[0], state, models[1], threads=1)
    module(X, LABELS)
    module.export_model_for_inferencing(folder / "trained.onnx", ["scores"])
    return [folder / "trained.onnx"]


def build_blocks(path: Path, folder: Path) -> Files:
    class Training(onnxblock.TrainingBlock):
        def build(self, name: str) -> str:
            return str(onnxblock.loss.CrossEntropyLoss()(name))

    block = Training()
    for name in NAMES:
        block.requires_grad(name)
    with (
        pytest.warns(ModelWarning, match="they are trained as float32"),
        onnxblock.base(onnx.load(path)),
    ):
        block("scores")
    for name, model in zip(("training", "eval"), block.to_model_proto(), strict=True):
        onnx.save(model, folder / f"{name}.onnx")
    onnxblock.save_checkpoint(block.parameters(), folder / "checkpoint")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training.onnx", state, folder / "eval.onnx", threads=1)
    module(X, LABELS)
    module.export_model_for_inferencing(folder / "trained.onnx", ["scores"])
    return [folder / "trained.onnx"]


def quantize(path: Path, folder: Path) -> Files:
    made = engine.quantize(path, X)
    made.save(folder / "int8.onnx")
    engine.Session(folder / "int8.onnx", threads=1).run(None, {"x": feed(path)})
    return [folder / "int8.onnx"]


def prepare_qat(path: Path, folder: Path) -> Files:
    made = quantization.prepare_qat(path, X)
    return [train(Trainer.from_onnx(made.to_bytes(), "cross_entropy", threads=1), folder)]


def read_weights(path: Path, folder: Path) -> Files:
    own, tensors = read(path), onnx.load(path).graph.initializer
    expected = {t.name: numpy_helper.to_array(t).astype(np.float32) for t in tensors}
    assert own.keys() == expected.keys()
    for name, value in own.items():
        np.testing.assert_array_equal(value.astype(np.float32), expected[name])
    return []


def run_train(path: Path, folder: Path) -> Files:
    data, run = write_table(folder), folder / "run"
    fast = ("--epochs", 1, "--batch", 8, "--threads", 1)
    call("train", "--model", path, "--data", data, "--label", "kind", "-o", run, *fast)
    call("eval", run, "--data", data)
    call("predict", run, data, "-o", folder / "answers.csv")
    call("export", run, "-o", folder / "exported.onnx")
    call("train", "--resume", "-o", run, "--epochs", 2)
    call("quantize", run, "--calibrate", data, "-o", folder / "int8.onnx")
    return [run / "inference.onnx", folder / "exported.onnx", folder / "int8.onnx"]


def run_artifacts(path: Path, folder: Path) -> Files:
    made = folder / "made"
    call("artifacts", path, "-o", made, "--loss", "cross_entropy")
    call("prepare", made, "--batch", 8, "--threads", 1)
    call("plan", made, "--batch", 8, "--threads", 1)
    call("check", made, "--batch", 8, "--threads", 1)
    call("export", made, "-o", folder / "exported.onnx")
    return [folder / "exported.onnx"]


def run_check(path: Path, folder: Path) -> Files:
    call("check", path, "--batch", 8, "--loss", "cross_entropy", "--brief")
    return []


def run_plan(path: Path, folder: Path) -> Files:
    call("plan", path, "--batch", 8)
    return []


def run_ops(path: Path, folder: Path) -> Files:
    call("ops", path)
    call("ops", path, "-o", folder / "ops.config")
    call("ops", path, "--within", folder / "ops.config")
    return []


def run_profile(path: Path, folder: Path) -> Files:
    words = ("--batch", 8, "--threads", 1, "--repeats", 1)
    call("profile", "--inference", path, *words)
    call("profile", path, *words)
    return []


def run_quantize(path: Path, folder: Path) -> Files:
    data = write_table(folder)
    words = ("--calibrate", data, "--label", "kind", "-o", folder / "int8.onnx")
    call("quantize", path, *words)
    return [folder / "int8.onnx"]


def run_lora(path: Path, folder: Path) -> Files:
    call("lora", path, "-o", folder / "adapted.onnx", "--match", ".")
    trained = train(Trainer.from_onnx(folder / "adapted.onnx", "cross_entropy", threads=1), folder)
    call("lora", trained, "--merge", "-o", folder / "merged.onnx")
    poems = folder / "poems.onnx_adapter"
    call("lora", trained, "--open", "-o", folder / "open.onnx", "--adapter", poems)
    assert lora.Adapter.load(poems).rank == 8
    return [folder / "merged.onnx", folder / "open.onnx"]


ENTRIES: tuple[Callable[[Path, Path], Files], ...] = (
    answer, prepare, support, fit, fit_parts, fit_head, fit_adapters, adapt, keep_adapters,
    generate, build_blocks, quantize, prepare_qat, read_weights, run_train, run_artifacts,
    run_check, run_plan, run_ops, run_profile, run_quantize, run_lora,
)  # fmt: skip


@pytest.mark.parametrize("half", CODES)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_an_entry_takes_files_of_halves_and_writes_such(
    entry: Callable[[Path, Path], Files], half: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make_halved() if half == "f16" else make_bfloats(), path)
    for made in entry(path, tmp_path):
        proto = onnx.load(made)
        onnx.checker.check_model(proto, full_check=True)
        ends = {v.type.tensor_type.elem_type for v in (*proto.graph.input, *proto.graph.output)}
        assert ends == {CODES[half]}, made.name
        kinds = {t.data_type for t in proto.graph.initializer} & FLOATS
        is_integer = any(n.op_type == "DequantizeLinear" for n in proto.graph.node)
        assert kinds == ({TensorProto.FLOAT} if is_integer else {CODES[half]}), made.name

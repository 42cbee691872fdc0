"""Large models: what lies between a file and its artifacts takes little more than one tensor.

The bound is 1.3 times the largest tensor and 500 MB of anonymous memory (`RssAnon`), whatever the
model has: weights stay in their file, which is mapped, and are written from there.  Files are
sparse, so that they take no room on the disk.  `python -m bench planning_memory` has larger ones.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench import large_models
from bench.measuring import call_fresh
from engine import Trainer, artifacts, backend, lora
from engine.api import CheckpointState, Module
from engine.errors import EngineError, FileError, ModelError
from engine.graphs.io import onnx_io, weights
from engine.runtime import mapping

MB = 1_000_000
SIDE, LAYERS = 2048, 16  # 16.8 MB a layer, 268 MB

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@linux
@pytest.mark.parametrize(
    ("kind", "inline"), [("lora", False), ("lora", True), ("full", True), ("adapted", False)]
)
def test_memory_between_a_file_and_its_artifacts(tmp_path: Path, kind: str, inline: bool) -> None:
    """A tenth of the model would be 27 MB: its weights are nowhere whole.

    Before, adapters on this model took 812 MB, and the artifacts of all of its parameters 540 MB.
    """
    path = large_models.make(tmp_path, LAYERS, SIDE, inline=inline)
    whole = LAYERS * SIDE**2 * 4
    grown = call_fresh(large_models.measure_growth, kind, path, tmp_path / "out")
    assert grown <= 1.3 * SIDE**2 * 4 + 100 * MB < whole / 2
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}
    if kind == "lora":  # the weights are written once, for all models of the folder
        assert whole < sum(sizes.values()) < 1.1 * whole
        assert sizes["forward.onnx"] < MB


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some kilobytes are large, too."""
    monkeypatch.setattr(mapping, "LARGE", 1 << 14)


def model(kinds: Sequence[str] = ("raw", "floats", "constant", "double", "half")) -> Any:
    """y = x + the sum of tensors of 64 x 64, each kept in another way; and what they are."""
    rng, nodes, inits, values, total = np.random.default_rng(0), [], [], {}, "x"
    for kind in kinds:
        array = rng.standard_normal((64, 64)).astype(np.float32)
        t = numpy_helper.from_array(array, kind)
        if kind == "floats":
            t = helper.make_tensor(kind, TensorProto.FLOAT, array.shape, array.reshape(-1).tolist())
        elif kind in ("double", "half"):
            wide = array.astype(np.float64 if kind == "double" else np.float16)
            t = numpy_helper.from_array(wide, kind)
            if kind == "double":
                t = helper.make_tensor(kind, TensorProto.DOUBLE, wide.shape, wide.reshape(-1))
        if kind == "constant":
            nodes.append(helper.make_node("Constant", [], [kind], value=t))
        else:
            inits.append(t)
        operand = kind
        if kind in ("double", "half"):
            operand = f"{kind}32"
            nodes.append(helper.make_node("Cast", [kind], [operand], to=TensorProto.FLOAT))
        values[kind] = numpy_helper.to_array(t)
        nodes.append(helper.make_node("Add", [total, operand], [f"y_{kind}"]))
        total = f"y_{kind}"
    graph = helper.make_graph(
        nodes, "kinds", [helper.make_tensor_value_info("x", 1, [64, 64])],
        [helper.make_tensor_value_info(total, 1, [64, 64])], inits,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ), values


@pytest.mark.parametrize("opset", [17, 11])
def test_weights_that_stay_in_the_file_of_the_model(
    tmp_path: Path, small: None, opset: int
) -> None:
    proto, values = model()
    proto.opset_import[0].version = opset
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    graph = onnx_io.load(path)
    constants = {n.outputs[0]: n.attrs["value"] for n in graph.nodes if n.op == "Constant"}
    actual = {**graph.initializers, **constants}
    for name, expected in values.items():
        np.testing.assert_array_equal(actual[name], expected)
        assert actual[name].dtype == expected.dtype
        is_read = opset == 11 and name == "constant"  # the onnx package converts the node
        assert (mapping.find_source(actual[name]) is None) == is_read
    x = np.ones((64, 64), np.float32)
    (y,) = backend.prepare(path, threads=1).run([x])
    np.testing.assert_allclose(y, x + sum(v.astype(np.float32) for v in values.values()), atol=1e-5)
    (same,) = backend.prepare(path.read_bytes(), threads=1).run([x])
    np.testing.assert_array_equal(same, y)


def test_a_model_is_written_as_protobuf_writes_it(tmp_path: Path) -> None:
    proto, _ = model()
    graph = onnx_io.load(proto)
    graph.initializers["transposed"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    graph.initializers["empty"] = np.zeros((0, 3), np.int64)
    graph.initializers["scalar"] = np.array(True)
    onnx_io.save(graph, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == onnx_io.to_bytes(graph)


@pytest.mark.parametrize("cut", [1, 100, 5000, 20_000])
def test_a_large_file_that_is_no_model(tmp_path: Path, small: None, cut: int) -> None:
    proto, _ = model()
    data = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[:-cut])
    with pytest.raises(ModelError, match=r"corrupt or truncated|empty or truncated|type of output"):
        onnx_io.save(onnx_io.load(path), tmp_path / "other.onnx")


@pytest.mark.parametrize("size", [b"\0" * 30_000, b"\x3a" * 30_000, b"\xff" * 30_000])
def test_a_large_file_of_noise(tmp_path: Path, small: None, size: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(size)
    with pytest.raises(ModelError, match="not an ONNX model"):
        onnx_io.load(path)


@pytest.mark.parametrize(
    "place", ["0 16384", "5 -16384", "-8 16384", "999999999 16384", "a b", "7"]
)
def test_forged_places_are_refused(tmp_path: Path, small: None, place: str) -> None:
    """A file may say itself where a tensor is in it: nothing but its own bytes are read."""
    proto, _ = model(["raw"])
    proto.graph.doc_string = "x" * (1 << 15)
    (t,) = proto.graph.initializer
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key=weights.INSIDE, value=place)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    if place == "0 16384":
        assert onnx_io.load(path).initializers["raw"].tobytes() == path.read_bytes()[:16384]
        return
    with pytest.raises(ModelError, match=r"initializer 'raw': malformed tensor"):
        onnx_io.load(path)


def written(folder: Path) -> dict[str, str]:
    """The digests of the files of a folder."""
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*")) if p.is_file()
    }  # fmt: skip


def adapted(tmp_path: Path, folder: Path) -> Trainer:
    """A trainer of adapters on 4 layers of 64 x 64 with external data."""
    path = large_models.make(tmp_path, 4, 64, inline=False, seed=1)
    return Trainer.from_onnx(path, "mse", "sgd", lora="layer", folder=folder, threads=1)


def test_artifacts_share_the_constants_of_their_forward_model(tmp_path: Path, small: None) -> None:
    out = tmp_path / "out"
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    trainer = adapted(tmp_path, out)
    first = trainer.step(x, np.zeros_like(x))
    (data,) = out.glob("constants.*.data")
    files = [out / f for f in ("forward.onnx", "training_model.onnx", "eval_model.onnx")]
    assert all(onnx_io.list_external_files(str(f)) == {data.name} for f in files)
    assert all(f.stat().st_size < data.stat().st_size for f in files)
    state = CheckpointState.load_checkpoint(out / "checkpoint")
    module = Module(out / "training_model.onnx", state, out / "eval_model.onnx", threads=1)
    assert float(module(x, np.zeros_like(x))) == first
    (tmp_path / "model.data").unlink()  # the source may go
    assert float(Trainer(out, threads=1).step(x, np.zeros_like(x))) == first


def test_artifacts_of_another_model_take_the_place_of_all(tmp_path: Path, small: None) -> None:
    out = tmp_path / "out"
    adapted(tmp_path, out)
    before = written(out)
    large_models.make(tmp_path, 4, 64, inline=False, seed=5)
    Trainer.from_onnx(tmp_path / "model.onnx", "mse", "sgd", lora="layer", folder=out, threads=1)
    after = written(out)
    assert len(after) == len(before)
    assert len([n for n in after if n.startswith("constants.")]) == 1
    assert not {n for n in before if n.startswith("constants.")} & after.keys()


def test_external_data_in_the_folder_stays_where_it_is(tmp_path: Path, small: None) -> None:
    """The artifacts refer to it, and are refused where it is gone or another one."""
    path = large_models.make(tmp_path, 4, 64, inline=False, seed=1)
    artifacts.generate_artifacts(
        path, requires_grad=["b3"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    names = {f"w{i}" for i in range(4)}
    assert not list(tmp_path.glob("constants.*"))
    assert onnx_io.list_external_files(str(tmp_path / "training_model.onnx")) == {"model.data"}
    assert names <= onnx_io.load(tmp_path / "training_model.onnx").initializers.keys()
    x = np.ones((2, 64), np.float32)

    def loss() -> float:
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, threads=1)
        return float(module(x, np.zeros_like(x)))

    first = loss()
    data = (tmp_path / "model.data").read_bytes()
    assert loss() == first  # by what is kept of the model
    os.rename(tmp_path / "model.data", tmp_path / "gone")
    with pytest.raises(FileError, match=r"model.data"):
        loss()
    (tmp_path / "model.data").write_bytes(data[::-1])
    with pytest.raises(FileError, match=r"model.data', which has been changed since then"):
        loss()
    (tmp_path / "model.data").write_bytes(data)
    assert loss() == first


@pytest.mark.parametrize(
    "text", ["no json", "[1]", '{"../model.data": "1 a"}', '{"": ""}', "[" * 9]
)
def test_forged_stamps_are_refused(tmp_path: Path, text: str) -> None:
    proto, _ = model(["raw"])
    proto.metadata_props.add(key=mapping.STAMPS, value=text)
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=r"is not in the model.s folder|not a regular file"):
        onnx_io.load(tmp_path / "model.onnx")


def test_offsets_that_memory_does_not_take_are_written_anew(tmp_path: Path, small: None) -> None:
    """Constants that training would have to copy go to a file where they lie as kernels want."""
    path = large_models.make(tmp_path, 4, 64, inline=False, seed=1, gap=4)
    artifacts.generate_artifacts(
        path, requires_grad=["b3"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    (data,) = tmp_path.glob("constants.*.data")
    assert data.stat().st_size == 4 * 64 * 64 * 4
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, threads=1)
    assert np.isfinite(module(np.ones((2, 64), np.float32), np.zeros((2, 64), np.float32)))


def test_adapted_and_merged_models_of_large_files(tmp_path: Path, small: None) -> None:
    path = large_models.make(tmp_path, 4, 64, inline=True, seed=1)
    made = lora.adapt(path, "layer")
    made.save(tmp_path / "adapted.onnx")
    assert lora.merge(tmp_path / "adapted.onnx", tmp_path / "merged.onnx") == []
    x = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    expected = backend.prepare(path, threads=1).run([x])[0]
    for name in ("adapted.onnx", "merged.onnx"):
        np.testing.assert_allclose(
            backend.prepare(tmp_path / name, threads=1).run([x])[0], expected, rtol=1e-5
        )

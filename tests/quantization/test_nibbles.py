"""Weights of 4 bits in files: two to a byte, read back by us and by stock onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import edgegrad
from engine.base.aliases import Array
from engine.errors import UnsupportedOpError
from engine.graphs.io import onnx_io, weights
from engine.graphs.io.messages import NIBBLE
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.nibbles import store_nibbles
from engine.kernels.vocabulary.op import TensorType


def make_graph(opset: int = 13, least: int = -8) -> Graph:
    """A product with 35 weights in steps of a half, whose axes become an input at opset 18."""
    rng = np.random.default_rng(0)
    constants: dict[str, Array] = {
        "w": rng.integers(least, 8, (7, 5)).astype(np.int8),
        "s": np.full(5, 0.5, np.float32),
        "z": np.array([0, 1, -2, 3, 0], np.int8),
    }
    constants["w"][0] = least, 7, -1, 0, 1
    nodes = [
        Node("DequantizeLinear", ("w", "s", "z"), ("d",), {"axis": 1}, "", "dequantise"),
        Node("MatMul", ("x", "d"), ("m",), {}, "", "product"),
        Node("ReduceMax", ("m",), ("y",), {"axes": [0], "keepdims": 1}, "", "largest"),
    ]
    x = TensorType("f32", ("batch", 7))
    graph = Graph("g", {"x": x}, ["y"], constants, nodes, {"": opset})
    graph.types = {"y": TensorType("f32", (1, 5))}
    return graph


@pytest.mark.parametrize("form", ["bytes", "file", "external"])
def test_a_file_has_two_weights_in_a_byte(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make_graph()
    stored, path = store_nibbles(graph.copy()), tmp_path / "model.onnx"
    assert stored.opsets[""] == 21
    if form == "bytes":
        path.write_bytes(onnx_io.to_bytes(stored))
    elif form == "file":
        onnx_io.save(stored, path)
    else:
        monkeypatch.setattr(onnx_io, "EXTERNAL_BYTES", 1)
        monkeypatch.setattr(onnx_io, "_EXTERNAL_MIN", 1)
        onnx_io.save(stored, path)
        assert (tmp_path / "model.onnx.data").exists()
    message = onnx.load(path)
    onnx.checker.check_model(message, full_check=True)
    tensors = {t.name: t for t in message.graph.initializer}
    for name, size in (("w", 18), ("z", 3)):
        assert tensors[name].data_type == TensorProto.INT4
        assert len(tensors[name].raw_data) == size
        read = numpy_helper.to_array(tensors[name]).astype(np.int8)
        assert np.array_equal(read, graph.initializers[name])
        assert np.array_equal(onnx_io.load(path).initializers[name], graph.initializers[name])
    x = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    levels = graph.initializers["w"].astype(np.float32) - graph.initializers["z"]
    want = (x @ (levels * 0.5)).max(0, keepdims=True)
    # By default it rounds what a product with such weights reads to int8.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session = edgegrad.Session(path, threads=1)
    for each in (peer, session):
        np.testing.assert_allclose(each.run(None, {"x": x})[0], want, rtol=1e-5)


def test_unsigned_weights_keep_4_bits(tmp_path: Path) -> None:
    """uint4 in a file is uint4 in the file that a training run of the last layer exports."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 16, (7, 5)).astype(np.uint8)
    helper = onnx.helper
    tensors = [
        helper.make_tensor("w", TensorProto.UINT4, (7, 5), levels.reshape(-1)),
        helper.make_tensor("z", TensorProto.UINT4, (5,), [8, 0, 15, 7, 9]),
        numpy_helper.from_array(np.full(5, 0.25, np.float32), "s"),
        numpy_helper.from_array(rng.standard_normal((5, 3)).astype(np.float32), "last"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1),
        helper.make_node("MatMul", ["x", "d"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "last"], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 7), ("y", 3))
    ]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    opsets = [helper.make_opsetid("", 21)]
    source, made = tmp_path / "uint4.onnx", tmp_path / "trained.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), source)
    x, y = rng.standard_normal((8, 7)).astype(np.float32), np.arange(8) % 3
    trainer = edgegrad.Trainer.from_onnx(
        source, "cross_entropy", edgegrad.AdamW(lr=1e-2), train="head", threads=1
    )
    trainer.step(x, y)
    trainer.export(made)
    kinds = {t.name: t for t in onnx.load(made).graph.initializer}
    assert [kinds[name].data_type for name in "wz"] == [TensorProto.UINT4] * 2
    assert np.array_equal(numpy_helper.to_array(kinds["w"]).astype(np.uint8), levels)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    peer = onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(trainer.predict(x), peer.run(None, {"x": x})[0], rtol=1e-5)


def test_what_opset_21_does_not_have_is_named() -> None:
    """Nodes that the onnx package cannot convert, and one that it converts wrongly."""
    unknown = make_graph()
    unknown.nodes.append(Node("Twist", ("y",), ("t",), {}, "", "twisted"))
    unknown.outputs, unknown.types["t"] = ["t"], unknown.types["y"]
    kept = r"weights of 4 bits are stored in opset 21, weights of 8 bits in any other: "
    with pytest.raises(UnsupportedOpError, match=kept + ".*from opset 13 to 21 at Twist 'twisted'"):
        store_nibbles(unknown)
    groups = make_graph(18)
    groups.nodes[-1] = Node(
        "GroupNormalization", ("m", "one", "one"), ("y",), {"num_groups": 1}, "", "groups"
    )
    groups.initializers["one"] = np.ones(1, np.float32)
    with pytest.raises(
        UnsupportedOpError, match="GroupNormalization 'groups': it has one scale per"
    ):
        store_nibbles(groups)


def test_the_bytes_of_a_message_are_those_of_a_file() -> None:
    stored = store_nibbles(make_graph(21))
    bare = onnx_io.to_proto(stored)
    whole = bare.SerializeToString()
    del bare.graph.initializer[:]
    pieces = b"".join(weights.list_pieces(bare, stored.initializers.items()))
    assert pieces == whole
    assert onnx_io.count_bytes(stored) == 18 + 3 + 5 * 4


def test_what_needs_more_bits_stays(tmp_path: Path) -> None:
    """One weight of -9, a constant that something else reads, and one that is an output."""
    wide = store_nibbles(make_graph(21, least=-9))
    assert not [n for n, a in wide.initializers.items() if a.dtype == NIBBLE]
    shared = make_graph(21)
    shared.nodes.append(Node("Cast", ("z",), ("c",), {"to": 1}, "", "cast"))
    shared.outputs.append("c")
    shared.types["c"] = TensorType("f32", (5,))
    assert not [n for n, a in store_nibbles(shared).initializers.items() if a.dtype == NIBBLE]
    ended = make_graph(21)
    ended.outputs.append("w")
    ended.types["w"] = TensorType("i8", (7, 5))
    assert not [n for n, a in store_nibbles(ended).initializers.items() if a.dtype == NIBBLE]

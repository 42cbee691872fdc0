"""ONNX files to graphs and back: what survives, what is converted, and what errors say."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from engine import Session
from engine.base.element_types import NUMPY, OF_ONNX
from engine.errors import (
    DTypeError,
    EngineError,
    FileError,
    InputError,
    ModelError,
    UnsupportedOpError,
)
from engine.graphs.io import onnx_io, opsets, protos, schemas
from engine.graphs.io.messages import read_values
from engine.graphs.ir.graph import Subgraph
from engine.kernels.vocabulary.op import TensorType
from engine.tools.dev.schemas import list_forms, list_lines
from tests.support.harness import drop_type
from tests.support.places import GOLDENS, ROOT

MODELS = sorted(GOLDENS.glob("*/*.onnx"))

Feeds = dict[str, np.ndarray[Any, Any]]

MESSAGES = """
from engine.graphs.io import protos
import subprocess
import sys
assert "onnx" not in sys.modules
import onnx
names = [name for name in protos.__all__ if name != "DecodeError"]
print(*(getattr(onnx, name) is getattr(protos, name) for name in names))
assert onnx.ModelProto.FromString(onnx.ModelProto(ir_version=8).SerializeToString()).ir_version == 8
"""


def test_messages_that_were_loaded_alone_are_those_of_onnx() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MESSAGES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True"] * (len(protos.__all__) - 1), done.stderr


def test_the_table_of_schemas_says_what_onnx_says() -> None:
    """`python -m engine.tools.dev.schemas` writes it again."""
    table = Path(schemas.__file__).with_name("schemas.txt").read_text("utf-8").splitlines(True)
    assert not set(list_lines()) - set(table)
    for op, since, schema in list_forms():
        assert schemas.find_schema(op, "", max(since, opsets.FIRST)) == schema, op


@pytest.mark.parametrize("code", sorted(OF_ONNX))
def test_constants_are_read_as_onnx_reads_them(code: int) -> None:
    """As bytes, and as the numbers of a field of the message."""
    values = np.array([[0, 1, 1], [1, 0, 1]], NUMPY[OF_ONNX[code]])
    raw = numpy_helper.from_array(values)
    listed = helper.make_tensor("", code, values.shape, values.ravel().tolist())
    assert raw.HasField("raw_data")
    assert not listed.HasField("raw_data")
    for message in (raw, listed):
        actual_values = read_values(message)
        assert actual_values.dtype == values.dtype
        assert np.array_equal(actual_values, values)
    raw.dims[0] = 3
    with pytest.raises(ValueError, match="reshape"):
        read_values(raw)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    constants: Feeds | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
    extra: tuple[onnx.OperatorSetIdProto, ...] = (),
) -> ModelProto:
    """A model of float tensors of these shapes."""
    ins, outs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in side.items()]
        for side in (inputs, outputs)
    )
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", ins, outs, tensors)
    imports = [helper.make_opsetid("", opset), *extra]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def stock(data: bytes | str, feeds: Feeds) -> list[Any]:
    """Return the results of stock onnxruntime."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def linear(rng: np.random.Generator) -> ModelProto:
    w = rng.normal(size=(3, 400)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    return model([node], {"x": ["n", 3]}, {"y": ["n", 400]}, {"w": w})


# --- round trips


def as_data(n: onnx.NodeProto) -> tuple[Any, ...]:
    attrs = {a.name: helper.get_attribute_value(a) for a in n.attribute}
    plain = {
        k: numpy_helper.to_array(v).tolist() if isinstance(v, TensorProto) else v
        for k, v in attrs.items()
    }
    return n.op_type, n.domain, n.name, tuple(n.input), tuple(n.output), plain


@pytest.mark.parametrize("path", MODELS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_what_onnxruntime_training_wrote_survives(path: Path) -> None:
    before = onnx.load(path)
    after = onnx_io.to_proto(onnx_io.load(path))
    assert list(map(as_data, after.graph.node)) == list(map(as_data, before.graph.node))
    for side in ("input", "output", "initializer", "value_info"):
        old = {v.name: v for v in getattr(before.graph, side)}
        new = {v.name: v for v in getattr(after.graph, side)}
        if side == "value_info":
            old = {n: old[n] for n in new}  # it may describe outputs, which say it themselves
        if side == "initializer":
            assert list(new) == list(old)
            for name, t in new.items():
                np.testing.assert_array_equal(
                    numpy_helper.to_array(t), numpy_helper.to_array(old[name])
                )
        else:
            assert new == old
    opsets = [{o.domain: o.version for o in m.opset_import} for m in (before, after)]
    assert opsets[0] == opsets[1]
    for field in ("ir_version", "producer_name", "producer_version"):
        assert getattr(after, field) == getattr(before, field)


def test_texts_and_metadata_survive() -> None:
    proto = linear(np.random.default_rng(0))
    proto.doc_string, proto.producer_name, proto.producer_version = "what", "who", "1.2"
    proto.metadata_props.add(key="licence", value="MIT")
    again = onnx_io.to_proto(onnx_io.load(proto))
    assert (again.doc_string, again.producer_name, again.producer_version) == ("what", "who", "1.2")
    assert [(p.key, p.value) for p in again.metadata_props] == [("licence", "MIT")]


def test_attributes_become_python_values_and_come_back() -> None:
    tensor = np.arange(6, dtype=np.int32).reshape(2, 3)
    values: dict[str, Any] = {
        "f": 0.5,
        "i": 3,
        "s": "text",
        "fs": [0.5, 2.0],
        "is": [1, 2],
        "ss": ["a", "b"],
    }
    node = helper.make_node("Thing", ["x"], ["y"], name="n", domain="my.domain", **values)
    node.attribute.append(helper.make_attribute("t", numpy_helper.from_array(tensor)))
    proto = model(
        [node], {"x": [1]}, {"y": [1]}, extra=(helper.make_opsetid("my.domain", 4),)
    )  # fmt: skip
    graph = onnx_io.load(proto)
    actual_attrs = graph.nodes[0].attrs
    np.testing.assert_array_equal(actual_attrs.pop("t"), tensor)
    assert actual_attrs == values
    assert graph.opsets == {"": 17, "my.domain": 4}
    assert as_data(onnx_io.to_proto(onnx_io.load(proto)).graph.node[0]) == as_data(node)


def test_attributes_are_written_with_the_type_onnx_defines() -> None:
    graph = onnx_io.load(linear(np.random.default_rng(0)))
    graph.nodes[0].op, graph.nodes[0].attrs = "Gemm", {"alpha": 2, "transB": True}
    node = onnx_io.to_proto(graph).graph.node[0]
    assert {a.name: a.type for a in node.attribute} == {
        "alpha": onnx.AttributeProto.FLOAT,
        "transB": onnx.AttributeProto.INT,
    }


def test_types() -> None:
    proto = linear(np.random.default_rng(0))
    info = helper.make_tensor_value_info("z", TensorProto.INT64, [None, "n", 4])
    info.type.tensor_type.shape.dim.add(dim_value=-1)
    proto.graph.input.append(info)
    graph = onnx_io.load(proto)
    assert graph.inputs["z"] == TensorType("i64", ("?z.0", "n", 4, "?z.3"))
    dims = onnx_io.to_proto(graph).graph.input[1].type.tensor_type.shape.dim
    assert [d.WhichOneof("value") for d in dims] == [None, "dim_param", "dim_value", None]


def test_initializers_that_are_inputs_too_are_no_inputs() -> None:
    proto = linear(np.random.default_rng(0))
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 400]))
    assert list(onnx_io.load(proto).inputs) == ["x"]


def test_nodes_are_sorted() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])]
    graph = onnx_io.load(model(nodes, {"x": [1]}, {"y": [1]}))
    assert [n.op for n in graph.nodes] == ["Abs", "Relu"]


def test_functions_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Neg", ["b"], ["c"])]
    ops = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "NegSquare", ["a"], ["c"], body, ops)
    node = helper.make_node("NegSquare", ["x"], ["y"], domain="mine")
    proto = model([node], {"x": [2]}, {"y": [2]}, extra=(helper.make_opsetid("mine", 1),))
    proto.functions.append(function)
    assert [n.op for n in onnx_io.load(proto).nodes] == ["Mul", "Neg"]


def test_subgraphs_are_kept_and_say_what_they_capture() -> None:
    one = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1])
    branches = {
        name: helper.make_graph([helper.make_node(op, ["h"], ["o"])], name, [], [one])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [
        helper.make_node("If", ["c"], ["y"], **branches),
        helper.make_node("Relu", ["x"], ["h"]),
    ]
    proto = model(nodes, {"x": [1]}, {"y": [1]}, {"c": np.array(True)})
    graph = onnx_io.load(proto)
    assert [n.op for n in graph.nodes] == ["Relu", "If"]  # by what the branches read
    inner = graph.nodes[1].attrs["then_branch"]
    assert isinstance(inner, Subgraph)
    assert inner.captured == ("h",)
    x = np.array([-2], np.float32)
    np.testing.assert_array_equal(stock(onnx_io.to_bytes(graph), {"x": x})[0], [0])


# --- files and external data


def test_a_path_bytes_and_a_model_give_the_same(tmp_path: Path) -> None:
    proto = linear(np.random.default_rng(0))
    onnx.save(proto, tmp_path / "m.onnx")
    texts = {
        str(onnx_io.load(source))
        for source in (
            tmp_path / "m.onnx",
            str(tmp_path / "m.onnx"),
            proto.SerializeToString(),
            proto,
        )
    }
    assert len(texts) == 1


def test_external_data_is_read(tmp_path: Path) -> None:
    proto = linear(np.random.default_rng(0))
    weight = numpy_helper.to_array(proto.graph.initializer[0])
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    np.testing.assert_array_equal(onnx_io.load(tmp_path / "m.onnx").initializers["w"], weight)

    light = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(
        ModelError, match=r"'w' is external data in 'w\.bin'; give the model's path"
    ):
        onnx_io.load(light)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:-1])
    with pytest.raises(FileError, match=r"'w': bytes 0 to 4800 of .*w\.bin', which has 4799"):
        onnx_io.load(tmp_path / "m.onnx")
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FileError, match=r"'w': cannot read external data .*No such file"):
        onnx_io.load(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../w.bin"}, r"in '\.\./w\.bin', which is not in the model's folder"),
        ({"location": "/etc/passwd"}, "in '/etc/passwd', which is not in the model's folder"),
        ({"location": "a\\..\\..\\w"}, "not in the model's folder"),
        ({}, "not in the model's folder"),
        (
            {"location": "w.bin", "length": "7"},
            "external data has 7 bytes at 0; the tensor takes 4800",
        ),
        ({"location": "w.bin", "offset": "-4"}, "offset=.-4.: expected a whole"),
        ({"location": "w.bin", "offset": "four"}, "'four'"),
    ],
)
def test_external_data_that_cannot_be(
    entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    proto = linear(np.random.default_rng(0))
    t = proto.graph.initializer[0]
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        t.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=message):
        onnx_io.load(tmp_path / "m.onnx")


def test_large_models_are_saved_with_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_io, "EXTERNAL_BYTES", 1000)
    rng = np.random.default_rng(0)
    graph = onnx_io.load(linear(rng))
    graph.initializers["b"] = np.ones(3, np.float32)  # small: stays inside
    graph.nodes[0].inputs = ("x2", "w")
    graph.nodes.insert(0, type(graph.nodes[0])("Add", ("x", "b"), ("x2",)))
    path = tmp_path / "m.onnx"
    onnx_io.save(graph, path)
    assert path.stat().st_size < 1000 < (tmp_path / "m.onnx.data").stat().st_size
    onnx.checker.check_model(str(path), full_check=True)
    x = rng.normal(size=(2, 3)).astype(np.float32)
    expected = (x + 1) @ graph.initializers["w"]
    np.testing.assert_allclose(stock(str(path), {"x": x})[0], expected, rtol=1e-5, atol=1e-6)
    again = onnx_io.load(path)
    assert {n: a.tolist() for n, a in again.initializers.items()} == {
        n: a.tolist() for n, a in graph.initializers.items()
    }


def test_a_model_of_more_than_2_gib_does_not_become_one_message() -> None:
    graph = onnx_io.load(linear(np.random.default_rng(0)))
    graph.initializers["w"] = np.broadcast_to(np.float32(0), (2**29, 1))
    with pytest.raises(
        ModelError, match=r"2147483648 bytes of initializers .* save the model to a"
    ):
        onnx_io.to_bytes(graph)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    graph = onnx_io.load(linear(np.random.default_rng(0)))
    onnx_io.save(graph, path)
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    graph.name = "other"
    with pytest.raises(FileError, match=r"cannot write '.*m\.onnx': No space left on device"):
        onnx_io.save(graph, path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read model .*none\.onnx': No such file"):
        onnx_io.load(tmp_path / "none.onnx")
    with pytest.raises(FileError, match="not a regular file"):
        onnx_io.load(tmp_path)
    with pytest.raises(FileError, match=r"cannot write .*No such file or directory"):
        onnx_io.save(onnx_io.load(linear(np.random.default_rng(0))), tmp_path / "no" / "m.onnx")
    with pytest.raises(InputError, match="expected a path, bytes or ModelProto; got <class 'int'>"):
        onnx_io.load(drop_type(3))


# --- malformed models


def no_opset(m: ModelProto) -> None:
    del m.opset_import[:]


def opset(version: int) -> Callable[[ModelProto], None]:
    def change(m: ModelProto) -> None:
        m.opset_import[0].version = version

    return change


def string_input(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def complex64(m: ModelProto) -> None:
    m.graph.initializer[0].data_type = TensorProto.COMPLEX64


def unknown_rank(m: ModelProto) -> None:
    m.graph.input[0].type.tensor_type.ClearField("shape")


def sequence_of_strings(m: ModelProto) -> None:
    t = helper.make_tensor_type_proto(TensorProto.STRING, None)
    m.graph.input[0].CopyFrom(helper.make_value_info("x", helper.make_sequence_type_proto(t)))


def short_tensor(m: ModelProto) -> None:
    m.graph.initializer[0].raw_data = b"1234"


def negative_dim(m: ModelProto) -> None:
    m.graph.initializer[0].dims[0] = -3


def sparse(m: ModelProto) -> None:
    m.graph.sparse_initializer.add().values.name = "sp"


def twice(m: ModelProto) -> None:
    m.graph.initializer.append(m.graph.initializer[0])


def reads_nothing(m: ModelProto) -> None:
    m.graph.node[0].input[1] = "v"


def made_twice(m: ModelProto) -> None:
    m.graph.node.append(m.graph.node[0])


def output_of_nobody(m: ModelProto) -> None:
    m.graph.output[0].name = "z"


def unknown_attribute(m: ModelProto) -> None:
    node = helper.make_node("Softmax", ["w"], ["s"], name="sm", axes=1)
    m.graph.node.append(node)


def wrong_attribute(m: ModelProto) -> None:
    m.graph.node.append(helper.make_node("Softmax", ["w"], ["s"], name="sm", axis="one"))


def sparse_constant(m: ModelProto) -> None:
    node = helper.make_node("Constant", [], ["s"], name="c")
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    m.graph.node.append(node)


def output_twice(m: ModelProto) -> None:
    m.graph.output.append(m.graph.output[0])


def no_operator(m: ModelProto) -> None:
    m.graph.node[0].op_type = ""


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (no_opset, ModelError, "does not say which opset"),
        (opset(6), UnsupportedOpError, "opset 6; supported: 13 to 28 directly, 7 to"),
        (opset(99), UnsupportedOpError, "opset 99; supported: 13 to 28"),
        (
            string_input,
            DTypeError,
            "input 'x': element type string, read by MatMul 'mm'; supported: Cast",
        ),
        (complex64, DTypeError, "initializer 'w': element type complex64; supported: f32"),
        (unknown_rank, ModelError, "input 'x' has no shape: export the model with one"),
        (sequence_of_strings, DTypeError, "input 'x': sequence_type; supported: tensors"),
        (short_tensor, ModelError, r"initializer 'w': malformed tensor of shape \[3, 400\]"),
        (negative_dim, ModelError, r"initializer 'w': shape \[-3, 400\]"),
        (sparse, UnsupportedOpError, "sparse initializer 'sp'"),
        (twice, ModelError, "two initializers are named 'w'"),
        (output_twice, ModelError, "two outputs are named 'y'"),
        (reads_nothing, ModelError, r"MatMul 'mm' reads \['v'\], which no node computes"),
        (made_twice, ModelError, "MatMul 'mm' makes 'y' a second time"),
        (output_of_nobody, ModelError, "no node computes the output 'z'"),
        (unknown_attribute, ModelError, "Softmax 'sm' .*unknown attribute 'axes' of type int; nea"),
        (wrong_attribute, ModelError, "Softmax 'sm' .*attribute 'axis' of type string; expected"),
        (sparse_constant, UnsupportedOpError, "Constant 'c': attribute 'sparse_value' of type"),
        (no_operator, ModelError, "node 'mm' has no operator"),
    ],
)
def test_malformed_models(
    change: Callable[[ModelProto], None], error: type[EngineError], message: str, tmp_path: Path
) -> None:
    proto = linear(np.random.default_rng(0))
    change(proto)
    path = tmp_path / "bad.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(error, match=message) as caught:
        onnx_io.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty; expected an ONNX model"),
        (b"not a model at all", "not an ONNX model, or corrupt or truncated"),
        (b"\x08\x07", "without a graph: empty or truncated"),
        (b"\x00\x00\x00\x00ORTM....", "this is an ORT format model; expected an ONNX model"),
        (b"\x00\x00\x00\x00ODTC....", "this is a checkpoint; expected an ONNX model"),
    ],
)
def test_bytes_that_are_no_model(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        onnx_io.load(data)


def test_corrupt_bytes_are_refused_and_nothing_else() -> None:
    """Every truncation, and random changes: an `EngineError` or a graph, no other exception."""
    data = (GOLDENS / "bce" / "forward.onnx").read_bytes()
    rng = random.Random(0)
    damaged = [data[:n] for n in range(len(data))]
    for _ in range(2000):
        copy = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            copy[rng.randrange(len(copy))] = rng.choice((0, 255, rng.randrange(256)))
        damaged.append(bytes(copy))
    refused = 0
    for piece in damaged:
        try:
            onnx_io.load(piece)
        except EngineError:
            refused += 1
    assert refused > 1000


# --- opsets


def classic(opset: int, ir: int, rng: np.random.Generator) -> ModelProto:
    """A model whose ops changed their form between opsets 7 and 13."""
    f32 = np.float32
    constants = {
        "cw": rng.normal(size=(4, 3, 3, 3)).astype(f32), "cb": rng.normal(size=4).astype(f32),
        "scale": np.ones(4, f32), "shift": np.zeros(4, f32), "mean": rng.normal(size=4).astype(f32),
        "var": rng.uniform(1, 2, 4).astype(f32), "fw": rng.normal(size=(64, 6)).astype(f32),
        "fb": np.zeros(6, f32),
    }  # fmt: skip
    node = helper.make_node
    limits = [("lo", -1.0), ("hi", 1.0)]
    if opset < 11:
        clip = [node("Clip", ["r"], ["c"], name="clip", min=-1.0, max=1.0)]
    else:
        values = [(n, numpy_helper.from_array(np.array(v, f32))) for n, v in limits]
        clip = [node("Constant", [], [n], value=t) for n, t in values]
        clip.append(node("Clip", ["r", "lo", "hi"], ["c"], name="clip"))
    ratio: dict[str, Any] = {"ratio": 0.4} if opset < 12 else {}
    nodes = [
        node("Conv", ["x", "cw", "cb"], ["k"], name="conv", kernel_shape=[3, 3], pads=[1] * 4),
        node("BatchNormalization", ["k", "scale", "shift", "mean", "var"], ["r"], name="bn"),
        *clip,
        node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Dropout", ["f"], ["d"], name="drop", **ratio),
        node("Gemm", ["d", "fw", "fb"], ["g"], name="gemm"),
        node("Unsqueeze", ["g"], ["u"], name="up", axes=[0]),
        node("Squeeze", ["u"], ["q"], name="down", axes=[0]),
        node("ReduceSum", ["q"], ["s"], name="sum", axes=[1], keepdims=1),
        node("Sub", ["q", "s"], ["t"], name="sub"),
        node("Split", ["t"], ["t1", "t2"], name="split", axis=1, split=[2, 4]),
        node("Concat", ["t2", "t1"], ["j"], name="join", axis=1),
        node("Softmax", ["j"], ["y"], name="soft", axis=1),
    ]
    inputs: dict[str, Any] = {"x": ["n", 3, 8, 8]}
    if ir < 4:
        inputs |= {n: a.shape for n, a in constants.items()}
    return model(nodes, inputs, {"y": ["n", 6]}, constants, opset=opset, ir=ir)


@pytest.mark.parametrize("ir", [3, 7])
@pytest.mark.parametrize("opset", range(7, 13))
def test_old_opsets_are_converted(opset: int, ir: int) -> None:
    rng = np.random.default_rng(opset)
    proto = classic(opset, ir, rng)
    before = proto.SerializeToString()
    graph = onnx_io.load(proto)
    assert proto.SerializeToString() == before
    assert graph.opsets == {"": 13}
    assert list(graph.inputs) == ["x"]
    assert {n.name for n in graph.nodes} >= {n.name for n in proto.graph.node}
    assert "cw" in graph.initializers  # too heavy for the converter, and back again
    converted = onnx_io.to_proto(graph)
    onnx.checker.check_model(converted, full_check=True)
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    expected, actual_stock = (stock(m.SerializeToString(), {"x": x})[0] for m in (proto, converted))
    np.testing.assert_allclose(actual_stock, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "opset", "scale"),
    [("Upsample", 7, 1.6), ("Upsample", 9, 2.5), ("Resize", 10, 2.5), ("Resize", 10, 0.6)],
)
def test_old_resizes_place_their_pixels_as_before(
    op: str, opset: int, scale: float, mode: str
) -> None:
    scales = np.array([1, 1, scale, scale], np.float32)
    attrs = {"scales": scales.tolist()} if opset == 7 else {}
    names = ["x"] if opset == 7 else ["x", "s"]
    constants = {} if opset == 7 else {"s": scales}
    node = helper.make_node(op, names, ["y"], mode=mode, **attrs)
    proto = model(
        [node], {"x": [1, 2, 5, 4]}, {"y": [1, 2, "h", "w"]}, constants, opset=opset, ir=4
    )
    converted = onnx_io.to_proto(onnx_io.load(proto))
    x = np.random.default_rng(0).normal(size=(1, 2, 5, 4)).astype(np.float32)
    expected, actual_stock = (stock(m.SerializeToString(), {"x": x})[0] for m in (proto, converted))
    np.testing.assert_allclose(actual_stock, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["?", "-1", "None", ""])
def test_sizes_without_a_name_need_not_be_equal(name: str) -> None:
    """Paddle2ONNX calls every size that it does not know "?"."""
    sizes = [name or None, 3, name or None]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    array = np.linspace(-1, 1, 30, dtype=np.float32).reshape(2, 3, 5)
    (actual_value,) = Session(proto.SerializeToString()).run(None, {"x": array})
    np.testing.assert_array_equal(actual_value, np.maximum(array, 0))


@pytest.mark.parametrize("opset", [13, 15, 18, 21, 23, 28])
def test_supported_opsets_stay(opset: int) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = onnx_io.load(model([node], {"x": [1]}, {"y": [1]}, opset=opset, ir=8))
    assert graph.opsets == {"": opset}
    assert graph.ir_version == 8


def test_new_opsets_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opsets, "LAST", 23)
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = onnx_io.load(model([node], {"x": [1]}, {"y": [1]}, opset=25, ir=10))
    assert graph.opsets == {"": 23}


def test_other_domains_survive_a_conversion() -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft", name="gelu"),
        helper.make_node("Squeeze", ["g"], ["y"], name="sq", axes=[0]),
    ]
    extra = (helper.make_opsetid("com.microsoft", 1),)
    graph = onnx_io.load(model(nodes, {"x": [1, 2]}, {"y": [2]}, opset=9, extra=extra))
    assert graph.opsets == {"": 13, "com.microsoft": 1}
    assert [(n.domain, n.op) for n in graph.nodes if n.name] == [
        ("com.microsoft", "Gelu"),
        ("", "Squeeze"),
    ]


@pytest.mark.parametrize(
    ("op", "opset", "message"),
    [
        (
            "Swish",
            24,
            "from opset 24 to 23 at Swish 'n': No Previous Version of Swish exists; export",
        ),
        ("Foo", 9, "from opset 9 to 13 at Foo 'n': opset 9 has no such operator; export the model"),
    ],
)
def test_what_cannot_be_converted_is_named(
    monkeypatch: pytest.MonkeyPatch, op: str, opset: int, message: str
) -> None:
    monkeypatch.setattr(opsets, "LAST", 23)
    node = helper.make_node(op, ["x"], ["y"], name="n")
    with pytest.raises(UnsupportedOpError, match=f"model: cannot convert {message}"):
        onnx_io.load(model([node], {"x": [1]}, {"y": [1]}, opset=opset))


def test_functions_of_onnx_are_inlined_unless_they_are_declared() -> None:
    nodes = [
        helper.make_node("SwiGLU", ["x", "x"], ["s"]),
        helper.make_node("HardSwish", ["s"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 4]}, {"y": [2, 4]}, opset=28)
    before = proto.SerializeToString()
    graph = onnx_io.load(proto)
    assert proto.SerializeToString() == before
    assert [n.op for n in graph.nodes] == ["Swish", "Mul", "HardSwish"]


def test_functions_of_onnx_without_a_body_stay() -> None:
    node = helper.make_node("CenterCropPad", ["u", "shape"], ["y"])
    proto = model([node], {"x": [2, 4]}, {"y": [2, 4]}, {"shape": np.array([1, 1])}, opset=18)
    proto.graph.node.insert(0, helper.make_node("Mine", ["x"], ["u"], domain="mine"))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert [n.op for n in onnx_io.load(proto).nodes] == ["Mine", "CenterCropPad"]


def test_functions_of_onnx_may_lack_optional_inputs() -> None:
    node = helper.make_node("CausalConvWithState", ["x", "w", "", "x"], ["y", "s"])
    proto = model([node], {"x": [1, 4, 2], "w": [4, 1, 3]}, {"y": [1, 4, 2]}, opset=28)
    graph = onnx_io.load(proto)
    assert "Conv" in [n.op for n in graph.nodes]
    assert graph.opsets == {"": 28}

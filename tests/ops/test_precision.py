"""Models with half floats or integers as weights: trained, or refused with advice."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from engine import Trainer
from engine.artifacts import generate_artifacts
from engine.errors import DTypeError, ModelWarning, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline.precision import tell
from engine.graphs.offline.support import check_support
from engine.tools import cli
from tests.support.tiny import LABELS, X, forward, read_values

TENTH = np.array(0.1, np.float32)


def halved() -> onnx.ModelProto:
    """The tiny model in float16, inputs and outputs included."""
    proto = forward()
    for t in proto.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return proto


def rounded() -> onnx.ModelProto:
    """The tiny model in float32, with weights that float16 holds."""
    proto = forward()
    for t in proto.graph.initializer:
        array = numpy_helper.to_array(t).astype(np.float16).astype(np.float32)
        t.CopyFrom(numpy_helper.from_array(array, t.name))
    return proto


def written(nodes: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model of x, with scores as its output."""
    proto = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[N,6] x) => (float[N,3] scores) {{{nodes}}}"""
    )
    made = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    proto.graph.initializer.extend(made)
    return proto


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


def dynamic() -> onnx.ModelProto:
    """Two products as onnxruntime's quantize_dynamic writes them, and their biases."""
    layer = """q{n}, s{n}, z{n} = DynamicQuantizeLinear({x})
        i{n} = MatMulInteger(q{n}, w{n}, z{n})
        f{n} = Cast<to = 1>(i{n})
        both{n} = Mul(s{n}, scale)
        m{n} = Mul(f{n}, both{n})
        {y} = Add(m{n}, fc{n}.bias)
        """
    nodes = layer.format(n=1, x="x", y="h") + layer.format(n=2, x="h", y="scores")
    biases = {f"fc{n}__bias": np.zeros(size, np.float32) for n, size in ((1, 8), (2, 3))}
    proto = written(
        nodes.replace(".bias", "__bias"),
        w1=integers(6, 8),
        w2=integers(8, 3),
        scale=TENTH,
        **biases,
    )
    return proto


def static() -> onnx.ModelProto:
    nodes = """d = DequantizeLinear(w, scale)
        scores = MatMul(x, d)"""
    return written(nodes, w=integers(6, 3), scale=TENTH)


def test_a_model_of_half_floats_trains_as_one_of_float32() -> None:
    with pytest.warns(ModelWarning, match="are float16: they are trained as float32"):
        trainer = Trainer.from_onnx(halved(), "cross_entropy", threads=1)
    other = Trainer.from_onnx(rounded(), "cross_entropy", threads=1)
    assert trainer.step(X, LABELS) == other.step(X, LABELS)
    assert read_values(trainer) == read_values(other)
    assert len(read_values(trainer)) == 4


def test_an_export_is_of_the_type_of_the_file(tmp_path: Path) -> None:
    """Also where a part of the model is float32: `wide` and what is cast to it."""
    proto = halved()
    proto.graph.node.add(op_type="Cast", input=["scores"], output=["up"], name="up").attribute.add(
        name="to", type=onnx.AttributeProto.INT, i=TensorProto.FLOAT
    )
    proto.graph.node.add(op_type="Mul", input=["up", "wide"], output=["bent"], name="bent")
    proto.graph.node.add(op_type="Cast", input=["bent"], output=["y"], name="y").attribute.add(
        name="to", type=onnx.AttributeProto.INT, i=TensorProto.FLOAT16
    )
    wide = np.full(3, 1.5, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(wide, "wide"))
    proto.graph.output[0].name = "y"
    with pytest.warns(ModelWarning, match="an exported model is float16 again"):
        trainer = Trainer.from_onnx(proto, "cross_entropy", threads=1, precision="f16")
    trainer.step(X, LABELS)
    trainer.export(tmp_path / "trained.onnx")
    made = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(made, full_check=True)
    kinds = {t.name: t.data_type for t in made.graph.initializer}
    assert kinds.pop("wide") == TensorProto.FLOAT
    assert set(kinds.values()) == {TensorProto.FLOAT16}
    ends = [*made.graph.input, *made.graph.output]
    assert {v.type.tensor_type.elem_type for v in ends} == {TensorProto.FLOAT16}
    session: Any = ReferenceEvaluator(made)
    (y,) = session.run(None, {made.graph.input[0].name: X.astype(np.float16)})
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, trainer.predict_batch(X)["y"], rtol=0.01, atol=0.01)
    name = next(iter(kinds))
    trainer.state.parameters[name].data[...] = 1e5
    with pytest.warns(ModelWarning, match="written as float32: .* has 100000, and float16 ends at"):
        trainer.export(tmp_path / "large.onnx")
    single = onnx.load(tmp_path / "large.onnx").graph.initializer
    assert {t.data_type for t in single} == {TensorProto.FLOAT}


def test_the_command_trains_half_floats_too(tmp_path: Path) -> None:
    onnx.save(halved(), tmp_path / "half.onnx")
    words = ["artifacts", str(tmp_path / "half.onnx"), "--out", str(tmp_path / "made")]
    with pytest.warns(ModelWarning, match="are float16"):
        assert cli.invoke([*words, "--loss", "cross_entropy"]) == 0
    assert Trainer(tmp_path / "made", threads=1).step(X, LABELS) > 0
    assert any(
        "weights are float16" in note for note in check_support(tmp_path / "half.onnx").notes
    )


def test_parameters_of_half_floats_by_name_tell_who_trains_them(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=r"is f16\[3\].*; Trainer.from_onnx trains it as f32"):
        generate_artifacts(halved(), ["head.bias"], artifact_directory=tmp_path)


def test_a_dynamically_quantised_model_says_what_trains() -> None:
    text = r"2 of 2 products are integer, it is dynamically quantised int8; of its parameters "
    with pytest.warns(ModelWarning, match=text + ".*fc2__bias.* can be trained: train the float"):
        trainer = Trainer.from_onnx(dynamic(), "cross_entropy", threads=1)
    assert np.isfinite(trainer.step(X, LABELS))


def test_integer_weights_are_told_with_what_to_do(tmp_path: Path) -> None:
    text = (
        r"'\*' matches none of 0 parameters; 1 of 1 products are integer, its weights are integers "
        r"before DequantizeLinear \(QDQ\); it has no float parameters: give it adapters "
    )
    with pytest.raises(NameNotFoundError, match=text):
        Trainer.from_onnx(static(), "cross_entropy")
    onnx.save(static(), tmp_path / "static.onnx")
    assert "give it adapters" in str(check_support(tmp_path / "static.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer.from_onnx(static(), "cross_entropy", lora=".", threads=1)
    assert np.isfinite(trainer.step(X, LABELS))


def test_a_float_model_is_not_told_of() -> None:
    graph = onnx_io.load(forward())
    assert tell(graph, ["w"]) == ""

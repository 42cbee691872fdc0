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
from engine.base.element_types import round_to_bfloats, widen_bfloats
from engine.errors import DTypeError, ModelWarning, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.graphs.offline.precision import tell
from engine.graphs.offline.support import check_support
from engine.tools import cli
from tests.support.halves import make_bfloats, make_halved, round_to_half
from tests.support.product_calls import store_as
from tests.support.tiny import LABELS, X, forward, read_values

TENTH = np.array(0.1, np.float32)


def rounded(half: str = "f16") -> onnx.ModelProto:
    """The tiny model in float32, with weights that a 16-bit float holds."""
    proto = forward()
    for t in proto.graph.initializer:
        array = round_to_half(numpy_helper.to_array(t), half)
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
        trainer = Trainer.from_onnx(make_halved(), "cross_entropy", threads=1)
    other = Trainer.from_onnx(rounded(), "cross_entropy", threads=1)
    assert trainer.step(X, LABELS) == other.step(X, LABELS)
    assert read_values(trainer) == read_values(other)
    assert len(read_values(trainer)) == 4


@pytest.mark.parametrize("as_bytes", [True, False])
def test_a_model_of_bfloats_trains_as_one_of_float32(as_bytes: bool) -> None:
    proto = make_bfloats(as_bytes=as_bytes)
    before = proto.SerializeToString()
    with pytest.warns(ModelWarning, match="are bfloat16: they are trained as float32"):
        trainer = Trainer.from_onnx(proto, "cross_entropy", threads=1)
    assert proto.SerializeToString() == before
    other = Trainer.from_onnx(rounded("bf16"), "cross_entropy", threads=1)
    assert trainer.step(X, LABELS) == other.step(X, LABELS)
    assert read_values(trainer) == read_values(other)
    assert len(read_values(trainer)) == 4


def test_an_export_of_bfloats_is_of_bfloats(tmp_path: Path) -> None:
    """Except for the parts that were float32: `wide` and the value that is cast to it."""
    proto = make_bfloats()
    for name, source, to in (("up", "scores", "FLOAT"), ("y", "bent", "BFLOAT16")):
        proto.graph.node.add(op_type="Cast", input=[source], output=[name], name=name)
        code = TensorProto.DataType.Value(to)
        proto.graph.node[-1].attribute.add(name="to", type=onnx.AttributeProto.INT, i=code)
        if name == "up":
            proto.graph.node.add(op_type="Mul", input=["up", "wide"], output=["bent"], name="bent")
    wide = np.full(3, 1.5, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(wide, "wide"))
    proto.graph.output[0].name = "y"
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.warns(ModelWarning, match="an exported model is bfloat16 again"):
        trainer = Trainer.from_onnx(
            tmp_path / "model.onnx", "cross_entropy", threads=1, precision="bf16"
        )
    trainer.step(X, LABELS)
    trainer.export(tmp_path / "trained.onnx")
    made = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(made, full_check=True)
    kinds = {t.name: t.data_type for t in made.graph.initializer}
    assert kinds.pop("wide") == TensorProto.FLOAT
    assert set(kinds.values()) == {TensorProto.BFLOAT16}
    ends = [*made.graph.input, *made.graph.output]
    assert {v.type.tensor_type.elem_type for v in ends} == {TensorProto.BFLOAT16}
    casts = [a.i for n in made.graph.node if n.op_type == "Cast" for a in n.attribute]
    assert casts == [TensorProto.FLOAT, TensorProto.BFLOAT16]
    for tensor in made.graph.initializer:
        if tensor.name in kinds:
            master = trainer.state.parameters[tensor.name].data
            bits = np.frombuffer(tensor.raw_data, np.uint16)
            np.testing.assert_array_equal(bits, store_as(master, "bf16").reshape(-1))
    # It trains on from there.
    with pytest.warns(ModelWarning, match="are bfloat16"):
        again = Trainer.from_onnx(tmp_path / "trained.onnx", "cross_entropy", threads=1)
    assert np.isfinite(again.step(X, LABELS))


def test_bfloats_are_rounded_to_nearest_and_widened_exactly() -> None:
    largest = (2 - 2.0**-7) * 2.0**127
    values = np.array([0.0, -0.0, 1.00390625, 1.01171875, 1e-40, largest, 3.4e38, np.inf, np.nan])
    x = values.astype(np.float32)
    made = round_to_bfloats(x)
    np.testing.assert_array_equal(made.view(np.uint16)[:-1], store_as(x, "bf16")[:-1])
    np.testing.assert_array_equal(widen_bfloats(made), round_to_half(x, "bf16"))
    assert widen_bfloats(round_to_bfloats(x[2].reshape(()))).shape == ()
    odd = np.array([0x7F800001], np.uint32).view(np.float32)  # a NaN that rounding would lose
    assert np.isnan(widen_bfloats(round_to_bfloats(odd))).all()


def test_a_model_of_both_types_is_refused() -> None:
    proto = make_bfloats()
    half = numpy_helper.from_array(np.ones(3, np.float16), "half")
    proto.graph.initializer.append(half)
    with pytest.raises(DTypeError, match="both float16 and bfloat16"), pytest.warns(ModelWarning):
        Trainer.from_onnx(proto, "cross_entropy")


def test_an_export_is_of_the_type_of_the_file(tmp_path: Path) -> None:
    """Also where a part of the model is float32: `wide` and what is cast to it."""
    proto = make_halved()
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
    onnx.save(make_halved(), tmp_path / "half.onnx")
    words = ["artifacts", str(tmp_path / "half.onnx"), "--out", str(tmp_path / "made")]
    with pytest.warns(ModelWarning, match="are float16"):
        assert cli.invoke([*words, "--loss", "cross_entropy"]) == 0
    assert Trainer(tmp_path / "made", threads=1).step(X, LABELS) > 0
    assert any("are float16" in note for note in check_support(tmp_path / "half.onnx").notes)


def test_a_dynamically_quantised_model_says_what_trains() -> None:
    text = r"2 of 2 products are integer, it is dynamically quantised int8; of its parameters "
    with pytest.warns(
        ModelWarning, match=text + ".*fc2__bias.* can be trained: train its last layer"
    ):
        trainer = Trainer.from_onnx(dynamic(), "cross_entropy", threads=1)
    assert np.isfinite(trainer.step(X, LABELS))


def test_integer_weights_are_told_with_what_to_do(tmp_path: Path) -> None:
    text = (
        r"'\*' matches none of 0 parameters; 1 of 1 products are integer, its weights are integers "
        r"before DequantizeLinear \(QDQ\); it has no float parameters: train its last layer "
        r"as floats \(train='head'\), give it adapters "
    )
    with pytest.raises(NameNotFoundError, match=text):
        Trainer.from_onnx(static(), "cross_entropy")
    onnx.save(static(), tmp_path / "static.onnx")
    assert "give it adapters" in str(check_support(tmp_path / "static.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer.from_onnx(static(), "cross_entropy", lora=".", threads=1)
    assert np.isfinite(trainer.step(X, LABELS))


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_integer_weights_are_told_of_in_the_domains_of_both_dequantisers(domain: str) -> None:
    nodes = f"d = {domain}DequantizeLinear(w, scale) y = MatMul(x, d) scores = Add(y, y)"
    graph = onnx_io.load(written(nodes, w=integers(6, 3), scale=TENTH))
    assert "1 of 1 products are integer, its weights are integers before" in tell(graph, [])


def test_products_are_counted_without_sums_of_integers() -> None:
    """QLinearAdd adds: the model has two products, and one of them is integer."""
    nodes = """q = com.microsoft.QLinearAdd(a, s, z, b, s, z, s, z)
        t = MatMulInteger(q, w) f = Cast<to = 1>(t) scores = MatMul(f, v)"""
    proto = written(
        nodes, a=integers(2, 6), b=integers(2, 6), s=TENTH, z=np.zeros((), np.int8),
        w=integers(6, 4), v=np.ones((4, 3), np.float32),
    )  # fmt: skip
    assert tell(onnx_io.load(proto), []).startswith(
        "1 of 2 products are integer, it is dynamically quantised int8; "
    )


def test_a_float_model_is_not_told_of() -> None:
    graph = onnx_io.load(forward())
    assert tell(graph, ["w"]) == ""

"""Text in models: constants that are cast to numbers; anything else is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, parser

from engine import backend
from engine.errors import DTypeError, ModelError
from tests.harness import untyped

X = np.ones(2, np.float32)


def model(nodes: str, *texts: str, kind: str = "float") -> ModelProto:
    """x and y of two elements, and the constant t of texts."""
    head = f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[2] x) => ({kind}[2] y)'
    proto = parser.parse_model(f"{head} {{{nodes}}}")
    data = [text.encode() for text in texts]
    proto.graph.initializer.append(
        helper.make_tensor("t", TensorProto.STRING, [len(data)], untyped(data))
    )
    return proto


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("1.5", "-2e-3"), [2.5, 0.998]),
        (("inf", "+INF"), [np.inf] * 2),
        (("NaN", "7"), [np.nan, 8]),
    ],
)
def test_texts_are_cast(texts: tuple[str, ...], expected: list[float]) -> None:
    (y,) = backend.prepare(model("c = Cast<to=1>(t) y = Add(x, c)", *texts)).run([X])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_texts_are_cast_to_integers() -> None:
    proto = model("c = Cast<to=7>(t) y = Add(x, c)", "12", "-3", kind="int64")
    (y,) = backend.prepare(proto).run([np.zeros(2, np.int64)])
    assert y.tolist() == [12, -3]


@pytest.mark.parametrize(
    "constant", ['value_string="2"', 'value_strings=["2"]', 'value=string[1] {"2"}']
)
def test_constant_nodes_of_text(constant: str) -> None:
    nodes = f"k = Constant<{constant}>() c = Cast<to=1>(k) y = Add(x, c)"
    (y,) = backend.prepare(model(nodes, "unused")).run([X])
    assert y.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("nodes", "text", "error", "message"),
    [
        ("c = Cast<to=1>(t) y = Add(x, c)", "two", ModelError, "constant 't' is no f32: could not"),
        ("c = Cast<to=3>(t) y = Add(x, x)", "300", ModelError, "constant 't' is no i8"),
        (
            "e = Equal(t, t) y = Add(x, x)",
            "a",
            DTypeError,
            "Equal '' reads 't' of element type str",
        ),
        ("c = Cast<to=9>(t) y = Add(x, x)", "1", DTypeError, "supported: Cast to numbers"),
    ],
)
def test_what_is_refused(nodes: str, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        backend.prepare(model(nodes, text))

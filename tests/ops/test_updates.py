"""Encodings of updates: what arrives, what is refused, what error feedback keeps."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError, InputError, NonFiniteError
from engine.federated.updates import Encoding, Update, flatten, split_vector

SHAPES = {"weight": (3, 4), "bias": (4,), "scale": ()}
TOTAL = 17


def update(seed: int = 0, size: float = 1e-2) -> Update:
    rng = np.random.default_rng(seed)
    return split_vector((rng.standard_normal(TOTAL) * size).astype(np.float32), SHAPES)


def finite(limit: float) -> st.SearchStrategy[np.ndarray]:
    limit = float(np.float32(limit))
    values = st.floats(-limit, limit, width=32)
    return hnp.arrays(np.float32, TOTAL, elements=values)


@pytest.mark.parametrize(
    ("values", "limit", "relative", "absolute"),
    [("float32", 3e38, 0, 0), ("float16", 65504, 2**-11, 2**-25), ("bfloat16", 3e38, 2**-8, 1e-40)],
)
def test_dense_values_arrive_within_the_documented_error(
    values: str, limit: float, relative: float, absolute: float
) -> None:
    encoding = Encoding(values)

    @given(finite(limit))
    def arrive(vector: np.ndarray) -> None:
        message = encoding.encode(split_vector(vector, SHAPES))
        got = encoding.decode(message, SHAPES)
        assert list(got) == list(SHAPES)
        assert [a.shape for a in got.values()] == list(SHAPES.values())
        assert sum(a.nbytes for a in message.values()) == encoding.nbytes(SHAPES)
        error = np.abs(flatten(got).astype(float) - vector)
        assert (error <= relative * np.abs(vector.astype(float)) + absolute).all()
        again = encoding.encode(got)  # what arrived is sent without further loss
        assert all(np.array_equal(again[name], message[name]) for name in message)

    arrive()


def test_ties_round_to_even() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 2**-133], np.float32)
    got = Encoding("bfloat16").decode(Encoding("bfloat16").encode({"w": ties}), {"w": (4,)})
    assert got["w"].tolist() == [1, 1 + 2**-6, -1, 2**-133]


@pytest.mark.parametrize(("values", "least"), [("float16", 65520), ("bfloat16", 3.3961775e38)])
def test_what_16_bits_cannot_hold_is_refused_by_name(values: str, least: float) -> None:
    largest = np.nextafter(np.float32(least), np.float32(0))
    Encoding(values).encode({"w": np.array([-largest, largest])})
    with pytest.raises(NonFiniteError, match=f"'w'.*{values} cannot hold"):
        Encoding(values).encode({"w": np.array([0, -least], np.float32)})
    with pytest.raises(NonFiniteError, match="'w' has values that are not finite"):
        Encoding(values).encode({"w": np.array([0, np.nan], np.float32)})


@given(finite(1e3), st.sampled_from([0.01, 0.1, 0.25]), st.sampled_from(["float32", "float16"]))
def test_the_largest_elements_are_sent_and_the_rest_is_kept(
    vector: np.ndarray, fraction: float, values: str
) -> None:
    encoding = Encoding(values, fraction)
    count = max(1, round(fraction * TOTAL))
    message, residual = encoding.compensated(split_vector(vector, SHAPES), None)
    assert message["indices"].size == message["values"].size == count == encoding.count(SHAPES)
    assert sum(a.nbytes for a in message.values()) == encoding.nbytes(SHAPES)
    ranks = sorted(range(TOTAL), key=lambda i: (-abs(vector[i]), i))
    assert message["indices"].tolist() == sorted(ranks[:count])
    got = flatten(encoding.decode(message, SHAPES))
    assert np.array_equal(got + residual, vector)  # nothing is lost


def test_error_feedback_delivers_everything_in_time() -> None:
    """A constant update of 17 elements, two a message: the sum that arrived stays near the sum."""
    encoding, constant = Encoding("float32", 0.1), update()
    residual = np.zeros(TOTAL, np.float32)
    arrived = np.zeros(TOTAL, np.float32)
    for _ in range(200):
        message, residual = encoding.compensated(constant, residual)
        arrived += flatten(encoding.decode(message, SHAPES))
    assert np.allclose(arrived + residual, 200 * flatten(constant), rtol=1e-4)
    assert np.abs(residual).max() < 20 * np.abs(flatten(constant)).max()


MALFORMED = {
    "k": ({"indices": slice(0, 3)}, r"'indices' has shape \(3,\); expected \(4,\)"),
    "range": ({"indices": [0, 1, 2, TOTAL]}, f"index {TOTAL}; there are {TOTAL} elements"),
    "twice": ({"indices": [0, 2, 2, 3]}, "index 2 follows 2"),
    "order": ({"indices": [0, 3, 2, 4]}, "index 2 follows 3"),
    "index type": ({"indices": np.arange(4, dtype=np.int64)}, "'indices' is int64"),
    "value type": ({"values": np.zeros(4)}, "'values' is float64"),
    "values": ({"values": np.zeros((2, 2), np.float32)}, r"'values' has shape \(2, 2\)"),
    "infinite": ({"values": np.full(4, np.inf, np.float32)}, "not finite"),
    "name": ({"value": np.zeros(4)}, "'value', which is not sent; nearest: 'values'"),
}


@pytest.mark.parametrize(("change", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_sparse_messages_are_refused(change: dict[str, object], text: str) -> None:
    encoding = Encoding("float32", 0.25)
    message = encoding.encode(update())
    for name, value in change.items():
        if isinstance(value, slice):
            message[name] = message[name][value]
        elif isinstance(value, list):
            message[name] = np.array(value, np.uint32)
        else:
            message[name] = np.asarray(value)
    with pytest.raises(EngineError, match=text):
        encoding.decode(message, SHAPES)


def test_malformed_dense_messages_are_refused() -> None:
    encoding = Encoding("float16")
    message = encoding.encode(update())
    for change, text in (
        ({"weight": message["weight"].T}, r"'weight' has shape \(4, 3\); expected \(3, 4\)"),
        ({"bias": message["bias"].astype(np.float32)}, "'bias' is float32; expected float16"),
        ({"bias": np.full(4, np.nan, np.float16)}, "'bias' has values that are not finite"),
        ({"head": message["bias"]}, "'head', which is not sent"),
    ):
        with pytest.raises(EngineError, match=text):
            encoding.decode({**message, **change}, SHAPES)
    del message["scale"]
    with pytest.raises(EngineError, match="update has no 'scale'"):
        encoding.decode(message, SHAPES)
    with pytest.raises(EngineError, match=r"residual.*expected"):
        Encoding("float32", 0.1).compensated(update(), np.zeros(3, np.float32))
    with pytest.raises(EngineError, match="'w' is float64"):
        encoding.encode({"w": np.zeros(3)})


@pytest.mark.parametrize(
    ("values", "fraction", "text"),
    [
        ("fp16", 1.0, "supported: float32, float16, bfloat16"),
        ("float32", 0.0, "fraction=0.0: expected above 0 to 1"),
        ("float32", float("nan"), "not finite"),
        ("float32", 0.5, "below 0.500"),
        ("float16", 0.4, "below 0.333"),
    ],
)
def test_encodings_that_make_no_sense_are_refused(values: str, fraction: float, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Encoding(values, fraction)

"""Messages for devices without Flower: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import DTypeError, FileError, InputError, MessageError
from engine.federated.message import Message, fingerprint
from tests.support.messages import ARRAYS, DAMAGED, MODEL, B, W, request


def test_a_message_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    request().write(path)
    assert path.read_bytes() == request().to_bytes()
    actual_content = Message.read(path)
    assert (
        actual_content.kind,
        actual_content.model,
        actual_content.round,
        actual_content.reason,
    ) == ("train", MODEL, 4, "")
    assert actual_content.config == request().config
    assert [type(v) for v in actual_content.config.values()] == [float, int, bool, str]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(actual_content.arrays[name], array, strict=True)
        assert actual_content.arrays[name].flags.writeable
    for answer in (
        actual_content.trained(ARRAYS, {"num-examples": 5, "loss": 0.1}),
        actual_content.failed("no data"),
        Message("evaluate", MODEL, 0, ARRAYS).evaluated({"num-examples": 0}),
    ):
        again = Message.from_bytes(answer.to_bytes())
        assert (again.kind, again.metrics, again.reason) == (
            answer.kind, answer.metrics, answer.reason
        )  # fmt: skip


def test_the_package_safetensors_reads_the_same_layout() -> None:
    """The layout follows the specification: wider elements first, no gap, offsets from the end of
    the header.
    """
    data = (
        request()
        .trained({"half": np.ones(3, np.float16), "i": np.arange(2), "f": B}, {"num-examples": 1})
        .to_bytes()
    )
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    assert (8 + size) % 8 == 0
    assert {n: row["data_offsets"] for n, row in header.items() if n != "__metadata__"} == {
        "i": [0, 16], "f": [16, 28], "half": [28, 34]
    }  # fmt: skip
    assert len(data) == 8 + size + 34


def test_the_fingerprint_is_that_of_the_page() -> None:
    """FNV-1a by its published test vectors, and what it is of."""
    assert fingerprint({}) == "cbf29ce484222325"
    text, actual = b"fc.bias\0F32,3\nfc.weight\0F32,2,3\n", 0xCBF29CE484222325
    for byte in text:
        actual = (actual ^ byte) * 0x100000001B3 % 2**64
    assert fingerprint(ARRAYS) == f"{actual:016x}" == fingerprint(dict(reversed(ARRAYS.items())))
    assert fingerprint({"fc.weight": W * 2, "fc.bias": B}) == MODEL
    others: list[dict[str, Any]] = [
        {"fc.weight": W},
        {"fc.weight": W.T, "fc.bias": B},
        {**ARRAYS, "fc.bias": B.astype("f8")},
    ]
    assert len({MODEL, *map(fingerprint, others)}) == 4
    with pytest.raises(InputError, match="newline"):
        fingerprint({"a\nb": W})
    with pytest.raises(DTypeError, match="complex64"):
        fingerprint({"a": W.astype("c8")})


@pytest.mark.parametrize("row", DAMAGED)
def test_a_damaged_message_is_refused(row: str) -> None:
    content, said = DAMAGED[row]
    with pytest.raises(MessageError, match=said) as error:
        Message.from_bytes(content, "device 3")
    assert str(error.value).startswith("device 3: ")
    assert len(str(error.value)) < 500


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changed_bytes_give_a_message_or_a_clear_error(data: st.DataObject) -> None:
    """Wherever bytes are changed, cut or put in; and nothing takes memory beyond the content's."""
    content = bytearray(request().to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(at, min(len(content), at + 8)))
        content[at:end] = data.draw(st.binary(max_size=8) | st.sampled_from(WORDS))
    tracemalloc.start()
    try:
        number = Message.from_bytes(content)
    except MessageError:
        pass
    else:
        Message.from_bytes(number.to_bytes())
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200_000


WORDS = (b"[", b"{", b'"', b"9" * 8, b"-1", b"1e999", b"null", b"\\ud800", b'"F32"', b"\xff" * 8)


def test_a_message_that_cannot_be_is_not_made() -> None:
    nothing: Any = None
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Message("train", MODEL, 0), "0 tensors"),
        (lambda: Message("train", MODEL, True, ARRAYS), "round True"),
        (lambda: Message("train", "x", 0, ARRAYS), "model 'x'"),
        (lambda: Message("train", MODEL, 0, ARRAYS, {"a": nothing}), "option 'a' is None"),
        (lambda: Message("train", MODEL, 0, ARRAYS, {"a": np.float64(1)}), "option 'a'"),
        (lambda: request().trained(ARRAYS, {"loss": 1.0}), "num-examples"),
        (lambda: request().trained({}, {"num-examples": 1}), "0 tensors"),
        (lambda: Message("train", MODEL, 0, {"__metadata__": W}).to_bytes(), "cannot be called"),
        (lambda: request().failed("\ud800").to_bytes(), "cannot be written as UTF-8"),
    ]
    for make, said in wrong:
        with pytest.raises(MessageError, match=said):
            make()
    with pytest.raises(DTypeError, match="'c' is complex64"):
        Message("train", MODEL, 0, {"c": W.astype("c8")}).to_bytes()
    with pytest.raises(FileError, match="cannot read message"):
        Message.read("nowhere/at/all")


def test_an_answer_is_one_to_its_request() -> None:
    asked, done = request(), {"num-examples": 1}
    asked.trained(ARRAYS, done).check_answer(asked)
    asked.failed("no data").check_answer(asked)
    other = fingerprint({"fc.weight": W})
    wrong: list[tuple[Message, str]] = [
        (asked.evaluated(done), "'evaluated' is not an answer to a 'train'"),
        (asked, "'train' is not an answer"),
        (Message("trained", MODEL, 3, ARRAYS, metrics=done), "of round 3; this is round 4"),
        (Message("failed", other, 4, reason="x"), f"for model {other}; the request is for {MODEL}"),
        (asked.trained({"fc.bias": B}, done), "lacks the parameter 'fc.weight'"),
        (asked.trained({**ARRAYS, "x": B}, done), "has the parameter 'x'"),
        (asked.trained({**ARRAYS, "fc.bias": B[:2]}, done), r"shape \[2\]; expected \[3\]"),
        (asked.trained({**ARRAYS, "fc.bias": B.astype("f2")}, done), "float16; expected float32"),
        (asked.trained({**ARRAYS, "fc.bias": B / np.float32("nan")}, done), "not finite"),
    ]  # fmt: skip
    for answer, said in wrong:
        with pytest.raises(MessageError, match=said):
            answer.check_answer(asked)

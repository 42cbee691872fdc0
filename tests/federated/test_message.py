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

from engine.checkpoint import safetensors
from engine.errors import DTypeError, FileError, InputError, MessageError
from engine.federated.message import MAX_HEADER, Message, fingerprint

W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(3, np.float32)
ARRAYS = {"fc.weight": W, "fc.bias": B}
MODEL = fingerprint(ARRAYS)


def request() -> Message:
    return Message(
        "train", MODEL, 4, ARRAYS, {"rate": 0.1, "epochs": 2, "shuffle": True, "note": 'a "b"\n'}
    )


def packed(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def changed(**texts: str | None) -> bytes:
    """A request whose metadata say something else; None takes a text away."""
    arrays, found = safetensors.decode(request().to_bytes(), "x")
    given = found | {name.replace("__", "."): text for name, text in texts.items()}
    kept = {name: text for name, text in given.items() if text is not None}
    return b"".join(safetensors.encode(arrays, kept))


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def tensors(*rows: dict[str, Any], body: int = 24) -> bytes:
    meta = {"edgegrad.message": "1", "kind": "train", "model": MODEL, "round": "0"}
    named = {f"t{i}": row for i, row in enumerate(rows)}
    return packed({"__metadata__": meta, **named}, bytes(body))


def test_a_message_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    request().write(path)
    assert path.read_bytes() == request().to_bytes()
    found = Message.read(path)
    assert (found.kind, found.model, found.round, found.reason) == ("train", MODEL, 4, "")
    assert found.config == request().config
    assert [type(v) for v in found.config.values()] == [float, int, bool, str]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
        assert found.arrays[name].flags.writeable
    for answer in (
        found.trained(ARRAYS, {"num-examples": 5, "loss": 0.1}),
        found.failed("no data"),
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
    text, found = b"fc.bias\0F32,3\nfc.weight\0F32,2,3\n", 0xCBF29CE484222325
    for byte in text:
        found = (found ^ byte) * 0x100000001B3 % 2**64
    assert fingerprint(ARRAYS) == f"{found:016x}" == fingerprint(dict(reversed(ARRAYS.items())))
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


# what is read: what the message says
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "short": (b"\0" * 7, "7 bytes"),
    "header beyond the end": (struct.pack("<Q", 2**63) + b"{}", "truncated"),
    "large header": (struct.pack("<Q", MAX_HEADER + 1) + bytes(MAX_HEADER + 1), "at most 4194304"),
    "no JSON": (packed(b"hello"), "not a JSON object"),
    "a list": (packed([1]), r"not a JSON object: \[1\]"),
    "deep": (packed(b"[" * 100_000), "not a JSON object"),
    "UTF-16": (packed("{}".encode("utf-16")), "not a JSON object"),
    "twice": (packed(b'{"a": 1, "a": 2}'), "'a' twice"),
    "twice inside": (packed(b'{"a": {"dtype": "F32", "dtype": "F64"}}'), "'dtype' twice"),
    "metadata": (packed({"__metadata__": {"kind": 3}}), "not an object of texts"),
    "metadata list": (packed({"__metadata__": []}), "not an object of texts"),
    "an adapter": (packed({"__metadata__": {"format": "pt"}}), "not a message of a federation"),
    "version": (changed(edgegrad__message="2"), "version '2' of the format; supported: '1'"),
    "no kind": (changed(kind=None), "'kind' is missing"),
    "kind": (changed(kind="trian"), "kind 'trian'; expected one of train"),
    "no round": (changed(round=None), "'round' is missing"),
    "round": (changed(round="-1"), "round '-1'"),
    "round 1e3": (changed(round="1e3"), "round '1e3'"),
    "round huge": (changed(round="9" * 5000), "round '999"),
    "model": (changed(model="../../x"), "model '../../x'"),
    "unknown": (changed(colour="red"), "unknown 'colour'"),
    "option": (changed(config__rate="0.1x"), "'config.rate' is '0.1x'"),
    "option list": (changed(config__rate="[1]"), "option 'rate' is \\[1\\]; expected int or"),
    "option NaN": (changed(config__rate="NaN"), "option 'rate' is nan; expected a finite"),
    "option huge": (changed(config__rate="1" * 30), "does not fit 64 bits"),
    "option deep": (changed(config__rate="[" * 100_000), "expected a JSON number"),
    "metric text": (changed(metric__loss='"a"'), "metric 'loss' is 'a'; expected int or float"),
    "no samples": (changed(kind="trained"), "metric 'num-examples' None"),
    "samples": (changed(kind="trained", **{"metric__num-examples": "-1"}), "'num-examples' -1"),
    "samples 1.0": (changed(kind="trained", **{"metric__num-examples": "1.0"}), "1.0; expected"),
    "tensors of a failure": (changed(kind="failed", reason="x"), "with 2 tensors"),
    "reason": (changed(reason="x"), "'train' with reason 'x'"),
    "no tensors": (tensors(body=0), "with 0 tensors; expected its parameters"),
    "unknown type": (tensors(entry([6], [0, 24], "F8_E4M3")), "'t0' is 'F8_E4M3'; supported"),
    "type list": (tensors(entry([6], [0, 24], ["F32"])), "supported: BOOL"),
    "overlap": (tensors(entry([6], [0, 24]), entry([3], [0, 12])), "bytes 0 to 24 of 24 for 24"),
    "overlap by half": (tensors(entry([4], [0, 16]), entry([4], [8, 24])), "16 bytes from 16 on"),
    "gap": (tensors(entry([2], [0, 8]), entry([2], [16, 24])), "8 bytes from 8 on"),
    "tail": (tensors(entry([2], [0, 8])), "24 bytes of tensors, but the header names 8"),
    "beyond": (tensors(entry([7], [0, 28])), "bytes 0 to 28 of 24"),
    "shape": (tensors(entry([5], [0, 24])), "for 20 bytes"),
    "negative": (tensors(entry([-6], [0, 24])), "malformed"),
    "product": (tensors(entry([2**62, 2**62], [0, 24])), "bytes 0 to 24 of 24 for"),
    "nothing times much": (tensors(entry([0, 2**62, 2**62], [0, 0]), body=0), "shape"),
    "rank": (tensors(entry([1] * 40, [0, 4]), body=4), "malformed"),
    "true": (tensors(entry([True, 6], [0, 24])), "malformed"),
    "real offsets": (tensors(entry([6], [0, 24.0])), "malformed"),
    "no offsets": (tensors({"dtype": "F32", "shape": [6]}), "malformed"),
    "three offsets": (tensors(entry([6], [0, 24, 24])), "malformed"),
    "a number": (packed({"t": 3}), "malformed"),
    "truncated": (request().to_bytes()[:-1], "'fc.weight': bytes 0 to 24|of 35"),
}  # fmt: skip


@pytest.mark.parametrize("row", DAMAGED)
def test_a_damaged_message_is_refused(row: str) -> None:
    content, said = DAMAGED[row]
    with pytest.raises(MessageError, match=said) as found:
        Message.from_bytes(content, "device 3")
    assert str(found.value).startswith("device 3: ")
    assert len(str(found.value)) < 500


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
        found = Message.from_bytes(content)
    except MessageError:
        pass
    else:
        Message.from_bytes(found.to_bytes())
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
        (lambda: request().failed("\ud800").to_bytes(), "no UTF-8 form"),
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
        (Message("failed", other, 4, reason="x"), f"of model {other}; asked was {MODEL}"),
        (asked.trained({"fc.bias": B}, done), "lacks the parameter 'fc.weight'"),
        (asked.trained({**ARRAYS, "x": B}, done), "has the parameter 'x'"),
        (asked.trained({**ARRAYS, "fc.bias": B[:2]}, done), r"shape \[2\]; sent was \[3\]"),
        (asked.trained({**ARRAYS, "fc.bias": B.astype("f2")}, done), "float16; sent was float32"),
        (asked.trained({**ARRAYS, "fc.bias": B / np.float32("nan")}, done), "not finite"),
    ]  # fmt: skip
    for answer, said in wrong:
        with pytest.raises(MessageError, match=said):
            answer.check_answer(asked)

"""Messages of a federation as bytes: a good request, and every kind of damage."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from engine.checkpoint import safetensors
from engine.federated.message import MAX_HEADER, Message, fingerprint

W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(3, np.float32)
ARRAYS = {"fc.weight": W, "fc.bias": B}
MODEL = fingerprint(ARRAYS)


def request() -> Message:
    return Message(
        "train", MODEL, 4, ARRAYS, {"rate": 0.1, "epochs": 2, "shuffle": True, "note": 'a "b"\n'}
    )


def pack(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def change(**texts: str | None) -> bytes:
    """A request whose metadata say something else; None takes a text away."""
    arrays, actual = safetensors.decode(request().to_bytes(), "x")
    given = actual | {name.replace("__", "."): text for name, text in texts.items()}
    kept = {name: text for name, text in given.items() if text is not None}
    return b"".join(safetensors.encode(arrays, kept))


def place(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def pack_tensors(*rows: dict[str, Any], body: int = 24) -> bytes:
    meta = {"edgegrad.message": "1", "kind": "train", "model": MODEL, "round": "0"}
    named = {f"t{i}": row for i, row in enumerate(rows)}
    return pack({"__metadata__": meta, **named}, bytes(body))


# what is read: what the message says
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "short": (b"\0" * 7, "7 bytes"),
    "header beyond the end": (struct.pack("<Q", 2**63) + b"{}", "truncated"),
    "large header": (struct.pack("<Q", MAX_HEADER + 1) + bytes(MAX_HEADER + 1), "at most 4194304"),
    "no JSON": (pack(b"hello"), "not a JSON object"),
    "a list": (pack([1]), r"not a JSON object: \[1\]"),
    "deep": (pack(b"[" * 100_000), "not a JSON object"),
    "UTF-16": (pack("{}".encode("utf-16")), "not a JSON object"),
    "twice": (pack(b'{"a": 1, "a": 2}'), "'a' twice"),
    "twice inside": (pack(b'{"a": {"dtype": "F32", "dtype": "F64"}}'), "'dtype' twice"),
    "metadata": (pack({"__metadata__": {"kind": 3}}), "not a JSON object of strings"),
    "metadata list": (pack({"__metadata__": []}), "not a JSON object of strings"),
    "an adapter": (pack({"__metadata__": {"format": "pt"}}), "not a message of a federation"),
    "version": (change(edgegrad__message="2"), "version '2' of the format; supported: '1'"),
    "no kind": (change(kind=None), "'kind' is missing"),
    "kind": (change(kind="trian"), "kind 'trian'; expected one of train"),
    "no round": (change(round=None), "'round' is missing"),
    "round": (change(round="-1"), "round '-1'"),
    "round 1e3": (change(round="1e3"), "round '1e3'"),
    "round huge": (change(round="9" * 5000), "round '999"),
    "model": (change(model="../../x"), "model '../../x'"),
    "unknown": (change(colour="red"), "unknown 'colour'"),
    "option": (change(config__rate="0.1x"), "'config.rate' is '0.1x'"),
    "option list": (change(config__rate="[1]"), "option 'rate' is \\[1\\]; expected int or"),
    "option NaN": (change(config__rate="NaN"), "option 'rate' is nan; expected a finite"),
    "option huge": (change(config__rate="1" * 30), "does not fit in 64 bits"),
    "option deep": (change(config__rate="[" * 100_000), "expected a JSON number"),
    "metric text": (change(metric__loss='"a"'), "metric 'loss' is 'a'; expected int or float"),
    "no samples": (change(kind="trained"), "metric 'num-examples' None"),
    "samples": (change(kind="trained", **{"metric__num-examples": "-1"}), "'num-examples' -1"),
    "samples 1.0": (change(kind="trained", **{"metric__num-examples": "1.0"}), "1.0; expected"),
    "tensors of a failure": (change(kind="failed", reason="x"), "with 2 tensors"),
    "reason": (change(reason="x"), "'train' with reason 'x'"),
    "no tensors": (pack_tensors(body=0), "with 0 tensors; expected its parameters"),
    "unknown type": (pack_tensors(place([6], [0, 24], "F8_E4M3")), "'t0' is 'F8_E4M3'; supported"),
    "type list": (pack_tensors(place([6], [0, 24], ["F32"])), "supported: F32"),
    "overlap": (
        pack_tensors(place([6], [0, 24]), place([3], [0, 12])),
        "bytes 0 to 24 of 24 for 24",
    ),
    "overlap by half": (
        pack_tensors(place([4], [0, 16]), place([4], [8, 24])),
        "16 bytes from 16 on",
    ),
    "gap": (pack_tensors(place([2], [0, 8]), place([2], [16, 24])), "8 bytes from 8 on"),
    "tail": (pack_tensors(place([2], [0, 8])), "24 bytes of tensors, but the header names 8"),
    "beyond": (pack_tensors(place([7], [0, 28])), "bytes 0 to 28 of 24"),
    "shape": (pack_tensors(place([5], [0, 24])), "for 20 bytes"),
    "negative": (pack_tensors(place([-6], [0, 24])), "malformed"),
    "product": (pack_tensors(place([2**62, 2**62], [0, 24])), "bytes 0 to 24 of 24 for"),
    "nothing times much": (pack_tensors(place([0, 2**62, 2**62], [0, 0]), body=0), "shape"),
    "rank": (pack_tensors(place([1] * 40, [0, 4]), body=4), "malformed"),
    "true": (pack_tensors(place([True, 6], [0, 24])), "malformed"),
    "real offsets": (pack_tensors(place([6], [0, 24.0])), "malformed"),
    "no offsets": (pack_tensors({"dtype": "F32", "shape": [6]}), "malformed"),
    "three offsets": (pack_tensors(place([6], [0, 24, 24])), "malformed"),
    "a number": (pack({"t": 3}), "malformed"),
    "truncated": (request().to_bytes()[:-1], "'fc.weight': bytes 0 to 24|of 35"),
}  # fmt: skip
TAKEN = {"option huge", "no tensors"}  # by C: a float, and parameters that are missing

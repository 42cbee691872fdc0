"""Plans as bytes: what comes back is equal, and no bytes crash the reader or pass its checks."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.graphs.io import onnx_io
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.target import make
from engine.runtime.plan import Plan
from engine.runtime.plan_file import from_bytes, to_bytes
from tests.harness import OneNode, all_cases
from tests.test_plan import chain

TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")
GOLDENS = Path(__file__).parent / "data" / "goldens"


def golden_plan() -> Plan:
    graph = onnx_io.load(GOLDENS / "cnn" / "eval_model.onnx")
    shapes = {
        name: tuple(d if isinstance(d, int) else 4 for d in t.shape)
        for name, t in graph.inputs.items()
    }
    return make_plan(graph, shapes, target=TARGET, threads=2)


def sealed(payload: bytes) -> bytes:
    """A file around a payload, its checksum right."""
    return struct.pack("<4sIQI", b"EGPL", 2, len(payload), zlib.crc32(payload)) + payload


def test_plans_of_all_ops_come_back_equal() -> None:
    for case in all_cases()[::5]:
        plan = make_plan(OneNode(case).graph, {}, target=TARGET, threads=2)
        data = to_bytes(plan)
        assert from_bytes(data) == plan, case.id
        assert to_bytes(from_bytes(data)) == data


def test_a_plan_file_is_compact() -> None:
    plan = golden_plan()
    assert from_bytes(to_bytes(plan)) == plan
    assert len(to_bytes(plan)) < len(str(plan)) * 2 / 3  # most of both are names


def test_integers_of_64_bits_and_floats_survive() -> None:
    consts = (-(1 << 63), (1 << 63) - 1, -1, 0, 0.1, float("inf"))
    step = replace(chain().steps[0], consts=consts)
    plan = replace(chain(), steps=(step, *chain().steps[1:]))
    assert from_bytes(to_bytes(plan)).steps[0].consts == consts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a plan"),
        (b"ONNX" + bytes(16), "not a plan"),
        (to_bytes(chain())[:-1], "header says"),
        (to_bytes(chain())[:4] + b"\x03" + to_bytes(chain())[5:], "version 3"),
        (to_bytes(chain())[:-1] + b"\x7f", "checksum"),
        (sealed(b""), "truncated"),
        (sealed(b"\xff" * 9 + b"\x01"), "expected less"),
        (sealed(b"\xff" * 12), "too long"),
        (sealed(b"\x01\x01\xff" + bytes(9)), "UTF-8"),
        (sealed(to_bytes(chain())[20:] + b"\x00"), "1 bytes after"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        from_bytes(data, "x.plan")


def test_a_sealed_plan_that_breaks_a_rule_is_refused() -> None:
    wild = replace(chain(), buffers=(replace(chain().buffers[0], offset=1 << 40),
                                     *chain().buffers[1:]))  # fmt: skip
    with pytest.raises(ModelError, match="alignment"):
        from_bytes(to_bytes(wild))


@pytest.mark.parametrize("plan", [chain(), golden_plan()], ids=["chain", "cnn"])
def test_any_damage_is_a_model_error_or_a_verified_plan(plan: Plan) -> None:
    """Damage with a right checksum: every prefix, then random bytes changed."""
    payload = to_bytes(plan)[20:]
    step = max(1, len(payload) // 400)
    for n in range(0, len(payload), step):
        with pytest.raises(ModelError):
            from_bytes(sealed(payload[:n]))
    dice = random.Random(7)
    refused = 0
    for _ in range(600):
        bad = bytearray(payload)
        for _ in range(dice.randint(1, 4)):
            bad[dice.randrange(len(bad))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        try:
            from_bytes(sealed(bytes(bad)))
        except ModelError:
            refused += 1
    assert refused > 100

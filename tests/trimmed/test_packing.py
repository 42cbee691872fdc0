"""Packed plans: whole again in Python and in C."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from engine.tools.trimmed import bundle
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.packing import pack, unpack
from engine.tools.trimmed.targets import resolve
from tests.support.places import GOLDENS


@pytest.mark.parametrize("letters", [1, 2, 4, 256])
def test_packed_bytes_are_whole_again(letters: int) -> None:
    drawn = random.Random(letters)
    for size in (0, 1, 2, 3, 66, 67, 128, 129, 300, 3000):
        content = bytes(drawn.randrange(letters) for _ in range(size))
        assert unpack(pack(content)) == content
        assert len(pack(content)) <= size + -(-size // 128)
    assert len(pack(bytes(3000))) < 150


def test_repetitions_are_found_near_and_far() -> None:
    drawn = random.Random(1)
    noise = drawn.randbytes(40_000)
    assert len(pack(noise + noise[:60])) < len(pack(noise)) + 8
    assert len(pack(noise + noise[-60:])) < len(pack(noise)) + 8
    far = noise + drawn.randbytes(1 << 16) + noise[:60]
    assert unpack(pack(far)) == far


@pytest.mark.parametrize("threads", [1, 2])
def test_a_build_with_packed_plans_trains_alike(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model gains nothing by it, so that it is not packed unless it has to be."""
    made = {}
    for name, least in (("as it comes", bundle.UNPACKING), ("packed", -(10**6))):
        monkeypatch.setattr(bundle, "UNPACKING", least)
        options = Options("mnist", resolve("native"), PlanRequest([8, 5], threads))
        areas = build(GOLDENS / "cnn", tmp_path / name, options)["report"]["areas"]
        words = [tmp_path / name / "selftest", tmp_path / name / "checkpoint"]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        made[name] = re.sub(r"[\d.]+ ms", "", done.stdout), areas["unpacked plans"]
    monkeypatch.setattr(bundle, "PACKED_PART", 10**9)
    areas = build(GOLDENS / "cnn", tmp_path / "packed", options)["report"]["areas"]
    assert areas["unpacked plans"] == 0  # they would be too much of the model's memory
    (said, nothing), (packed_said, room) = made.values()
    assert packed_said == said
    assert "passed" in said
    assert room > nothing == 0

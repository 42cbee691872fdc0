"""Five model families train as PyTorch trained them when `bench.families --record` was run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.families import DATA, RECORDED, TOLERANCE, compare


def test_what_is_recorded_is_what_is_named() -> None:
    assert sorted(path.stem for path in DATA.glob("*.onnx")) == sorted(RECORDED)


@pytest.mark.parametrize("tag", RECORDED)
def test_losses_of_three_steps(tag: str, tmp_path: Path) -> None:
    found, expected = compare(DATA / f"{tag}.onnx", tmp_path)
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert found[2] < found[0]

"""Models of many families train and export as they should; PyTorch's side of it is recorded.

`python -m bench.families --record` has written the models and what PyTorch's steps gave.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.families.recorded import DATA, RECORDED, SAMPLED
from bench.families.train import compare


def test_what_is_recorded_is_what_is_named() -> None:
    assert sorted(path.stem for path in DATA.glob("*.onnx")) == sorted(RECORDED)
    assert set(SAMPLED) < set(RECORDED)


@pytest.mark.parametrize(
    "tag", [t if t in SAMPLED else pytest.param(t, marks=pytest.mark.whole) for t in RECORDED]
)
def test_losses_gradients_and_the_inference_model(tag: str, tmp_path: Path) -> None:
    found = compare(DATA / f"{tag}.onnx", tmp_path)
    assert found.fault == ""
    assert None not in (found.losses, found.gradients, found.inference)

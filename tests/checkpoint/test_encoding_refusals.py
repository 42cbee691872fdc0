"""Contents that the format of checkpoints has no place for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from engine.checkpoint import encoding, storage
from engine.checkpoint.storage import Checkpoint, NominalTensor, OptimizerGroup, decode, encode
from engine.errors import CheckpointError, DTypeError, InputError
from tests.support.checkpoints import get_array, make_sample, simplify


@pytest.mark.parametrize(
    ("cp", "kind", "message"),
    [
        (
            Checkpoint({"w": np.zeros(2, np.float16)}),
            DTypeError,
            r"parameter 'w': float16 is not supported in checkpoints; supported: FLOAT, ",
        ),
        (Checkpoint({"w": np.zeros(2, "U3")}), DTypeError, "parameter 'w': <U3 is not supported"),
        (
            Checkpoint(
                optimizer_groups=[OptimizerGroup(states={"w": {"m": np.zeros(1, np.complex64)}})]
            ),
            DTypeError,
            "'m' of parameter 'w': complex64 is not supported",
        ),
        (
            Checkpoint({"w": np.zeros(1)}, {"w": np.zeros(1)}),
            CheckpointError,
            "'w' is both trainable and frozen",
        ),
        (
            Checkpoint({"w": NominalTensor(np.dtype("f4"))}),
            CheckpointError,
            "'w' is a NominalTensor in a complete checkpoint",
        ),
        (
            Checkpoint({"w": np.zeros(1)}, nominal=True),
            CheckpointError,
            "'w' is a ndarray in a nominal checkpoint",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(), OptimizerGroup()]),
            CheckpointError,
            "duplicate name",
        ),
        (Checkpoint(properties={"p": 2**63}), InputError, "'p' is 9223372036854775808, outside"),
        (Checkpoint(properties={"p": -(2**63) - 1}), InputError, "outside the range of int64"),
        (Checkpoint(properties={"p": 1e39}), InputError, r"'p' is 1e\+39, outside .* float32"),
        (
            Checkpoint(properties={"p": cast(Any, [1])}),
            DTypeError,
            "'p' is a list; supported: int, float, str",
        ),
        (Checkpoint(properties={"p": cast(Any, None)}), DTypeError, "'p' is a NoneType"),
        (Checkpoint(properties={"p": "\ud800"}), InputError, "cannot be stored as UTF-8"),
        (Checkpoint({"\ud800": np.zeros(1)}), InputError, "cannot be stored as UTF-8"),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(step=2**63)]),
            InputError,
            "step of 'group0' is 9223372036854775808",
        ),
        (
            Checkpoint(optimizer_groups=[OptimizerGroup(initial_learning_rate=1e300)]),
            InputError,
            r"initial_learning_rate of 'group0' is 1e\+300",
        ),
    ],
)
def test_contents_without_a_place_in_the_format(
    cp: Checkpoint, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        encode(cp)
    with pytest.raises(kind, match=message):
        storage.write(cp, tmp_path / "ck")
    assert os.listdir(tmp_path) == []


def test_the_artifact_layout_holds_parameters_and_properties_only() -> None:
    with pytest.raises(CheckpointError, match=r"no optimizer groups; got \['group0'\]"):
        encode(make_sample(), artifact=True)
    cp = replace(make_sample(), optimizer_groups=[])
    assert simplify(decode(*encode(cp, artifact=True))) == simplify(cp)


def test_the_highest_rank() -> None:
    trainable = decode(*encode(Checkpoint({"w": np.zeros((1,) * 64)}))).trainable["w"]
    assert get_array(trainable).ndim == 64


def test_too_much_for_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(encoding, "MAX_BYTES", 400)
    with pytest.raises(CheckpointError, match=r"1225 bytes .* stay inline, 320 of them optimizer"):
        encode(make_sample())
    with pytest.raises(CheckpointError, match="a checkpoint file holds at most 400 bytes"):
        encode(make_sample(), external_threshold=0)
    monkeypatch.undo()
    monkeypatch.setattr(storage, "MAX_BYTES", 10)
    storage.write(make_sample(), tmp_path / "ck")
    with pytest.raises(CheckpointError, match="bytes; a checkpoint has up to 10"):
        storage.read(tmp_path / "ck")

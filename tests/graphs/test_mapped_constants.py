"""Constants in a file of their own stay there: region frozen consists of the file's pages."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from engine.api import CheckpointState, Module
from engine.artifacts import LossType, generate_artifacts
from engine.base.plan_options import PlanOptions
from engine.checking import process
from engine.errors import BudgetError, FileError
from engine.runtime import mapping
from tests.support.harness import get_gradient

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith(("linux", "darwin")), reason="files are copied there"
)
RNG = np.random.default_rng(0)
WEIGHTS = {"v": (96, 64), "u": (64, 128), "w": (128, 3)}


def forward(folder: Path) -> Path:
    """y = x v u w, as a file with external data."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[batch,96] x) => (float[batch,3] y)
        { a = MatMul(x, v) b = MatMul(a, u) y = MatMul(b, w) }"""
    )
    for name, shape in WEIGHTS.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    path = folder / "forward.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights")
    return path


def module(folder: Path) -> Module:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1)


def test_frozen_weights_stay_in_their_file(tmp_path: Path) -> None:
    """The models share one file, its bytes are not copied, and what is computed is the same."""
    x = RNG.standard_normal((4, 96)).astype(np.float32)
    target = np.ones((4, 3), np.float32)
    actual = {}
    path = forward(tmp_path)
    for external in (None, False):
        folder = tmp_path / str(external)
        generate_artifacts(
            path, ["w"], loss=LossType.MSELoss, artifact_directory=folder, external_data=external
        )  # fmt: skip
        trained = module(folder)
        actual[external] = trained(x, target), get_gradient(trained.session.state, "w").copy()
        frozen = 4 * (96 * 64 + 64 * 128)
        assert trained.session.memory.mapped == (frozen if external is None else 0)
        assert len(list(folder.glob("constants.*.data"))) == (external is None)
        held = process.count_region_bytes(trained.plans(), trained.session.memory.mapped)
        assert held.get("frozen", 0) == (0 if external is None else frozen)  # what a check counts
        assert trained.eval()(x, target) == actual[external][0]
        assert len(trained.session.memory.frozen) < 2 * frozen + mapping.PAGE
    np.testing.assert_array_equal(actual[None][0], actual[False][0])
    np.testing.assert_array_equal(actual[None][1], actual[False][1])
    (shared,) = (tmp_path / "None").glob("constants.*.data")
    assert shared.stat().st_size == frozen


def test_what_is_mapped_counts_in_no_budget(tmp_path: Path) -> None:
    x, target = np.ones((4, 96), np.float32), np.ones((4, 3), np.float32)
    generate_artifacts(
        forward(tmp_path), ["w"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )  # fmt: skip
    usual = module(tmp_path)
    loss = usual(x, target)
    (plan,) = usual.plans()
    mapped = usual.session.memory.mapped
    tight = module(tmp_path)
    tight.session.memory.planning = PlanOptions(budget=plan.nbytes - mapped)
    assert tight(x, target) == loss
    tiny = module(tmp_path)
    tiny.session.memory.planning = PlanOptions(budget=1000)
    with pytest.raises(BudgetError, match=f"{mapped} bytes of constants that stay") as caught:
        tiny(x, target)
    assert 1000 < caught.value.least <= plan.nbytes - mapped


def test_pieces_lie_as_in_their_files(tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    numbers = np.arange(3 * mapping.PAGE, dtype=np.int32)
    numbers.tofile(path)
    kind = np.dtype(np.int32)
    places = (
        (mapping.PAGE // 2, 100),
        (mapping.PAGE // 2 + 112, 50),
        (0, 64),
        (2 * mapping.PAGE, 9),
    )
    arrays = [mapping.open_array(path, kind, n, 4 * at, "numbers") for at, n in places]
    pieces = [piece for a in arrays if (piece := mapping.find_layable(a)) is not None]
    assert len(pieces) == len(arrays)
    offsets, laid, size = mapping.lay_out(pieces)
    assert len(laid) == 3  # the second follows the first
    memory = mapping.make_region(size, laid, what="numbers")
    for array, at in zip(arrays, offsets, strict=True):
        np.testing.assert_array_equal(memory[at : at + array.nbytes].view(kind), array)
    assert mapping.find_layable(arrays[0][1:]) is None  # no multiple of 64 bytes
    assert mapping.find_layable(arrays[0][::2]) is None
    assert mapping.find_layable(np.zeros(100)) is None


def test_a_file_that_changes_is_told(tmp_path: Path) -> None:
    """Another file of the name does no harm; a file that is changed in place is reported."""
    path = tmp_path / "numbers"
    np.arange(4096).tofile(path)
    actual_array = mapping.open_array(str(path), np.dtype(np.int64), 4096, 0, "numbers")
    piece = mapping.find_source(actual_array)
    assert piece is not None
    piece.file.check()
    np.zeros(4096, np.int64).tofile(tmp_path / "new")
    os.replace(tmp_path / "new", path)
    piece.file.check()
    np.testing.assert_array_equal(actual_array, np.arange(4096))
    assert mapping.find_layable(actual_array) is None  # what has its name now is another file
    again = mapping.open_array(str(path), np.dtype(np.int64), 4096, 0, "numbers")
    changed = mapping.find_source(again)
    assert changed is not None
    with open(path, "r+b") as file:
        file.write(b"changed")
    os.utime(path, ns=(0, 0))
    with pytest.raises(FileError, match="was changed while it was in use"):
        changed.file.check()
    with pytest.raises(FileError, match=re.escape("numbers: bytes 8 to 32776 of")):
        mapping.open_array(str(path), np.dtype(np.int64), 4096, 8, "numbers")

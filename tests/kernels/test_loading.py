"""Loading of checkpoints: allocations, and independence from the file afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.api import CheckpointState, Module, Optimizer
from engine.checkpoint import flatbuffer, storage
from engine.checkpoint.storage import Checkpoint, OptimizerGroup
from engine.errors import CheckpointError
from tests.support.places import CHECKPOINTS, GOLDENS, ROOT
from tests.support.plan_records import TRACE

MIB = 1 << 20


def large(path: Path, moments: int = 2) -> int:
    """Write a checkpoint of 16 MiB of parameters with their moments; return their bytes."""
    rng = np.random.default_rng(0)
    params = {f"w{i}": rng.random((512, 2048), np.float32) for i in (2, 1, 0, 3)}
    states = {
        n: {f"momentum{k}": rng.random(a.shape, np.float32) for k in range(moments)}
        for n, a in params.items()
    }
    group = [OptimizerGroup("group0", 3, 0.01, states)] if moments else []
    storage.write(Checkpoint(params, optimizer_groups=group), path)
    return 16 * MIB


def peak(call: Callable[[], Any]) -> tuple[int, Any]:
    """The most bytes that a call had allocated at once, and its result."""
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_values_are_read_to_their_places(tmp_path: Path) -> None:
    size = large(tmp_path / "checkpoint")
    needed, state = peak(lambda: CheckpointState.load_checkpoint(tmp_path / "checkpoint"))
    assert needed < 1.1 * 3 * size
    again, copied = peak(lambda: state.to_bytes(True))
    assert again < 1.1 * 3 * size
    data = (tmp_path / "checkpoint").read_bytes()
    assert copied == data
    needed, other = peak(lambda: CheckpointState.from_bytes(data))
    assert needed < 1.1 * 3 * size
    assert other.to_bytes(True) == data
    needed, actual = peak(lambda: storage.holds_values(tmp_path / "checkpoint"))
    assert actual
    assert needed < MIB
    needed, _ = peak(lambda: CheckpointState.save_checkpoint(state, tmp_path / "again", True))
    assert needed < MIB
    assert (tmp_path / "again").read_bytes() == data


def test_values_in_a_second_file_are_read_to_their_places(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    size = large(path)
    content = storage.read(path)
    storage.write(content, path, external_threshold=0)
    assert Path(f"{path}.data").stat().st_size == size
    needed, state = peak(lambda: CheckpointState.load_checkpoint(path))
    assert needed < 1.1 * 3 * size
    for name, values in content.trainable.items():
        np.testing.assert_array_equal(state.parameters[name].data, np.asarray(values))


def test_an_optimizer_takes_over_what_was_read(tmp_path: Path) -> None:
    """Parameters, gradients and moments, and no copy of any of them."""
    folder = GOLDENS / "mlp"
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    module(TRACE["x"][0], TRACE["y"][0])
    optimizer.step()
    saved = state.to_bytes(True)
    again = CheckpointState.from_bytes(saved)
    read = again.moments
    assert read is not None
    module = Module(folder / "training_model.onnx", again)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    assert again.regions["state"] is read
    assert again.moments is None
    assert again.to_bytes(True) == saved
    other = Optimizer(folder / "optimizer_model.onnx", module)
    assert again.regions["state"] is not read
    assert again.to_bytes(True) == saved
    module(TRACE["x"][1], TRACE["y"][1])
    other.step()
    assert again.to_bytes(True) != saved


def test_states_that_lie_elsewhere_are_copied(tmp_path: Path) -> None:
    """A checkpoint that has states of some parameters alone: the others start over."""
    folder = GOLDENS / "mlp"
    content = storage.read(folder / "checkpoint")
    name, value = next((n, np.asarray(a)) for n, a in content.trainable.items())
    states = {name: {f"momentum{k}": np.full(value.shape, k + 1, np.float32) for k in range(2)}}
    group = OptimizerGroup("group0", 1, 0.01, states)
    storage.write(
        Checkpoint(content.trainable, content.frozen, optimizer_groups=[group]),
        tmp_path / "checkpoint",
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert state.moments is None
    Optimizer(folder / "optimizer_model.onnx", Module(folder / "training_model.onnx", state))
    for other, moments in state.groups[0].states.items():
        for k in range(2):
            assert np.all(moments[f"momentum{k}"] == (k + 1 if other == name else 0))


def test_the_file_may_change_or_go(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    large(path)
    expected = path.read_bytes()
    state = CheckpointState.load_checkpoint(path)
    with open(path, "r+b") as file:
        file.write(bytes(1000))
        file.truncate(1000)
    assert state.to_bytes(True) == expected
    path.unlink()
    assert state.to_bytes(True) == expected


def test_a_file_that_is_cut_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no signal that ends the process, as of memory that is mapped to it."""
    path = tmp_path / "checkpoint"
    large(path)
    read_into = flatbuffer._InFile.read_into

    def cut(self: flatbuffer._InFile, target: memoryview, pos: int) -> None:
        if len(target) > MIB:
            os.truncate(path, MIB)
        read_into(self, target, pos)

    monkeypatch.setattr(flatbuffer._InFile, "read_into", cut)
    with pytest.raises(
        CheckpointError, match="checkpoint: the file has become shorter since it was opened"
    ):
        CheckpointState.load_checkpoint(path)


@pytest.mark.parametrize("name", ["adamw_runtime", "dtypes", "nominal", "properties", "empty"])
def test_files_are_read_as_bytes_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size of blocks gives the same result, with few of them kept."""
    path = CHECKPOINTS / name
    whole = storage.encode(storage.decode(path.read_bytes()))
    for block, count in ((1, 1), (7, 2), (64, 3), (4096, 64)):
        monkeypatch.setattr(flatbuffer._InFile, "_BLOCK", block)
        monkeypatch.setattr(flatbuffer._InFile, "_KEPT", count)
        assert storage.encode(storage.read(path)) == whole


RESIDENT = """
import resource, sys
from engine.api import CheckpointState
import numpy as np
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
state = CheckpointState.load_checkpoint(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit")
def test_resident_memory_grows_by_what_the_state_holds(tmp_path: Path) -> None:
    size = large(tmp_path / "checkpoint")
    words = [sys.executable, "-c", RESIDENT, str(tmp_path / "checkpoint")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 1.1 * 3 * size + 4 * MIB


def test_parameters_lie_by_name_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    large(tmp_path / "checkpoint", moments=0)
    content = storage.read(tmp_path / "checkpoint")
    names = ["w2", "w0", "w3", "w1"]
    storage.write(
        Checkpoint({n: content.trainable[n] for n in names}), tmp_path / "other", artifact=True
    )
    state = CheckpointState.load_checkpoint(tmp_path / "other")
    assert list(state.slots) == names
    assert sorted(names, key=lambda n: state.slots[n].offset) == sorted(names)
    one, two = (CheckpointState.load_checkpoint(tmp_path / n) for n in ("checkpoint", "other"))
    assert one.regions["param"].tobytes() == two.regions["param"].tobytes()


def test_what_only_writing_needs_is_imported_then() -> None:
    code = (
        "import sys, engine.api; print(*{'tempfile', 'shutil', 'lzma', 'secrets'} & {*sys.modules})"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

"""Reading and writing stay inside the folder of the model, whatever links and names there are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import Trainer, artifacts, backend
from engine.errors import EngineError, FileError, ModelError
from engine.system import files
from tests.support.places import GOLDENS

LARGE = 1 << 15  # elements; such a constant is mapped, not read
links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")


def model(location: str, count: int = 4, **entries: str) -> bytes:
    """x + w, with w as external data."""
    w = TensorProto(name="w", data_type=1, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=value)
    ports = [helper.make_tensor_value_info(name, 1, [count]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", "xw", "y")], "g", ports[:1], ports[1:], [w])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def weights(path: Path, count: int = 4) -> None:
    path.parent.mkdir(exist_ok=True)
    np.arange(count, dtype=np.float32).tofile(path)


def run(path: Path, count: int = 4) -> Any:
    return backend.prepare(path, threads=1).run([np.zeros(count, np.float32)])[0]


@links
@pytest.mark.parametrize("count", [4, LARGE])
def test_links_that_lead_out_are_refused(tmp_path: Path, count: int) -> None:
    home, away = tmp_path / "model", tmp_path / "away"
    weights(away / "secret", count)
    weights(home / "data", count)
    for name, place in (("file", away / "secret"), ("folder", away), ("inside", home / "data")):
        (home / name).symlink_to(place)
    for location in ("file", "folder/secret"):
        (home / "model.onnx").write_bytes(model(location, count))
        with pytest.raises(FileError, match=r"'w'.*secret', outside the folder of the model"):
            run(home / "model.onnx", count)
    (home / "model.onnx").write_bytes(model("inside", count))
    np.testing.assert_array_equal(run(home / "model.onnx", count), np.arange(count))
    (home / "data").unlink()  # a session of before has kept what it knows of the model
    (home / "inside").unlink()
    (home / "inside").symlink_to(away / "secret")
    with pytest.raises(FileError, match="outside the folder"):
        run(home / "model.onnx", count)


@links
def test_a_cache_of_a_hub_is_read(tmp_path: Path) -> None:
    """Snapshots are links to blobs with other names; data is a link or a blob."""
    snapshot, blobs = tmp_path / "snapshots", tmp_path / "blobs"
    weights(blobs / "17ab")
    snapshot.mkdir()
    (blobs / "93cd").write_bytes(model("model.onnx_data"))
    (snapshot / "model.onnx").symlink_to("../blobs/93cd")
    (snapshot / "model.onnx_data").symlink_to("../blobs/17ab")
    np.testing.assert_array_equal(run(snapshot / "model.onnx"), np.arange(4))
    (snapshot / "model.onnx").unlink()
    (snapshot / "model.onnx").write_bytes(model("model.onnx_data"))
    with pytest.raises(FileError, match="outside the folder"):
        run(snapshot / "model.onnx")


@links
def test_a_hard_link_is_a_file_of_its_folder(tmp_path: Path) -> None:
    weights(tmp_path / "away" / "data")
    os.link(tmp_path / "away" / "data", tmp_path / "data")
    (tmp_path / "model.onnx").write_bytes(model("data"))
    np.testing.assert_array_equal(run(tmp_path / "model.onnx"), np.arange(4))


@links
def test_a_link_that_appears_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights(tmp_path / "away" / "secret")
    below = tmp_path / "model" / "below"
    below.mkdir(parents=True)
    weights(below / "data")
    check = files._is_inside

    def swap(place: str, folder: str) -> bool:
        checked = check(place, folder)
        (below / "data").unlink()
        below.rmdir()
        below.symlink_to(tmp_path / "away")
        return checked

    monkeypatch.setattr(files, "_is_inside", swap)
    with pytest.raises(OSError, match="below"):
        files.open_file(str(below / "data"), str(tmp_path / "model" / "model.onnx"))


@pytest.mark.parametrize(
    "location",
    ["../data", "/etc/passwd", "a/../../data", "C:/data", "C:data", r"\\host\share\data",
     r"..\data", r"\data", "", ".", "a/.."],
)  # fmt: skip
def test_names_that_lead_out_are_refused(tmp_path: Path, location: str) -> None:
    weights(tmp_path / "data")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").write_bytes(model(location))
    with pytest.raises(ModelError, match=r"'w' is external data in .* not in the model's folder"):
        run(tmp_path / "model" / "model.onnx")


@pytest.mark.parametrize(
    "entries",
    [{"offset": "-1"}, {"offset": str(2**63 - 8)}, {"offset": str(2**70)}, {"offset": "1" * 9999},
     {"offset": "1_0"}, {"offset": "+0"}, {"offset": "0.0"}, {"offset": "\u0660"},
     {"length": "-16"},
     {"length": "17"}, {"offset": "4", "length": "16"}],
)  # fmt: skip
def test_places_that_are_none_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    weights(tmp_path / "data")
    (tmp_path / "model.onnx").write_bytes(model("data", 4, **entries))
    with pytest.raises((ModelError, FileError), match="'w'") as caught:
        run(tmp_path / "model.onnx")
    assert len(str(caught.value)) < 1000


@links
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("count", [4, LARGE])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str, count: int) -> None:
    place = tmp_path / "data"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    (tmp_path / "model.onnx").write_bytes(model("data", count))
    with pytest.raises(FileError, match="not a regular file"):
        run(tmp_path / "model.onnx", count)


@pytest.mark.parametrize("prefix", ["../x_", "/tmp/x_", "sub/x_", r"..\x_", "C:x_"])
def test_a_prefix_stays_in_its_folder(tmp_path: Path, prefix: str) -> None:
    proto = onnx.load(GOLDENS / "mlp/forward.onnx")
    with pytest.raises(EngineError, match=r"prefix=.*without a folder"):
        artifacts.generate_artifacts(
            proto, ["0.weight"], loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=tmp_path / "made", prefix=prefix,
        )  # fmt: skip
    with pytest.raises(EngineError, match=r"prefix=.*without a folder"):
        Trainer(tmp_path, prefix=prefix)
    assert not list(tmp_path.iterdir())

"""Arrays of files *.npy and *.npz, and labels that are texts or one-hot."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer
from engine.data import Arrays, batches
from engine.errors import (
    EngineError,
    FileError,
    InputError,
    LimitError,
    NameNotFoundError,
    ShapeError,
)
from tests.support import page_setup

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])


def saved(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def test_an_array_is_mapped(tmp_path: Path) -> None:
    data = Arrays((saved(tmp_path / "x.npy", X), saved(tmp_path / "y.npy", Y)))
    assert isinstance(np.asarray(data.columns[0]).base, np.memmap)
    (x, y) = next(batches(data, batch_size=6).epoch())
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert np.array_equal(Arrays(tmp_path / "x.npy")[2][0], X[2])


def test_the_order_of_axes(tmp_path: Path) -> None:
    assert np.array_equal(Arrays(saved(tmp_path / "f.npy", np.asfortranarray(X)))[1][0], X[1])
    np.savez(tmp_path / "f.npz", x=np.asfortranarray(X))
    assert np.array_equal(Arrays(str(tmp_path / "f.npz"))[1][0], X[1])


def test_a_missing_array_is_reported_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=X, more=X, labels=Y)
    with pytest.raises(NameNotFoundError, match=r"data\.npz: no column 'image' "):
        Arrays(path).subset([0, 1]).select_columns(["image", "labels"])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    save(path, x=X, labels=Y, other=X)
    assert Arrays(path).names == ["x", "labels", "other"]
    chosen = Arrays(path, arrays=["x", "labels"])
    assert chosen.names is None
    assert [a.tolist() for a in chosen[1]] == [[2, 3], 1]
    batch = next(batches(str(path), batch_size=6, names=["x", "labels"]).epoch())
    assert [np.shape(array) for array in batch] == [(6, 2), (6,)]
    save(path, X, Y)
    assert Arrays(path).names is None
    with pytest.raises(NameNotFoundError, match="no array 'lables'; there are 'arr_0', 'arr_1'"):
        Arrays(path, arrays=["lables"])


def header(shape: str, descr: str = "'<f4'", order: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


FORGED = {
    "empty": (b"", "not an array as numpy.save writes it"),
    "no magic": (b"hello, this is text\n" * 9, "not an array as numpy.save writes it"),
    "pickle": (b"\x80\x04K\x01.", "not an array as numpy.save writes it"),
    "cut off": (header("(6, 2)") + bytes(40), r"float32\[6, 2\], 48 bytes, and the file has 40"),
    "huge": (header("(1152921504606846976, 8)") + bytes(8), "bytes, and the file has 8"),
    "overflow": (header(f"({2**40}, {2**40}, {2**40})") + bytes(8), "and the file has 8"),
    "negative": (header("(-1, 2)") + bytes(8), r"the shape \[-1, 2\]"),
    "no shape": (header("'a'") + bytes(8), "not an array as numpy.save writes it"),
    "objects": (header("(2,)", "'|O'") + bytes(99), "Python objects .pickle., which are not read"),
    "a structure": (header("(2,)", "[('a', '<f4')]") + bytes(99), "expected numbers or texts"),
    "dates": (header("(2,)", "'<M8[D]'") + bytes(99), "has the type datetime64"),
    "code": (header("(__import__('os').getpid(),)") + bytes(8), "not an array as numpy.save"),
    "deep": (header("(" * 100) + bytes(8), "not an array as numpy.save writes it"),
    "version": (b"\x93NUMPY\x09\x00" + bytes(200), "version|not an array"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_forged_files(kind: str, tmp_path: Path) -> None:
    content, message = FORGED[kind]
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=message):
        Arrays(str(tmp_path / "x.npy"))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(InputError, match=message):
        Arrays(str(tmp_path / "x.npz"))


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="or is damaged"):
        Arrays(str(tmp_path / "x.npz"))
    for name in ("none.npy", "none.npz"):
        with pytest.raises(FileError, match="cannot read"):
            Arrays(str(tmp_path / name))
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("read.me", "")
    with pytest.raises(InputError, match="has no arrays"):
        Arrays(str(tmp_path / "e.npz"))
    np.savez_compressed(tmp_path / "z.npz", x=np.zeros((1000, 100)))
    monkeypatch.setenv("EDGEGRAD_MAX_FILE_BYTES", "10000")
    with pytest.raises(LimitError, match="array 'x'"):
        Arrays(str(tmp_path / "z.npz"))


@pytest.mark.parametrize("at", range(0, 400, 37))
def test_damaged_archives(at: int, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=X, labels=Y)
    content = bytearray(buffer.getvalue())
    content[at % len(content)] ^= 0xFF
    (tmp_path / "x.npz").write_bytes(content)
    with contextlib.suppress(EngineError):  # anything else would be an error from within
        Arrays(str(tmp_path / "x.npz"))


@pytest.fixture
def classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.chdir(tmp_path)
    page_setup.forward(features=2)
    return Trainer.from_onnx("forward.onnx", "cross_entropy", "sgd", threads=1, seed=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_one_hot_labels(dtype: Any, classifier: Trainer) -> None:
    hot = np.eye(3, dtype=dtype)[Y]
    assert classifier.evaluate((X, hot), metrics="accuracy") == classifier.evaluate(
        (X, Y), metrics="accuracy"
    )
    hot[4] = [1, 0, 1]
    with pytest.raises(ShapeError, match=r"sample 4 is \[.*\]. Give the numbers of the classes"):
        classifier.evaluate((X, hot))


def test_a_run_on_files(classifier: Trainer) -> None:
    np.savez("data.npz", images=X, labels=Y)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    losses = [classifier.evaluate(data)["loss"] for data in ("data.npz", ("x.npy", "y.npy"))]
    assert losses == [classifier.evaluate((X, Y))["loss"]] * 2
    assert np.array_equal(classifier.predict("x.npy"), classifier.predict(X))
    assert len(classifier.fit("data.npz", epochs=2, progress=False).rows) == 2


def test_labels_of_texts() -> None:
    texts = ["dog", "cat", "dog", "cat", "cat", "dog"]
    for labels in (texts, np.array(texts), np.array(texts, object), np.array(texts, "S")):
        data = Arrays((X, labels))
        assert data.classes == ["cat", "dog"]
        assert data.labels().tolist() == [1, 0, 1, 0, 0, 1]
    named = Arrays({"labels": texts, "x": X})
    assert named.classes == ["cat", "dog"]
    assert named.labels().tolist() == [1, 0, 1, 0, 0, 1]
    given = Arrays((X, texts), classes=["dog", "cat", "bird"])
    assert given.labels().tolist() == [0, 1, 0, 1, 1, 0]
    train, held_out = data.split(0.34)
    assert np.bincount(held_out.labels()).tolist() == [1, 1]
    assert train.classes == ["cat", "dog"]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["cat"] * 6, None, "one class, 'cat'"),
        (["cat", "dog", "", "cat", "dog", "dog"], None, "sample 2 has an empty label"),
        (["cat", "dgo"] * 3, ["cat", "dog"], "sample 1 has the label 'dgo'.*nearest: 'dog'"),
        (["cat", 3, None] * 2, None, "objects: NoneType, int, str"),
    ],
)
def test_labels_that_are_no_classes(labels: Any, classes: Any, message: str) -> None:
    array = np.array(labels, object)
    with pytest.raises(InputError, match=message):
        Arrays((X, array), classes=classes)

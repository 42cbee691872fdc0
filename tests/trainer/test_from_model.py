"""Trainers of models by name, on arrays and on folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.data import Images
from engine.errors import InputError, ModelWarning, NameNotFoundError
from engine.graphs.io import onnx_io
from engine.models.catalog import find_architecture
from engine.trainer.fit import Callback, Fit
from engine.trainer.trainer import Trainer
from tests.support import page_setup
from tests.support.model_samples import make_small

NAMES = ["blue", "green", "red"]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    page_setup.photos("photos", each=4, side=32)
    return tmp_path / "photos"


class _Seen(Callback):
    def on_fit_begin(self, fit: Fit) -> None:
        self.classes = fit.classes


def test_a_folder_of_pictures_says_the_classes(photos: Path) -> None:
    trainer = Trainer.from_model("cnn", data=photos, seed=0)
    assert trainer.classes == NAMES
    history = trainer.fit(photos, validation=photos, epochs=6, metrics=["accuracy"], progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert np.shape(trainer.predict(np.zeros((2, 3, 32, 32)))) == (2, 3)


def test_classes_by_name_are_those_of_the_fit() -> None:
    x, y = np.zeros((6, 4)), np.array([0, 1, 2, 0, 1, 2])
    trainer, seen = Trainer.from_model("mlp", classes=NAMES, input_shape=(4,)), _Seen()
    trainer.fit((x, y), epochs=1, callbacks=[seen], progress=False)
    assert seen.classes == NAMES


def test_data_with_other_classes_are_refused(photos: Path) -> None:
    trainer = Trainer.from_model("cnn", classes=["red", "green", "blue"])
    with pytest.raises(InputError, match=r"for the classes \['red', 'green', 'blue'\]"):
        trainer.fit(Images(photos, 32), epochs=1, progress=False)
    with pytest.raises(InputError, match=r"\['a', 'b'\], and the data have \['blue', 'green'"):
        Trainer.from_model("cnn", classes=["a", "b"], data=photos)


def test_rows_without_labels_train_an_autoencoder() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 6))
    trainer = Trainer.from_model("autoencoder", data=rows, seed=0)
    history = trainer.fit(rows, epochs=3, progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert np.shape(trainer.predict(rows)) == rows.shape


def test_values_are_learned_by_the_squared_error() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3))
    trainer = Trainer.from_model("mlp", data=(x, x[:, :1]), seed=0)
    history = trainer.fit((x, x[:, :1]), epochs=5, progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert trainer.classes is None


def test_weights_leave_the_last_layer_random_and_say_so(tmp_path: Path) -> None:
    onnx_io.save(make_small(find_architecture("cnn")).graph, tmp_path / "trained.onnx")
    with pytest.warns(ModelWarning, match=r"cnn: fc2.weight, fc2.bias stay random"):
        Trainer.from_model(
            "cnn", classes=5, input_shape=(1, 12, 12), weights=tmp_path / "trained.onnx"
        )


def test_what_cannot_be_made_is_refused(photos: Path) -> None:
    with pytest.raises(NameNotFoundError, match="no model 'resnet_18'; nearest: 'resnet18'"):
        Trainer.from_model("resnet_18", classes=2)
    with pytest.raises(InputError, match="not from generator: give classes= and input_shape="):
        Trainer.from_model("mlp", data=(row for row in np.eye(3)))
    Path("rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"'rows.csv' contains csv, .* give a Table"):
        Trainer.from_model("mlp", data="rows.csv")

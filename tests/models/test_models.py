"""Models by name: they learn, take their sizes from data, and say what does not fit.

tests/torch/test_models.py compares them with torchvision's, timm's and PyTorch's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.checkpoint import safetensors
from engine.data.sources import dataset_of
from engine.errors import (
    DTypeError,
    EngineError,
    InputError,
    LimitError,
    NameNotFoundError,
    ShapeError,
)
from engine.graphs.io import onnx_io
from engine.models.catalog import ARCHITECTURES, Architecture, find_architecture
from engine.models.named_model import make
from engine.trainer.trainer import Trainer
from tests.support.model_samples import get_shape, make_batch, make_small

KINDS = ARCHITECTURES.values()
MLP, CNN, VIT = (ARCHITECTURES[name] for name in ("mlp", "cnn", "vit_tiny"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_it_learns_and_exports(kind: Architecture, tmp_path: Path) -> None:
    made, data = make_small(kind), make_batch(kind, 8)
    trainer = Trainer.from_onnx(
        onnx_io.to_bytes(made.graph), made.loss, loss_inputs=made.loss_inputs, seed=0,
        threads=2,
    )  # fmt: skip
    losses = [trainer.step(*data) for _ in range(12)]
    assert np.mean(losses[-3:]) < 0.9 * losses[0]
    trainer.export(tmp_path / "inference.onnx")
    names = onnx_io.load(tmp_path / "inference.onnx").initializers
    assert {name for name, _ in trainer.state.parameters} <= set(names)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_sizes_are_those_of_the_data(kind: Architecture) -> None:
    data = dataset_of(make_batch(kind, 16))
    made = make(kind, data=data, words=257 if kind.takes("words") else None)
    assert made.graph.inputs["x"].shape == ("batch", *get_shape(kind))
    assert made.graph.types["scores"].shape == make_small(kind).graph.types["scores"].shape


def test_values_are_predicted_where_targets_are_values() -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal((8, 5)), rng.standard_normal((8, 2))
    made = make(MLP, data=dataset_of(data))
    assert (made.loss, made.classes) == ("mse", None)
    assert made.graph.types["scores"].shape == ("batch", 2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_seed_decides_the_values(kind: Architecture) -> None:
    first, again, other = (make_small(kind, seed=seed).graph.initializers for seed in (1, 1, 2))
    drawn = [n for n, a in first.items() if a.dtype.kind == "f" and a.ndim and a.std() > 0]
    assert drawn
    for name in drawn:
        np.testing.assert_array_equal(first[name], again[name])
        assert (first[name] != other[name]).any()


def test_what_was_trained_is_taken_for_other_classes(tmp_path: Path) -> None:
    """As ONNX and as safetensors: all but the last layer, which is named."""
    trained = make_small(CNN, seed=3).graph
    onnx_io.save(trained, tmp_path / "trained.onnx")
    safetensors.write(str(tmp_path / "trained.safetensors"), trained.initializers, {})
    for name in ("trained.onnx", "trained.safetensors"):
        made = make_small(CNN, classes=5, weights=tmp_path / name)
        assert made.random == ["fc2.weight", "fc2.bias"]
        np.testing.assert_array_equal(
            made.graph.initializers["fc1.weight"], trained.initializers["fc1.weight"]
        )


ROWS = np.zeros((4, 6), np.float32)
LABELS = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "given", "error", "text"),
    [
        ("resnet81", {}, NameNotFoundError, r"no model 'resnet81'; nearest: 'resnet18'; there are"),
        ("mlp", {"classes": 2}, InputError, r"number of features is not known: give data="),
        ("cnn", {}, InputError, r"classes are not known: give classes="),
        ("cnn", {"classes": 1}, InputError, r"classes=1: expected 2 to"),
        ("cnn", {"classes": ["a", "a"]}, InputError, "a name occurs twice"),
        ("cnn", {"data": (ROWS, LABELS)}, ShapeError, r"a sample is \[6\]; expected 3 axes"),
        (
            "cnn", {"data": (np.zeros((4, 9, 9, 3), np.float32), LABELS)}, ShapeError,
            r"channels last; expected them first, as \[3, 9, 9\]",
        ),
        ("cnn", {"classes": 2, "input_shape": (3, 4, 4)}, ShapeError, "sides of 6 pixels"),
        ("cnn", {"classes": 2, "input_shape": (0, 32, 32)}, ShapeError, "sizes of 1 or more"),
        ("mlp", {"classes": 2, "input_shape": (-1,)}, ShapeError, "sizes of 1 or more"),
        ("mlp", {"classes": 2, "input_shape": (1 << 40,)}, LimitError, "the limit for the memory"),
        ("textcnn", {"classes": 2, "words": 1 << 40}, LimitError, "the parameters have"),
        ("vit_tiny", {"classes": 2, "input_shape": (3, 30, 32)}, ShapeError, "multiples of 16"),
        ("unet_small", {"classes": 2, "input_shape": (3, 12, 16)}, ShapeError, "multiples of 8"),
        ("textcnn", {"classes": 2, "input_shape": (4,)}, ShapeError, "4 tokens; expected 5"),
        ("textcnn", {"data": (ROWS, LABELS)}, DTypeError, "float32; expected whole numbers"),
        ("textcnn", {"data": (ROWS.astype(int), LABELS)}, InputError, "give words="),
        ("textcnn", {"classes": 2, "words": 0}, InputError, "words=0: expected 1 or more"),
        ("mlp", {"data": (ROWS.astype(int), LABELS)}, DTypeError, "int64; expected numbers of"),
        ("mlp", {"data": (ROWS, LABELS), "words": 3}, InputError, "mlp takes no words"),
        ("mlp", {"data": ROWS}, InputError, "samples have no target"),
        ("mlp", {"data": (ROWS, LABELS), "input_shape": (5,)}, ShapeError, "leave one of them out"),
        ("autoencoder", {"data": ROWS, "classes": 2}, InputError, "has no classes"),
        ("cnn", {"classes": 2, "weights": "a.csv"}, InputError, r"the suffix '\.csv' is not known"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    name: str, given: dict[str, Any], error: type[EngineError], text: str
) -> None:
    if "data" in given:
        given = given | {"data": dataset_of(given["data"])}
    with pytest.raises(error, match=text):
        make(find_architecture(name), **given)

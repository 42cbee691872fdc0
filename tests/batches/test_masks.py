"""Pictures with masks: which belong together, what stands for a class, and that both move alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import CrossEntropyLoss, Trainer
from engine.data import (
    Arrays,
    ColorJitter,
    Images,
    Masks,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    RandomRotation,
    batches,
)
from engine.errors import EngineError, FileError, InputError, ShapeError

image_module = pytest.importorskip("PIL.Image", reason="needs Pillow")
GREY: dict[str, Any] = {"mean": 0, "std": 1}


def save(path: Path, pixels: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image_module.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)


def draw(number: int, side: int = 24) -> tuple[Any, Any]:
    """Return a picture whose red is 200 where its mask is 1, and 0 elsewhere."""
    rng = np.random.default_rng(number)
    mask = np.zeros((side, side), np.uint8)
    top, left = rng.integers(0, side // 2, 2)
    mask[top : top + side // 2, left : left + side // 3] = 1
    picture = rng.integers(0, 60, (side, side, 3), np.uint8)
    picture[..., 0] = 200 * mask
    return picture, mask


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(8):
        picture, mask = draw(number)
        save(tmp_path / "cells/images" / f"{number}.png", picture)
        save(tmp_path / "cells/masks" / f"{number}.png", mask * 255)
    return tmp_path / "cells"


def test_samples_are_pictures_and_classes_of_pixels(folder: Path) -> None:
    data = Masks(folder, 24, classes=["background", "cell"], **GREY)
    assert (len(data), data.classes, data.values) == (8, ["background", "cell"], [0, 255])
    for number in range(8):
        picture, mask = draw(number)
        features, labels = data[number]
        assert [str(array.dtype) for array in (features, labels)] == ["float32", "int64"]
        np.testing.assert_array_equal(labels, mask)
        np.testing.assert_allclose(features * 255, picture.transpose(2, 0, 1), atol=1e-3)
    whole = data.take(np.arange(8))
    assert all(np.array_equal(whole[1][i], data[i][1]) for i in range(8))
    assert data.sample_name(3) == "3.png"
    first, second = data.split(0.25)
    assert (len(first), len(second), second.ignore_index) == (6, 2, -100)
    assert Masks(folder).classes == ["0", "255"]


PALETTE = [0, 0, 0, 200, 0, 0, 0, 200, 0]


@pytest.mark.parametrize("kind", ["shades", "palette", "colours", "bits", "16 bits", "tiff"])
def test_masks_of_every_kind(kind: str, tmp_path: Path) -> None:
    picture, mask = draw(0)
    mask = np.where(mask, 1, 2 * (np.arange(24) > 20)).astype(np.uint8)
    save(tmp_path / "images/a.jpg", picture)
    image = image_module.fromarray(mask)
    expected: list[Any] = [0, 1, 2]
    if kind == "palette":
        image.putpalette(PALETTE)
    elif kind == "colours":
        image = image_module.fromarray(np.array(PALETTE, np.uint8).reshape(3, 3)[mask])
        expected = [0, (0, 200, 0), (200, 0, 0)]
        mask = np.array([0, 2, 1])[mask]
    elif kind == "bits":
        image, expected = image_module.fromarray(mask > 0), [0, 255]
        mask = (mask > 0).astype(np.uint8)
    elif kind == "16 bits":
        image = image_module.fromarray(mask.astype(np.uint16) * 300)
        expected = [0, 300, 600]
    (tmp_path / "masks").mkdir()
    image.save(tmp_path / "masks" / ("a_mask.tif" if kind == "tiff" else "a_mask.png"))
    data = Masks(tmp_path / "images", 24, masks=tmp_path / "masks")
    assert data.values == expected
    np.testing.assert_array_equal(data[0][1], mask)
    given = Masks(tmp_path, 24, values=list(reversed(expected)))
    np.testing.assert_array_equal(given[0][1], len(expected) - 1 - mask)


def test_a_border_has_no_class(tmp_path: Path) -> None:
    """255 beside the numbers of classes, as in Pascal VOC."""
    picture, mask = draw(0)
    mask[:, :2] = 255
    save(tmp_path / "images/a.png", picture)
    save(tmp_path / "masks/a.png", mask)
    data = Masks(tmp_path, 24)
    assert data.values == [0, 1]
    np.testing.assert_array_equal(data[0][1], np.where(mask == 255, -100, mask.astype(int)))
    mask[0, 3] = 7
    save(tmp_path / "images/b.png", picture)
    save(tmp_path / "masks/b.png", mask)
    with pytest.raises(InputError, match=r"b.png' has the value 7 in row 0, column 3"):
        Masks(tmp_path, 24, values=[0, 1])[1]


def test_sizes_and_turned_pictures(tmp_path: Path) -> None:
    """A mask is of the upright picture; both are scaled whole, the mask by the nearest pixel."""
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:10, :20] = 250
    exif = image_module.Exif()
    exif[0x0112] = 3  # upside down
    save(tmp_path / "images/a.jpg", picture[::-1, ::-1], exif=exif, quality=95)
    save(tmp_path / "masks/a.png", picture[..., 0])
    features, mask = Masks(tmp_path, (8, 8), **GREY)[0]
    expected = np.zeros((8, 8), np.int64)
    expected[:4, :4] = 1
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(features[0] > 0.5, expected == 1)
    save(tmp_path / "masks/a.png", picture[:, :20, 0])
    with pytest.raises(ShapeError, match=r"20 x 20, and its picture .*a.jpg' 20 x 40, upright"):
        Masks(tmp_path, 8, values=[0, 250])[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "masks/3.png").unlink(), "images/3.png' has no mask of its name"),
        (lambda f: (f / "images/3.png").unlink(), "mask .*masks/3.png' has no picture"),
        (lambda f: save(f / "masks/3_mask.png", draw(3)[1]), "are masks of the same picture"),
        (lambda f: (f / "masks/3.png").write_bytes(b"no"), "cannot read the picture .*3.png'"),
        (
            lambda f: save(f / "masks/3.png", np.arange(576).reshape(24, 24) % 256),
            "256 different values",
        ),
    ],
)
def test_what_does_not_belong_together(change: Any, message: str, folder: Path) -> None:
    change(folder)
    with pytest.raises(EngineError, match=message):
        Masks(folder)


def test_what_cannot_be_used_is_left_out(folder: Path) -> None:
    (folder / "masks/3.png").unlink()
    (folder / "images/4.png").write_bytes(b"no")
    (folder / "images/5.png").unlink()
    data = Masks(folder, 24, unreadable="drop")
    assert [data.sample_name(i) for i in range(len(data))] == [f"{i}.png" for i in (0, 1, 2, 6, 7)]
    assert sorted(Path(path).name for path, _ in data.dropped) == ["3.png", "4.png"]
    np.testing.assert_array_equal(data[3][1], draw(6)[1])


def test_losses_of_compression_are_told(tmp_path: Path) -> None:
    picture, mask = draw(0)
    save(tmp_path / "a/1.jpg", picture)
    save(tmp_path / "b/1.jpg", mask * 255)
    with pytest.raises(InputError, match="compressed with losses"):
        Masks(tmp_path / "a", masks=tmp_path / "b")
    with pytest.raises(InputError, match="no folder of masks; give masks="):
        Masks(tmp_path / "a")
    with pytest.raises(FileError, match="cannot read the folder"):
        Masks(tmp_path / "a", masks=tmp_path / "c")


def test_classes_and_values_must_fit(folder: Path) -> None:
    with pytest.raises(InputError, match="3 classes, 'a', 'b', 'c', and 2 values in the masks"):
        Masks(folder, classes=["a", "b", "c"])
    with pytest.raises(InputError, match="a value occurs twice"):
        Masks(folder, values=[0, (0, 0, 0)])
    with pytest.raises(InputError, match="expected a number, or red, green and blue"):
        Masks(folder, values=[0, (0, 0)])


def test_pictures_and_masks_are_no_classes(folder: Path) -> None:
    """They were: a classifier learned to tell pictures from masks."""
    with pytest.raises(InputError, match="holds pictures and their masks"):
        Images(folder)


def test_folders_divided_the_other_way(folder: Path, tmp_path: Path) -> None:
    for what in ("images", "masks"):
        for split in ("train", "val"):
            save(tmp_path / "divided" / what / split / "a.png", draw(0)[what == "masks"])
    with pytest.raises(InputError, match="would be one set of data"):
        Masks(tmp_path / "divided")


# --- masks move along

MOVES = [
    RandomFlip(vertical=True, probability=0.7),
    RandomCrop(16, padding=4),
    RandomResizedCrop(16, scale=(0.3, 1)),
    RandomRotation(90),
]


@pytest.mark.parametrize("change", MOVES, ids=lambda change: type(change).__name__)
def test_masks_move_with_their_pictures(change: Any) -> None:
    moved = False
    for epoch in range(3):
        for number in range(8):
            picture, mask = draw(number)
            rng = np.random.default_rng([epoch, number])
            features, labels = change((picture, mask.astype(np.int64)), rng)
            (alone,) = change((picture,), np.random.default_rng([epoch, number]))
            np.testing.assert_array_equal(features, alone)
            assert labels.shape == features.shape[:2]
            assert labels.dtype == np.int64
            assert set(np.unique(labels)) <= {0, 1}
            wrong = (features[..., 0] > 100) != (labels == 1)
            assert wrong.mean() < 0.06, "except for edges, red is where the mask is"
            moved |= labels.shape != mask.shape or not np.array_equal(labels, mask)
    assert moved


@pytest.mark.parametrize("change", [RandomErasing(probability=1), ColorJitter()])
def test_other_changes_leave_masks(change: Any) -> None:
    picture, mask = draw(0)
    features, labels = change((picture, mask), np.random.default_rng(0))
    np.testing.assert_array_equal(labels, mask)
    assert not np.array_equal(features, picture)


def test_masks_of_arrays_move_along() -> None:
    """They stayed where they were: pictures were learned with the masks of others."""
    pictures = np.stack([draw(i)[0] for i in range(6)]).transpose(0, 3, 1, 2).astype(np.float32)
    masks = np.stack([draw(i)[1] for i in range(6)]).astype(np.int64)
    depth = pictures[:, :1] / 200
    made = batches((pictures, masks, depth), batch_size=6, augment=["flip"], prefetch=0)
    flipped = 0
    for number in range(3):
        x, y, d = (np.asarray(array) for array in next(made.epoch(number)))
        np.testing.assert_array_equal(x[:, 0] > 100, y == 1)
        np.testing.assert_array_equal(d * 200, x[:, :1])
        flipped += int(np.any(y != masks, axis=(1, 2)).sum())
    assert 0 < flipped < 18
    turned = batches(
        (pictures, masks, depth), augment=[RandomRotation(90, channels="first", mask_fill=-9)]
    )
    _, away, _ = (np.asarray(array) for array in next(turned.epoch()))
    assert (away == -9).any(), "where nothing was"


def test_targets_with_places_that_would_stay_are_refused() -> None:
    boxes = np.zeros((4, 3, 5), np.float32)
    made = batches((np.zeros((4, 3, 8, 8), np.float32), boxes), augment=["flip"], prefetch=0)
    with pytest.raises(ShapeError, match=r"of shape \[3, 5\], which would stay where it is"):
        next(made.epoch())


# --- training


def test_training_on_a_folder(folder: Path, tmp_path: Path) -> None:
    """From the folder to masks as large as the pictures, in this process and in another one."""
    (tmp_path / "new").mkdir()
    image_module.fromarray(draw(20, 40)[0]).save(tmp_path / "new/a.jpg", quality=95)
    data = Masks(folder, 16, classes=["background", "cell"])
    trainer = Trainer.from_model("unet_small", data=data, seed=0, threads=1)
    trainer.fit(
        data, validation=0.25, epochs=6, batch_size=4, metrics=["iou", "dice_per_class"],
        augment=["flip", "rotate"], class_weight="balanced", folder=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert trainer.ignore_index == -100
    (row,) = trainer.predict(tmp_path / "new")
    assert (row["mask"].shape, row["mask"].dtype) == ((40, 40), np.uint8)
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert list(row["shares"]) == ["background", "cell"]
    page = (tmp_path / "run/report.html").read_text()
    assert "of the pixels are wrong" in page
    assert trainer.evaluate(folder, metrics=["iou"])["iou"] > 0


def test_ignored_labels_do_not_weigh() -> None:
    """They were refused: labels from -100 to 1, and the model has 2 classes."""
    rng = np.random.default_rng(0)
    words, tags = rng.integers(1, 9, (16, 6)), rng.integers(0, 2, (16, 6))
    tags[:, 4:] = -100
    options: dict[str, Any] = {"data": (words, tags), "words": 9, "classes": 2, "seed": 0}
    trainer = Trainer.from_model("gru_tagger", CrossEntropyLoss(ignore_index=-100), **options)
    factors = 64 / (2 * np.bincount(tags[:, :4].reshape(-1)))
    other = Trainer.from_model(
        "gru_tagger", CrossEntropyLoss(ignore_index=-100, weight=factors.astype(np.float32)),
        **options,
    )  # fmt: skip
    given: dict[str, Any] = {"epochs": 1, "progress": False}
    weighted = trainer.fit((words, tags), class_weight="balanced", **given)
    assert weighted["loss"] == other.fit((words, tags), **given)["loss"]


def test_labels_of_positions_are_split_without_classes() -> None:
    """They were refused: to divide class by class, each must be one whole number."""
    data = Arrays((np.zeros((8, 3)), np.zeros((8, 3), int)), classes=["a", "b"])
    assert [len(part) for part in data.split(0.25)] == [6, 2]

"""Folders of pictures as data: what is read, how it is prepared and changed, what is refused."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.base.aliases import Array
from engine.data import (
    ColorJitter,
    Images,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    batches,
)
from engine.data.augment import _draw_box
from engine.data.images import IMAGENET_MEAN, IMAGENET_STD
from engine.data.samples import Sample
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    MissingPackageError,
    NameNotFoundError,
    ShapeError,
)

RNG = np.random.default_rng(0)


def picture(height: int = 8, width: int = 8) -> Array:
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def save(path: Path, pixels: Array, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return two classes of three pictures, 8 x 8, without loss; and files that are not data."""
    for name in ("cat", "dog"):
        for i in range(3):
            save(tmp_path / "photos" / name / f"{i}.png", picture())
    (tmp_path / "photos/.hidden").mkdir()
    (tmp_path / "photos/README.txt").write_text("not a class")
    (tmp_path / "photos/cat/notes.txt").write_text("not a picture")
    return tmp_path / "photos"


def pixels_of(path: str | Path) -> Array:
    return np.asarray(Image.open(path))


# --- reading


def test_samples_are_normalised_pictures_and_labels(folder: Path) -> None:
    data = Images(folder, 8)
    assert (len(data), data.classes) == (6, ["cat", "dog"])
    assert data.labels().tolist() == [0, 0, 0, 1, 1, 1]
    x, label = data[4]
    expected = (pixels_of(data.paths[4]) / 255 - IMAGENET_MEAN) / IMAGENET_STD
    assert (x.shape, x.dtype.name, int(label)) == ((3, 8, 8), "float32", 1)
    np.testing.assert_allclose(x, expected.transpose(2, 0, 1), atol=1e-6)
    last = Images(folder, 8, layout="NHWC", mean=0.5, std=(0.5, 0.25, 1.0))[4][0]
    np.testing.assert_allclose(
        last, (pixels_of(data.paths[4]) / 255 - 0.5) / [0.5, 0.25, 1.0], atol=1e-6
    )


def test_batches_hold_the_samples(folder: Path) -> None:
    data = Images(folder, 8)
    (batch,) = batches(data).epoch()
    assert isinstance(batch, tuple)
    x, y = batch
    assert np.array_equal(x, np.stack([data[i][0] for i in range(6)]))
    assert (y.dtype.name, y.tolist()) == ("int64", [0, 0, 0, 1, 1, 1])


def test_grey_pictures_have_one_channel(folder: Path) -> None:
    x, _ = Images(folder, 8, color_mode="grayscale", mean=0, std=1)[0]
    expected = np.asarray(Image.open(Images(folder).paths[0]).convert("L")) / 255
    assert x.shape == (1, 8, 8)
    np.testing.assert_allclose(x[0], expected, atol=1e-6)


def test_the_shorter_side_is_fitted_and_the_middle_cut_out(tmp_path: Path) -> None:
    """A picture of 40 x 80, its middle square white: 20 x 20 shows nothing else."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = 255
    for name in ("a", "b"):
        save(tmp_path / name / "0.png", pixels)
    data = Images(tmp_path, 20, mean=0, std=1)
    assert data.decoded(0).shape == (20, 40, 3)
    assert data[0][0][:, :, 1:-1].min() > 0.99
    assert Images(tmp_path, 20, resize=24).decoded(0).shape == (24, 48, 3)
    assert Images(tmp_path, (10, 40)).decoded(0).shape == (20, 40, 3)
    assert Images(tmp_path, (10, 40))[0][0].shape == (3, 10, 40)


@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_stand_upright(tmp_path: Path, turn: int) -> None:
    """Every orientation of EXIF shows the same picture once it is undone."""
    upright = picture(16, 24)
    undo = {
        1: lambda p: p,
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.transpose(1, 0, 2),
        6: lambda p: np.rot90(p, 1),
        7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
        8: lambda p: np.rot90(p, -1),
    }
    stored = np.ascontiguousarray(undo[turn](upright))
    exif = Image.Exif()
    exif[0x0112] = turn
    for name in ("a", "b"):
        save(tmp_path / name / "0.png", stored, exif=exif)
    data = Images(tmp_path, (16, 24))
    assert np.array_equal(data.decoded(0), upright)


def test_a_large_jpeg_is_decoded_small_and_is_the_same_picture(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:512, 0:768]
    smooth = np.stack([rows / 2, columns / 3, (rows + columns) / 5], -1).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, options in (("a", {}), ("b", {"exif": exif})):
        save(tmp_path / name / "0.jpg", smooth, quality=95, **options)
    data = Images(tmp_path, (64, 64))
    assert data.decoded(0).shape == (64, 96, 3)
    assert data.decoded(1).shape == (96, 64, 3), "turned by its EXIF"
    exact = np.asarray(Image.fromarray(smooth).resize((96, 64), Image.Resampling.BOX), float)
    assert np.abs(data.decoded(0) - exact).max() < 4
    assert np.abs(data.decoded(1) - np.rot90(exact, -1)).max() < 4


def _modes() -> dict[str, tuple[Image.Image, Array]]:
    """Pictures of every mode, and the colours that each shows."""
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    colours = np.stack([grey] * 3, -1)
    rgb = picture()
    palette = Image.fromarray(rgb).quantize(8)
    clear = palette.copy()
    clear.info["transparency"] = b"\x00\xff"
    opaque = np.dstack([rgb, np.full((8, 8), 128, np.uint8)])
    return {
        "L": (Image.fromarray(grey), colours),
        "LA": (Image.fromarray(np.dstack([grey, grey])), colours),
        "1": (Image.fromarray(grey > 128), np.where(colours > 128, 255, 0)),
        "I;16": (Image.fromarray(grey.astype(np.uint16) * 256), colours),
        "RGBA": (Image.fromarray(opaque), rgb),
        "P": (palette, np.asarray(palette.convert("RGB"))),
        "P with transparency": (clear, np.asarray(palette.convert("RGB"))),
    }


@pytest.mark.parametrize("mode", _modes())
def test_every_mode_becomes_colours(tmp_path: Path, mode: str) -> None:
    image, expected = _modes()[mode]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "0.png")
    assert np.array_equal(Images(tmp_path, 8).decoded(0), expected)


def test_a_picture_of_another_folder_is_prepared_alike(folder: Path, tmp_path: Path) -> None:
    data = Images(folder, 8)
    assert np.array_equal(data.read(data.paths[2]), data[2][0])
    save(tmp_path / "test" / "dog" / "0.png", picture())
    test = Images(tmp_path / "test", 8, classes=data.classes)
    assert (test.classes, test.labels().tolist()) == (["cat", "dog"], [1])


def test_pictures_without_labels(folder: Path) -> None:
    data = Images(folder, 8, labelled=False)
    assert [len(batch) for batch in batches(data, batch_size=4).epoch()] == [1, 1]
    assert data.classes is None
    with pytest.raises(InputError, match="without labels"):
        data.labels()


def test_decoded_pictures_are_kept_up_to_a_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, streamed = Images(folder, 8, cache=2 * 8 * 8 * 3), Images(folder, 8, cache=0)
    before = [[data[i][0] for i in range(6)] for data in (kept, streamed)]
    opened: list[Any] = []
    real = Image.open

    def note(path: Any, **options: Any) -> Any:
        opened.append(path)
        return real(path, **options)

    monkeypatch.setattr(Image, "open", note)
    after = [kept[i][0] for i in range(6)]
    assert opened == kept.paths[2:], "the first two fill the limit"
    assert np.array_equal(after, before[0])
    assert np.array_equal(before[0], before[1])


def test_the_dataset_splits_class_by_class(folder: Path) -> None:
    train, validation = Images(folder, 8).split(0.34)
    assert (train.labels().tolist(), validation.labels().tolist()) == ([0, 0, 1, 1], [0, 1])


# --- augmentation

HALF = np.zeros((4, 6, 3), np.uint8)
HALF[:, :3] = 200


class Fixed(np.random.Generator):
    """A generator whose draws from [0, 1) are one number."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.full(size, self.value) if size else self.value

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        actual = low + (high - low) * self.value
        return np.full(size, actual) if size else actual


def test_a_flip_mirrors() -> None:
    (flipped,) = RandomFlip(vertical=True)((HALF,), Fixed(0.1))
    assert np.array_equal(flipped, HALF[::-1, ::-1])
    (same,) = RandomFlip(vertical=True)((HALF,), Fixed(0.9))
    assert np.array_equal(same, HALF)
    counts = [RandomFlip()((HALF,), np.random.default_rng(i))[0][0, 0, 0] == 0 for i in range(200)]
    assert 70 < sum(counts) < 130


def test_a_crop_reaches_every_place() -> None:
    pixels = np.arange(36, dtype=np.uint8).reshape(6, 6, 1)
    seen = set()
    for i in range(200):
        (part,) = RandomCrop(5)((pixels,), np.random.default_rng(i))
        assert part.shape == (5, 5, 1)
        top, left = divmod(int(part[0, 0, 0]), 6)
        assert np.array_equal(part, pixels[top : top + 5, left : left + 5])
        seen.add((top, left))
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}
    (padded,) = RandomCrop((6, 6), padding=4)((pixels,), np.random.default_rng(1))
    assert padded.shape == (6, 6, 1)
    with pytest.raises(ShapeError, match="7 x 7 does not fit into a picture of 6 x 6"):
        RandomCrop(7)((pixels,), RNG)


def test_a_resized_crop_keeps_to_its_area_and_ratio() -> None:
    rows, columns = np.mgrid[0:50, 0:80].astype(np.float32)
    field = np.stack([rows, columns], -1)
    crop = RandomResizedCrop((16, 16), scale=(0.2, 0.5))
    for i in range(50):
        left, top, right, bottom = _draw_box(
            (50, 80), crop.scale, crop.ratio, np.random.default_rng(i)
        )
        assert 0 <= left < right <= 80
        assert 0 <= top < bottom <= 50
        assert 0.19 < (right - left) * (bottom - top) / 4000 < 0.52
        assert 0.72 < (right - left) / (bottom - top) < 1.39
        (part,) = crop((field,), np.random.default_rng(i))
        assert part.shape == (16, 16, 2)
        height = (bottom - top) / 16  # of the source, to a pixel of the result
        np.testing.assert_allclose(np.diff(part[2:-2, 8, 0]), height, rtol=0.15)
    assert _draw_box((1, 500), crop.scale, crop.ratio, RNG) == (249, 0, 250, 1), (
        "none fits: the middle"
    )


def test_a_resized_crop_of_bytes_is_pillows(folder: Path) -> None:
    pixels = picture(20, 20)
    (whole,) = RandomResizedCrop(10, scale=(1, 1), ratio=(1, 1))((pixels,), RNG)
    expected = Image.fromarray(pixels).resize((10, 10), Image.Resampling.BILINEAR)
    assert np.array_equal(whole, np.asarray(expected))
    (grey,) = RandomResizedCrop(10, scale=(1, 1), ratio=(1, 1))((pixels[..., :1],), RNG)
    assert np.abs(grey[..., 0].astype(int) - np.asarray(expected)[..., 0]).max() <= 1


def test_colours_follow_their_formulas() -> None:
    pixels = picture().astype(np.float64)
    grey = pixels @ [0.299, 0.587, 0.114]
    for option, factor, expected in (
        ("brightness", 1.4, pixels * 1.4),
        ("contrast", 1.4, 1.4 * pixels - 0.4 * grey.mean()),
        ("saturation", 0.6, 0.6 * pixels + 0.4 * grey[..., np.newaxis]),
    ):
        only: Any = {**dict.fromkeys(("brightness", "contrast", "saturation"), 0.0), option: 0.4}
        (color_jitter,) = ColorJitter(**only)((pixels,), Fixed(1 if factor > 1 else 0))
        np.testing.assert_allclose(color_jitter, expected, rtol=1e-4, atol=1e-2)
        bytes_, *_ = ColorJitter(**only)((pixels.astype(np.uint8),), Fixed(1 if factor > 1 else 0))
        assert bytes_.dtype == np.uint8
        assert np.abs(bytes_ - np.clip(expected, 0, 255)).max() < 0.51


def test_channels_may_come_first() -> None:
    first = np.ascontiguousarray(HALF.transpose(2, 0, 1))
    (flipped, label) = RandomFlip(channels="first")((first, np.array(3)), Fixed(0.1))
    assert np.array_equal(flipped, first[:, :, ::-1])
    assert label == 3


def test_augmented_batches_resume_exactly(folder: Path) -> None:
    changes = [RandomResizedCrop(8, scale=(0.3, 1)), RandomFlip(), ColorJitter()]

    def make() -> Any:
        return batches(
            Images(folder, 8, resize=10), batch_size=2, shuffle=True, seed=3, augment=changes
        )

    whole = list(make().epoch(1))
    rest = list(make().epoch(1, 2))
    assert np.array_equal(whole[2][0], rest[0][0])
    assert not np.array_equal(whole[0][0], next(make().epoch(2))[0])


def test_augmentation_sees_the_picture_before_its_middle_is_cut_out(folder: Path) -> None:
    seen: list[Array] = []

    def note(sample: Sample, rng: np.random.Generator) -> Sample:
        seen.append(sample[0])
        return sample

    list(batches(Images(folder, 8, resize=12), augment=note).epoch())
    assert {(p.shape, p.dtype.name) for p in seen} == {((12, 12, 3), "uint8")}
    with pytest.raises(ShapeError, match=r"a picture of shape \[5, 5, 3\]; .*\[8, 8, 3\]"):
        list(batches(Images(folder, 8), augment=RandomCrop(5)).epoch())


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomFlip(probability=2),
        lambda: RandomCrop(0),
        lambda: RandomCrop(3, padding=-1),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: ColorJitter(contrast=-0.1),
    ],
)
def test_augmentations_that_are_none(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_augmentation_of_what_is_no_picture() -> None:
    with pytest.raises(ShapeError, match=r"RandomFlip: an array of shape \[4\]"):
        RandomFlip()((np.zeros(4),), RNG)
    with pytest.raises(ShapeError, match="ColorJitter: 2 channels"):
        ColorJitter()((np.zeros((4, 4, 2)),), RNG)


# --- bad input


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read the folder .*nowhere.*No such file"):
        Images(tmp_path / "nowhere")
    with pytest.raises(FileError, match=r"README.txt' is a file; expected a folder"):
        Images(folder / "README.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"nothing to read; expected .*<class>.*\*\.jpg"):
        Images(tmp_path / "empty")
    with pytest.raises(InputError, match="has 3 pictures, but no sub-folders"):
        Images(folder / "cat")
    with pytest.raises(InputError, match="no pictures; expected files"):
        Images(tmp_path / "empty", labelled=False)


def test_classes_that_are_none(folder: Path, tmp_path: Path) -> None:
    save(tmp_path / "one" / "cat" / "0.png", picture())
    with pytest.raises(InputError, match="has one class, 'cat'; a classifier needs two"):
        Images(tmp_path / "one")
    (folder / "bird").mkdir()
    with pytest.raises(InputError, match="no pictures in the class 'bird'"):
        Images(folder)
    with pytest.raises(NameNotFoundError, match="the sub-folder 'bird' is not one of the classes"):
        Images(folder, classes=["cat", "dog"])
    with pytest.raises(InputError, match="a name occurs twice"):
        Images(folder, classes=["cat", "cat"])
    save(folder / "bird" / "0.png", picture())
    with pytest.raises(InputError, match="'bird' has one sample, which cannot be in both parts"):
        Images(folder).split(0.5)


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def bomb() -> bytes:
    """A PNG of 100 000 x 100 000 pixels, in a few bytes."""
    side = (100_000).to_bytes(4, "big")
    header = chunk(b"IHDR", side + side + b"\x08\x02\x00\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _unreadable(folder: Path) -> dict[str, tuple[bytes, type[Exception], str]]:
    whole = (folder / "cat/0.png").read_bytes()
    big = save(folder.parent / "big.jpg", picture(64, 64)).read_bytes()
    return {
        "empty.png": (b"", FileError, "cannot read the picture .*empty.png': the file is empty"),
        "text.jpg": (b"no picture", FileError, "cannot read the picture .*text.jpg': cannot ident"),
        "half.png": (whole[: len(whole) // 2], FileError, "cannot read the picture .*half.png'"),
        "half.jpg": (big[: len(big) // 2], FileError, "half.jpg': image file is truncated"),
        "bomb.png": (bomb(), InputError, "bomb.png': Image size .* exceeds limit"),
    }


@pytest.mark.parametrize("name", ["empty.png", "text.jpg", "half.png", "half.jpg", "bomb.png"])
def test_files_that_are_no_pictures_are_named(folder: Path, name: str) -> None:
    content, error, text = _unreadable(folder)[name]
    (folder / "dog" / name).write_bytes(content)
    data = Images(folder, 8)
    with pytest.raises(error, match=text):
        list(batches(data, batch_size=2).epoch())
    left = Images(folder, 8, unreadable="drop")
    assert (len(left), len(left.dropped)) == (6, 1)
    assert left.labels().tolist() == [0, 0, 0, 1, 1, 1]
    assert left.dropped[0][0].endswith(name)
    assert np.array_equal(left[5][0], data.read(folder / "dog/2.png"))


def test_a_picture_over_pillows_limit_is_refused_before_it_is_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(InputError, match=r"0.png'.*50"):
        Images(folder, 8)[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    Images(folder, 8)[0]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pillows_limit_holds_where_pillow_only_warns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(InputError, match=r"0.png' has 8 x 8 pixels; at most 50"):
        Images(folder, 8)[0]


def test_several_readers_make_the_same_batches(folder: Path) -> None:
    many, one = Images(folder, 8), Images(folder, 8)
    many.readers, one.readers = 3, 1
    for number in (0, 1):
        epochs = [
            list(batches(d, batch_size=2, shuffle=True, augment=ColorJitter()).epoch(number))
            for d in (many, one)
        ]
        assert all(np.array_equal(a[0], b[0]) for a, b in zip(*epochs, strict=True))


def test_a_class_without_any_picture_is_not_dropped_silently(folder: Path) -> None:
    for path in (folder / "dog").iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(InputError, match="no file of the class 'dog' can be read"):
        Images(folder, unreadable="drop")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"size": 0}, InputError, "size=0; expected positive"),
        ({"size": (8, 8, 3)}, InputError, "size: expected 2 values"),
        ({"size": "8"}, DTypeError, "size: expected a whole number"),
        ({"size": 8.5}, DTypeError, r"size: .*got 8\.5"),
        ({"layout": "HWC"}, InputError, "layout='HWC'; expected one of 'NCHW', 'NHWC'"),
        ({"color_mode": "bgr"}, InputError, "expected one of 'rgb', 'grayscale'"),
        ({"unreadable": "skip"}, InputError, "unreadable='skip'"),
        ({"mean": (0.5, 0.5)}, InputError, "mean=.*expected 3 numbers"),
        ({"std": 0}, InputError, "std=.*expected positive"),
        ({"mean": 1e308}, InputError, r"mean: 1e\+308 is too large for float32"),
        ({"resize": 4}, InputError, "resize=4 is less than size"),
    ],
)
def test_options_that_are_none(
    folder: Path, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Images(folder, **{"size": 8, **options})


def test_a_missing_pillow_is_told_with_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPackageError, match=r"needs the package PIL: .*edgegrad\[images\]"):
        Images(folder)

"""Random changes by name and as objects: what they do, and that a resumed epoch draws the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import (
    Arrays,
    CutMix,
    Images,
    Mixup,
    RandomErasing,
    RandomFlip,
    RandomRotation,
    Sounds,
    SpecAugment,
    TimeShift,
    batches,
)
from engine.errors import DTypeError, EngineError, InputError, ShapeError
from tests.support import page_setup
from tests.support.run_models import write_sounds

RNG = np.random.default_rng
PICTURES = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
LABELS = np.arange(12) % 3
ALL = ["flip", "crop", "color", "rotate", "erase", "mixup", "cutmix"]


def epoch(number: int = 0, start: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    data = Arrays((PICTURES, LABELS), classes=["a", "b", "c"])
    made = batches(data, batch_size=4, shuffle=True, seed=2, prefetch=0, **options)
    return [tuple(batch) for batch in made.epoch(number, start)]


@pytest.mark.parametrize("names", [[name] for name in ALL] + [ALL])
def test_an_epoch_draws_the_same_wherever_it_begins(names: list[str]) -> None:
    whole, rest = epoch(3, augment=names), epoch(3, 1, augment=names)
    for mine, its in zip(whole[1:], rest, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, its, strict=True))
    other, plain = epoch(4, augment=names), epoch(3)
    for another in (other, plain):
        assert any(not np.array_equal(a[0], b[0]) for a, b in zip(whole, another, strict=True))
    assert whole[0][0].shape == plain[0][0].shape


@pytest.mark.parametrize("folder", ["photos", "words"])
def test_names_for_files(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if folder == "photos":
        page_setup.photos("photos", side=16)
        data: Any = Images("photos", 12)
        names = ALL
    else:
        pytest.importorskip("soundfile", reason="needs soundfile")
        data = Sounds(write_sounds(tmp_path / "words"), rate=8000, seconds=0.2)
        names = ["shift", "spec", "mixup"]
    train, _ = data.split(0.3)
    for name in names:
        first: Any = tuple(next(batches(train, batch_size=4, augment=name, seed=1).epoch(1)))
        assert first[0].shape == (4, *data[0][0].shape)
        assert first[1].ndim == (2 if name in ("mixup", "cutmix") else 1)
        again: Any = tuple(next(batches(train, batch_size=4, augment=[name], seed=1).epoch(1)))
        assert np.array_equal(first[0], again[0])


@pytest.mark.parametrize(
    ("data", "names", "message"),
    [
        ((PICTURES, LABELS), ["filp"], "augment: no 'filp' for Arrays; nearest: 'flip'"),
        ((PICTURES, LABELS), ["spec"], "augment: no 'spec' for Arrays"),
        ((PICTURES[:, 0, 0], LABELS), ["flip"], "augment: no 'flip' for Arrays; known: mixup"),
        ((PICTURES, LABELS), ["mixup"], r"number of classes, .* Mixup\(classes=10\)"),
        ((PICTURES, LABELS.astype(float)), [Mixup(classes=3)], "only classes can be mixed"),
        ((PICTURES,), [Mixup(classes=3)], "a batch without labels"),
        ((PICTURES, LABELS), [Mixup(classes=2)], "labels from 0 to 2; expected 0 to 1"),
        ((PICTURES, PICTURES[:, 0, 0]), [CutMix(classes=3)], "only classes can be mixed"),
        ((PICTURES[:, 0], LABELS), [CutMix(classes=3)], r"batch of shape \[12, 8, 8\]"),
        ((LABELS, LABELS), [Mixup(classes=3)], "features of type int64; expected floats"),
        ((LABELS, LABELS), [SpecAugment()], r"of shape \[\]; expected features"),
        ((PICTURES, LABELS), [3], "augment"),
    ],
)
def test_changes_that_do_not_fit(data: Any, names: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        next(batches(data, augment=names).epoch())


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomRotation(181), lambda: RandomErasing(scale=(0, 1)), lambda: Mixup(alpha=0),
        lambda: RandomErasing(probability=2), lambda: TimeShift(share=2),
        lambda: SpecAugment(masks=0), lambda: SpecAugment(bands=-1), lambda: Mixup(alpha=np.nan),
    ],
)  # fmt: skip
def test_options_that_are_refused(make: Any) -> None:
    with pytest.raises((InputError, DTypeError)):
        make()


def test_mixup_is_the_blend_of_two_samples() -> None:
    x = np.eye(6, dtype=np.float32)
    labels = np.arange(6)
    mixed, shares = Mixup(alpha=1.0, classes=6)((x, labels), RNG(1))
    np.testing.assert_array_equal(mixed, shares)  # the same blend of the same rows
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert shares.dtype == np.float32
    assert x.tolist() == np.eye(6).tolist()  # the data stay as they were
    kept = {round(float(row[i]), 6) for i, row in enumerate(shares) if row[i] < 1}
    assert len(kept) == 1
    again, _ = Mixup(alpha=1.0, classes=6)((mixed, shares), RNG(2))
    assert again.shape == mixed.shape


@pytest.mark.parametrize("shape", [(6, 3, 10, 8), (6, 10, 8, 3)])
def test_cutmix_shares_are_areas(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32) + np.arange(6, dtype=np.float32).reshape(-1, 1, 1, 1)
    for seed in range(8):
        mixed, shares = CutMix(alpha=1.0, classes=6)((x, np.arange(6)), RNG(seed))
        for i in range(6):
            area = float((mixed[i] == i).mean())
            np.testing.assert_allclose(shares[i, i], area, atol=1e-6)


def test_erasing_replaces_a_rectangle() -> None:
    picture = np.full((20, 30, 3), 7, np.uint8)
    (erased,) = RandomErasing(probability=1, scale=(0.1, 0.2))((picture,), RNG(0))
    rows, columns = np.nonzero((erased != 7).any(2))
    assert 0.05 < (np.ptp(rows) + 1) * (np.ptp(columns) + 1) / 600 < 0.25
    assert (picture == 7).all()
    (same,) = RandomErasing(probability=0)((picture,), RNG(0))
    assert same is picture


def test_a_rotation_turns_about_the_middle() -> None:
    pytest.importorskip("PIL", reason="needs Pillow")
    for dtype, channels in ((np.uint8, 3), (np.float32, 1)):
        picture = np.zeros((21, 21, channels), dtype)
        picture[10, 10], picture[10, 16] = 200, 100
        (turned,) = RandomRotation(90)((picture,), RNG(3))
        assert turned.dtype == dtype
        assert turned[10, 10, 0] > 100
        rows, columns = np.nonzero(turned[..., 0] > 20)
        far = np.hypot(rows - 10, columns - 10)
        assert np.all((far < 2) | (abs(far - 6) < 2))
        (same,) = RandomRotation(0)((picture,), RNG(3))
        np.testing.assert_allclose(same, picture, atol=1e-3)


def test_a_shift_moves_a_sound_and_fills_with_silence() -> None:
    sound = np.arange(1, 101, dtype=np.float32)
    for seed in range(6):
        (moved,) = TimeShift(share=0.2)((sound,), RNG(seed))
        by = int((moved == 0).sum())
        assert by <= 20
        assert np.array_equal(moved, np.concatenate([np.zeros(by), sound[: 100 - by]])) or (
            np.array_equal(moved, np.concatenate([sound[by:], np.zeros(by)]))
        )


def test_spec_augment_hides_bands_and_frames() -> None:
    features = RNG(0).standard_normal((1, 40, 98)).astype(np.float32)
    (masked,) = SpecAugment(bands=8, frames=20, masks=1)((features,), RNG(1))
    hidden = masked != features
    rows, columns = hidden[0].all(1), hidden[0].all(0)
    assert 0 < rows.sum() <= 8
    assert 0 < columns.sum() <= 20
    assert np.allclose(masked[hidden], features.mean(), atol=1e-6)
    assert not hidden[0][~rows][:, ~columns].any()


def test_changes_come_in_their_stages(tmp_path: Path) -> None:
    pytest.importorskip("soundfile", reason="needs soundfile")
    data = Sounds(write_sounds(tmp_path / "words"), rate=8000, seconds=0.2)
    seen: list[tuple[int, ...]] = []

    def look(sample: Any, rng: Any) -> Any:
        seen.append(sample[0].shape)
        return sample

    next(batches(data, batch_size=1, augment=[SpecAugment(), look, Mixup()], prefetch=0).epoch())
    assert seen == [(1600,)], "functions get the sound, whatever stands before them"


# --- balanced epochs

RARE = np.array([0] * 20 + [1] * 3 + [2] * 7)


def pairs(epoch: Any) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for xs, ys in epoch for x, y in zip(xs, ys, strict=True)]


def test_balanced_epochs() -> None:
    x = np.arange(30, dtype=np.float32)
    made = batches((x, RARE), batch_size=8, balanced=True, seed=4)
    orders = [pairs(made.epoch(number)) for number in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert np.bincount([label for _, label in order]).tolist() == [10, 10, 10]
        times = np.bincount([index for index, _ in order], minlength=30)
        assert set(times[20:23]) <= {3, 4}
        assert times[:20].max() == 1
        assert set(times[23:]) <= {1, 2}
    rest = pairs(made.epoch(1, 2))
    assert rest == orders[2][16:]


def test_a_sample_that_comes_again_is_changed_in_another_way() -> None:
    x = np.zeros((30, 4, 4, 1), np.float32) + np.arange(30, dtype=np.float32).reshape(-1, 1, 1, 1)
    x += np.arange(4).reshape(1, 1, 4, 1) / 8

    def draw(sample: Any, rng: Any) -> Any:
        return (np.array([sample[0][0, 0, 0], rng.random()], np.float32), sample[1])

    made = batches((x, RARE), balanced=True, augment=draw, seed=4)
    drawn = np.concatenate([np.asarray(tuple(batch)[:1])[0] for batch in made.epoch()])
    assert len(np.unique(drawn[:, 1])) == 30
    assert len(np.unique(drawn[:, 0])) < 30


def test_what_cannot_be_balanced() -> None:
    x = np.ones((4, 2), np.float32)
    with pytest.raises(DTypeError, match="balanced=True: labels of type float32"):
        batches((x, x), balanced=True)
    with pytest.raises(InputError, match="balanced= needs samples"):
        batches([(x, x)], balanced=True)
    with pytest.raises(InputError, match="balanced= draws samples by class, bucket_by= by length"):
        batches((x, [0, 1, 1, 1]), balanced=True, bucket_by=[2])


def test_a_flip_of_arrays_with_channels_first() -> None:
    (x, _), *_ = epoch(augment=[RandomFlip(channels="first", probability=1)])
    (plain, _), *_ = epoch()
    assert np.array_equal(x, plain[..., ::-1])
    with pytest.raises(ShapeError):
        next(batches((PICTURES[:, 0], LABELS), augment=[RandomFlip()]).epoch())

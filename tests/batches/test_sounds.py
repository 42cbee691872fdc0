"""Folders of sounds as data: resampling and features by their formulas, and what is refused."""

from __future__ import annotations

import cmath
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from engine.base.aliases import Array
from engine.data import LogMel, Sounds, batches
from engine.data.features import resample
from engine.data.samples import Sample
from engine.errors import (
    DTypeError,
    FileError,
    InputError,
    MissingPackageError,
    ShapeError,
)

RATE = 8000
SHORT = LogMel(rate=RATE, window=200, hop=80, n_mels=12, f_min=50)


def tone(frequency: float, rate: int = RATE, seconds: float = 0.5) -> Array:
    return (0.5 * np.sin(2 * np.pi * frequency * np.arange(round(rate * seconds)) / rate)).astype(
        np.float32
    )


def save(path: Path, samples: Array, rate: int = RATE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of two sounds each, half a second at 8 kHz, as floating point."""
    for name, frequency in (("high", 2000), ("low", 300)):
        for i in range(2):
            save(tmp_path / "words" / name / f"{i}.wav", tone(frequency + i), subtype="FLOAT")
    return tmp_path / "words"


# --- features


def test_log_mel_is_its_formula() -> None:
    """Every sum of the formula written out, in double precision."""
    features = LogMel(rate=1000, window=20, hop=8, n_fft=32, n_mels=4, f_min=30, normalize=False)
    sound = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    edges = [
        700 * (10 ** (m / 2595) - 1)
        for m in np.linspace(2595 * math.log10(1 + 30 / 700), 2595 * math.log10(1 + 500 / 700), 6)
    ]
    actual_features = features(sound)
    assert actual_features.shape == (4, features.frames(50)) == (4, 4)
    for t in range(4):
        power = []
        for k in range(17):
            total = 0j
            for n in range(20):
                window = 0.5 - 0.5 * math.cos(2 * math.pi * n / 20)
                total += window * float(sound[8 * t + n]) * cmath.exp(-2j * math.pi * k * n / 32)
            power.append(abs(total) ** 2)
        for m in range(4):
            low, peak, high = edges[m : m + 3]
            band = 0.0
            for k, value in enumerate(power):
                f = k * 1000 / 32
                band += value * max(0.0, min((f - low) / (peak - low), (high - f) / (high - peak)))
            assert actual_features[m, t] == pytest.approx(math.log(band + 1e-6), abs=2e-5)


def test_features_may_be_normalised_by_the_sound() -> None:
    plain = LogMel(normalize=False)(tone(500, 16000))
    log_mel = LogMel()(tone(500, 16000))
    np.testing.assert_allclose(log_mel, (plain - plain.mean()) / plain.std(), atol=1e-4)
    assert not LogMel()(np.zeros(800, np.float32)).any(), "silence stays finite"


def test_a_tone_is_loudest_in_its_band() -> None:
    features = LogMel(n_mels=20)
    centre = features.filters[9].argmax() * 16000 / features.length
    assert (features(tone(centre, 16000)).argmax(0) == 9).all()


@pytest.mark.parametrize(
    ("rate", "target"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 22050)]
)
def test_resampling_keeps_what_the_lower_rate_can_hold(rate: int, target: int) -> None:
    lower = min(rate, target)
    inside = slice(400, -400)  # the ends know silence beyond them
    for share in (0.05, 0.2, 0.35):
        actual = resample(tone(share * lower, rate), rate, target)
        expected = tone(share * lower, target)
        assert len(actual) == len(expected)
        assert np.abs(actual - expected)[inside].max() < 2e-5
    if target < rate:
        gone = resample(tone(0.55 * target, rate), rate, target)
        assert np.abs(gone)[inside].max() < 1e-5, "no alias of what it cannot hold"
    assert resample(np.ones(rate // 4, np.float32), rate, target)[inside] == pytest.approx(1)


def test_resampling_to_the_same_rate_is_nothing() -> None:
    sound = tone(100)
    assert resample(sound, 8000, 8000) is sound
    with pytest.raises(InputError, match="from 0 to 8000 Hz"):
        resample(sound, 0, 8000)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"window": 0}, InputError, "window=0"),
        ({"hop": 2.5}, DTypeError, "hop: expected a whole number"),
        ({"n_fft": 256}, InputError, "n_fft=256 is less than window=400"),
        ({"f_min": 9000}, InputError, "f_min=9000, f_max=8000.0; expected rising"),
        ({"f_max": 9000}, InputError, "up to half the rate, 8000.0"),
        ({"n_mels": 200}, InputError, "band 2 of n_mels=200 lies between two frequencies"),
    ],
)
def test_features_that_are_none(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        LogMel(**options)


def test_features_of_what_is_shorter_than_a_window() -> None:
    with pytest.raises(ShapeError, match=r"shape \[399\]; .*400 samples"):
        LogMel()(np.zeros(399, np.float32))


# --- folders


def test_samples_are_features_and_labels(folder: Path) -> None:
    data = Sounds(folder, rate=RATE, seconds=0.5, features=SHORT)
    assert (len(data), data.classes, data.labels().tolist()) == (4, ["high", "low"], [0, 0, 1, 1])
    x, y = data[1]
    assert (x.shape, x.dtype.name, int(y)) == ((1, 12, 48), "float32", 0)
    assert np.array_equal(x[0], SHORT(tone(2001)))
    (batch,) = batches(data).epoch()
    assert isinstance(batch, tuple)
    assert np.array_equal(batch[0][1], x)
    assert np.array_equal(data.read(data.paths[1]), x)


def test_the_features_of_keywords_by_default(folder: Path) -> None:
    assert Sounds(folder)[0][0].shape == (1, 40, 98)


def test_sounds_are_mixed_resampled_cut_and_filled_up(tmp_path: Path) -> None:
    both = np.stack([tone(300, 16000, 1), 0 * tone(300, 16000, 1)], 1)
    save(tmp_path / "a" / "stereo.flac", both, 16000)
    save(tmp_path / "b" / "short.ogg", tone(300, seconds=0.25))
    data = Sounds(tmp_path, rate=RATE, seconds=0.5, features=None)
    assert data[0][0].shape == data[1][0].shape == (1, 4000)
    np.testing.assert_allclose(data[0][0][0, 200:-200], tone(300)[200:-200] / 2, atol=1e-4)
    assert not data[1][0][0, 2100:].any()


def test_augmentations_get_the_sound(folder: Path) -> None:
    def shift(sample: Sample, rng: np.random.Generator) -> Sample:
        assert sample[0].shape == (4000,)
        return np.roll(sample[0], rng.integers(-800, 800)), *sample[1:]

    def make() -> Any:
        data = Sounds(folder, rate=RATE, seconds=0.5, features=SHORT)
        return batches(data, batch_size=2, augment=shift)

    first, second = make().epoch(0)
    assert np.array_equal(next(make().epoch(0, 1))[0], second[0])
    assert not np.array_equal(next(make().epoch(1))[0], first[0])


# --- bad input


def test_folders_that_are_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read the folder"):
        Sounds(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has 2 sounds, but no sub-folders"):
        Sounds(folder / "low")


@pytest.mark.parametrize("names", [("train", "val"), ("2024", "2025")])
def test_splits_are_no_classes(folder: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    """A root of splits trained a classifier of `train` against `val`, in silence."""
    for name in names:
        shutil.copytree(folder, tmp_path / "root" / name)
    told = {
        "train": "is divided into 'train', 'val', which are splits and not classes",
        "2024": "'2024' holds the folders .* and no sounds, so",
    }
    with pytest.raises(InputError, match=told[names[0]]):
        Sounds(tmp_path / "root")
    deeper = tmp_path / "deeper"
    shutil.copytree(folder, deeper)
    (deeper / "low" / "more").mkdir()
    next((deeper / "low").glob("*.wav")).rename(deeper / "low" / "more" / "moved.wav")
    assert len(Sounds(deeper)) == len(Sounds(folder)), "files in folders of a class belong to it"


def flawed() -> Array:
    actual_tone = tone(300)
    actual_tone[123] = np.nan
    return actual_tone


@pytest.mark.parametrize("name", ["empty.wav", "text.wav", "silent.wav", "nan.wav"])
def test_files_that_are_no_sounds_are_named(folder: Path, name: str) -> None:
    path = folder / "low" / name
    if name == "silent.wav":
        save(path, np.zeros(0, np.float32))
    elif name == "nan.wav":
        save(path, flawed(), subtype="FLOAT")
    else:
        path.write_bytes(b"" if name == "empty.wav" else b"no sound")
    text = {
        "empty.wav": "empty.wav': the file is empty",
        "text.wav": "cannot read the sound .*text.wav': .*ormat",
        "silent.wav": "silent.wav': it has no samples",
        "nan.wav": "nan.wav': sample 123 is not finite",
    }[name]
    with pytest.raises(FileError, match=text):
        list(batches(Sounds(folder, rate=RATE)).epoch())
    left = Sounds(folder, rate=RATE, unreadable="drop")
    assert (len(left), len(left.dropped)) == (4, 1)


def test_a_damaged_header_does_not_fill_the_memory(folder: Path) -> None:
    path = folder / "low" / "0.wav"
    content = bytearray(path.read_bytes())
    place = content.index(b"fmt ") + 12
    assert content[place : place + 4] == RATE.to_bytes(4, "little")
    content[place : place + 4] = (900_000).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"0.wav': 900000 Hz and 1 channels; at most 768000"):
        Sounds(folder, rate=RATE).read(path)
    content[place : place + 4] = (499_979).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"resampling by 8000/499979 takes .* taps"):
        Sounds(folder, rate=RATE).read(path)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rate": 0}, InputError, "rate=0"),
        ({"rate": 16000.5}, DTypeError, "rate: expected a whole number"),
        ({"seconds": 0}, InputError, "seconds=0"),
        ({"seconds": 1e308}, InputError, "fewer than 2147483648 samples"),
        ({"seconds": 0.01}, InputError, "160 samples, less than a window of 400"),
        ({"features": "mfcc"}, InputError, "features='mfcc'; expected a LogMel, 'log_mel' or None"),
        ({"features": SHORT}, InputError, "rate=16000, but the features are for 8000"),
        ({"unreadable": "skip"}, InputError, "unreadable='skip'"),
    ],
)
def test_options_that_are_none(
    folder: Path, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Sounds(folder, **options)


def test_a_missing_soundfile_is_told_with_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingPackageError, match=r"package soundfile: .*edgegrad\[sound\]"):
        Sounds(folder)

"""Media that strangers have made: each file is read within bounds, or refused with its name."""

from __future__ import annotations

import csv
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.data import csv_file, pictures
from engine.data.features import LOUDEST, LogMel
from engine.data.images import Images
from engine.data.sounds import Sounds
from engine.data.tables import Csv
from engine.errors import EngineError, FileError, InputError, LimitError

soundfile = pytest.importorskip("soundfile")


# --- pictures


def png(width: int, height: int, depth: int = 1, colour: int = 0, rows: int | None = None) -> bytes:
    """Return a black PNG with only some of its rows; two thousand bytes for a million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    pixels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = bytes(1 + (width * depth * pixels + 7) // 8)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
        + (chunk(b"PLTE", bytes(range(6))) if colour == 3 else b"")
        + chunk(b"IDAT", zlib.compress(row * (height if rows is None else rows)))
        + chunk(b"IEND", b"")
    )


def saved(picture: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def shades(mode: str, size: tuple[int, int] = (40, 60)) -> Any:
    ramp = np.linspace(0, 255, size[0] * size[1]).reshape(size[::-1])
    return Image.fromarray(ramp.astype(np.uint8)).convert(mode)


def animation() -> bytes:
    frames = [shades("P") for _ in range(5)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:], loop=0)


def turned() -> bytes:
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = 6
    return saved(shades("RGB"), "JPEG", exif=exif)


def exif_of(data: bytes) -> bytes:
    return saved(shades("RGB"), "JPEG", exif=b"Exif\0\0" + data)


JPEG = saved(shades("RGB"), "JPEG")
PICTURES: dict[str, tuple[bytes, type[Exception] | None]] = {
    "high.png": (png(1, 1_000_000), None),
    "wide.png": (png(1_000_000, 1), None),
    "one.png": (png(1, 1), None),
    "rows that are missing.png": (png(64, 64, rows=3), None),  # they are black
    "cut off.png": (png(64, 64)[:45], FileError),
    "cut off.jpg": (JPEG[: len(JPEG) // 2], FileError),
    "100 million pixels.png": (png(10_000, 10_000, rows=1), LimitError),
    "900 million pixels.png": (png(30_000, 30_000, rows=1), InputError),
    "sides of 2**31.png": (png(2**31 - 1, 2**31 - 1, rows=0), EngineError),
    "no pixels.png": (png(0, 0), FileError),
    "palette.png": (png(64, 64, 8, 3), None),
    "16 bits.png": (png(64, 64, 16, 0), None),
    "16 bits of colours.png": (png(64, 64, 16, 2), None),
    "transparency.png": (png(64, 64, 8, 6), None),
    "a bit.png": (saved(shades("1"), "PNG"), None),
    "shades with transparency.png": (saved(shades("LA"), "PNG"), None),
    "cmyk.jpg": (saved(shades("CMYK"), "JPEG"), None),
    "animation.gif": (animation(), None),
    "cmyk.tiff": (saved(shades("CMYK"), "TIFF"), None),
    "floats.tiff": (saved(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), FileError),
    "turned.jpg": (turned(), None),
    "exif of noise.jpg": (exif_of(b"MM\0*\xff\xff\xff\xff" + bytes(range(64))), None),
    "exif in a circle.jpg": (exif_of(b"MM\0*\0\0\0\x08\0\x01\x87i\0\4\0\0\0\1\0\0\0\x08"), None),
    "postscript.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n", FileError),
    "other format.png": (saved(shades("RGB"), "PPM"), FileError),
    "empty.png": (b"", FileError),
    "text.png": (b"no picture at all", FileError),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(tmp_path: Path, name: str) -> None:
    content, refused = PICTURES[name]
    (tmp_path / name).write_bytes(content)
    data = Images(tmp_path, 32, labelled=False)
    if refused is not None:
        with pytest.raises(refused, match=name.replace("*", r"\*")):
            data[0]
        return
    decoded = data.decoded(0)
    assert decoded.size <= pictures.LONGEST * 32 * 32 * 3
    assert min(decoded.shape[:2]) >= 32
    assert np.isfinite(data[0][0]).all()
    assert data[0][0].shape == (3, 32, 32)


def test_the_middle_of_a_long_picture_is_what_it_was(tmp_path: Path) -> None:
    """The part that is cut off first does not contain the middle."""
    rows = np.arange(40 * 16 * 25, dtype=np.int64).reshape(-1, 40) // 40 % 251
    picture = Image.fromarray(rows.astype(np.uint8))
    picture.save(tmp_path / "long.png")
    actual = Images(tmp_path, 40, labelled=False, color_mode="grayscale", mean=0.0, std=1.0)[0][0]
    top = (len(rows) - 40) // 2
    assert np.array_equal(np.round(actual[0] * 255), rows[top : top + 40])


# --- sounds


def sound(values: Any, rate: int = 16000, kind: str = "FLOAT", form: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.asarray(values), rate, subtype=kind, format=form)
    return out.getvalue()


def wav(values: Any, rate: int = 16000, channels: int = 1, promised: int | None = None) -> bytes:
    """A WAV of floats with any header."""
    data = np.asarray(values, "<f4").tobytes()
    size = len(data) if promised is None else promised
    head = struct.pack("<4sI4s4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16)
    head += struct.pack("<HHIIHH", 3, channels, rate, rate * 4 * channels & 0xFFFFFFFF,
                        4 * channels & 0xFFFF, 32)  # fmt: skip
    return head + struct.pack("<4sI", b"data", size) + data


TONE = np.sin(np.arange(16000) / 9).astype(np.float32)
SOUNDS: dict[str, tuple[bytes, type[Exception] | None]] = {
    "tone.wav": (wav(TONE), None),
    "loud as 3e38.wav": (wav(TONE * np.float32(3e38)), FileError),
    "one sample of 1e38.wav": (wav([*TONE[:100], 1e38, *TONE]), FileError),
    "two channels of 3e38.wav": (wav([3e38, 3e38] * 8000, channels=2), FileError),
    "channels that cancel.wav": (wav([1e30, -1e30] * 8000, channels=2), None),
    "integers as floats.wav": (wav(TONE * 2**31), None),
    "nan.wav": (wav([*TONE[:100], np.nan, *TONE]), FileError),
    "infinite.wav": (wav([-np.inf, *TONE]), FileError),
    "silence.wav": (wav(np.zeros(16000)), None),
    "a sample.wav": (wav([0.5]), None),
    "no samples.wav": (wav([]), FileError),
    "0 Hz.wav": (wav(TONE, rate=0), FileError),
    "4 GHz.wav": (wav(TONE, rate=2**32 - 1), FileError),
    "no channels.wav": (wav(TONE, channels=0), FileError),
    "1000 channels.wav": (wav(TONE, channels=1000), FileError),
    "says 4 GB.wav": (wav(TONE, promised=2**32 - 1), None),
    "cut off.wav": (wav(TONE)[:30], FileError),
    "cut off.flac": (sound(TONE, kind="PCM_16", form="FLAC")[:300], FileError),
    "whole.ogg": (sound(TONE, kind="VORBIS", form="OGG"), None),
    "double.wav": (sound(TONE.astype(np.float64) * 1e200, kind="DOUBLE"), FileError),
    "empty.wav": (b"", FileError),
    "text.mp3": (b"no sound at all", FileError),
}


@pytest.mark.parametrize("features", ["log_mel", None])
@pytest.mark.parametrize("name", SOUNDS)
def test_sounds(tmp_path: Path, name: str, features: Any) -> None:
    content, refused = SOUNDS[name]
    (tmp_path / name).write_bytes(content)
    data = Sounds(tmp_path, labelled=False, features=features)
    if refused is not None:
        with pytest.raises(refused, match=name):
            data[0]
        return
    actual = data[0][0]
    assert np.isfinite(actual).all()
    assert actual.shape == ((1, 40, 98) if features else (1, 16000))


@pytest.mark.parametrize("loud", [np.inf, np.nan, 3e38, 2.0 * LOUDEST])
def test_arrays_that_are_no_sounds(loud: float) -> None:
    samples = TONE.copy()
    samples[77] = loud
    with pytest.raises(InputError, match=r"^LogMel: a sample has the value "):
        LogMel()(samples)
    samples[77] = LOUDEST
    assert np.isfinite(LogMel()(samples)).all()


# --- tables

TABLES: dict[str, tuple[bytes, str | None]] = {
    "plain": (b"a,b,y\n1,2,u\n3,4,v\n", None),
    "quotes": (b'a,b,y\n"1","2","u, ""w"""\n3,4,v\n', None),
    "lines in quotes": (b'a,b,y\n1,2,"u\nw"\n3,4,v\n', None),
    "a quote that does not end": (b'a,b,y\n1,2,"u\n3,4,v\n', "unexpected end of data"),
    "letters after a quote": (b'a,b,y\n1,2,"u"w\n3,4,v\n', "',' expected after '\"'"),
    "byte order mark": (b"\xef\xbb\xbfa,b,y\n1,2,u\n3,4,v\n", None),
    "utf-16": ("a,b,y\n1,2,u\n3,4,v\n".encode("utf-16"), "is not utf-8"),
    "latin-1": (b"a,b,y\n1,2,\xfc\n3,4,v\n", "is not utf-8"),
    "nul in a text": (b"a,b,y\n1,2,u\0\n3,4,v\n", None),
    "nul in a number": (b"a,b,y\n1\0,2,u\n3,4,v\n", "is not a number"),
    "short row": (b"a,b,y\n1,2\n3,4,v\n", "line 2: 2 fields, expected 3"),
    "long row": (b"a,b,y\n1,2,u,9\n3,4,v\n", "line 2: 4 fields, expected 3"),
    "two names": (b"a,a,y\n1,2,u\n3,4,v\n", "two columns are named 'a'"),
    "no name": (b"a,,y\n1,2,u\n3,4,v\n", "column 1 has no name"),
    "two without names": (b",,y\n1,2,u\n3,4,v\n", "two columns are named ''"),
    "a field of a megabyte": (b"a,b,y\n1,2," + b"u" * 2**20 + b"\n3,4,v\n", "field larger"),
    "infinite": (b"a,b,y\n1,inf,u\n3,4,v\n", "is not finite"),
    "beyond float64": (b"a,b,y\n1,1e999,u\n3,4,v\n", "is not finite"),
    "beyond float32": (b"a,b,y\n1,1e300,u\n3,-1e300,v\n", None),
    "digits of other scripts": ("a,b,y\n1,٣,u\n3,4,v\n".encode(), None),
    "a number of 10,000 digits": (b"a,b,y\n1," + b"9" * 10_000 + b",u\n3,4,v\n", "is not finite"),
    "carriage returns": (b"a,b,y\r1,2,u\r3,4,v\r", None),
    "header alone": (b"a,b,y\n", "a header, but no rows"),
    "empty": (b"", "has no text"),
    "zeros": (b"\0" * 4096, "has a header, but no rows"),
}


@pytest.mark.parametrize(
    ("options", "content"),
    [
        ({"normalize": False}, "a,y\n1e39,u\n2,v\n"),
        ({"task": "regression"}, "a,y\n1,1e39\n2,3\n"),
        ({"task": "regression"}, "a,y\n1,-1e300\n2,3\n"),
    ],
)
def test_numbers_beyond_float32(tmp_path: Path, options: Any, content: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"column '[ay]': -?1e\+\d+ is beyond float32"):
        Csv(path, "y", **options)


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    content, refused = TABLES[name]
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    if refused is None:
        data = Csv(path, "y")
        assert len(data) == 2
        assert np.isfinite(data.take(np.arange(2))[0]).all()
    else:
        with pytest.raises(EngineError, match=refused) as raised:
            Csv(path, "y")
        assert "table.csv" in str(raised.value)


def test_a_wide_table_takes_comparisons_by_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of all names for each column would be their square; 60,000 genes are usual."""
    compared = 0

    class Cell(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        def strip(self, chars: str | None = None) -> Cell:
            return self

    class Reader:
        def __init__(self, file: Any, **options: Any) -> None:
            self.rows = csv.reader(file, **options)

        def __iter__(self) -> Iterator[list[str]]:
            return ([Cell(cell) for cell in row] for row in self.rows)

        @property
        def line_num(self) -> int:
            return self.rows.line_num

    monkeypatch.setattr(csv_file, "csv", SimpleNamespace(reader=Reader, Error=csv.Error))
    counts = []
    for columns in (300, 600):
        path = tmp_path / f"{columns}.csv"
        names = ",".join(f"g{i}" for i in range(columns))
        path.write_text(f"y,{names}\nu{',1' * columns}\nv{',2' * columns}\n")
        compared = 0
        first = Csv(path, "y")
        assert len(Csv(path, "y", preparation=first.preparation)) == 2
        counts.append(compared)
    assert counts[1] < 100 * 600

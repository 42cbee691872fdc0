"""docs/data.md is true: its examples run on the files that it speaks of."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import engine.data

PAGE = Path(__file__).resolve().parent.parent / "docs/data.md"
FLOWERS = """length,colour,width,kind
1.0,red,10,rose
2.0,blue,,tulip
3.0,red,30,rose
4.0,blue,40,tulip
5.0,red,50,rose
6.0,blue,60,tulip
"""
REVIEWS = """text,label
"so so, I dare say",bad
"grand ..",good
"a fine film indeed!",good
"awful",bad
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What a reader of the page has: pictures, sounds, tables, texts."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 256, (80, 100, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.jpg")
    for name in ("no", "yes"):
        (tmp_path / "words" / name).mkdir(parents=True)
        for i in range(2):
            sound = rng.uniform(-0.5, 0.5, 8000)
            soundfile.write(tmp_path / "words" / name / f"{i}.wav", sound, 8000)
    (tmp_path / "flowers.csv").write_text(FLOWERS)
    (tmp_path / "reviews.csv").write_text(REVIEWS)
    (tmp_path / "diary.txt").write_text("This morning it rained, and we stayed in. " * 3)
    return tmp_path


def test_the_examples_print_what_the_page_says(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert tried > 60
    assert not failed, "the captured output shows expected and got"


def test_the_page_names_everything_that_the_room_offers() -> None:
    text = PAGE.read_text("utf-8")
    missing = [n for n in engine.data.__all__ if n not in text]
    assert not missing

"""The picture of docs/data.md that shows every random change, four times each.

python -m engine.tools.dev.augmentations
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Bytes
from engine.data import (
    ColorJitter,
    CutMix,
    LogMel,
    Mixup,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    RandomRotation,
    SpecAugment,
    TimeShift,
)
from engine.data.pictures import import_pillow
from engine.data.voices import speak
from engine.tools.dev.pictures import PICTURES

SIDE, TIMES, MARGIN, NAMES = 128, 4, 8, 110


def draw_scene(hill: float, sky: tuple[int, int, int]) -> Bytes:
    """Draw a house, a tree and the sun, so that all directions differ."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    drawn = np.empty((SIDE, SIDE, 3))
    drawn[:] = np.array(sky) * (1 - 0.3 * rows[..., None])
    parts = [
        (np.hypot(rows - 0.2, columns - 0.8) < 0.1, (250, 210, 60)),
        (rows > 0.72 + hill * np.sin(6 * columns), (90, 150, 70)),
        ((abs(columns - 0.35) < 0.16) & (abs(rows - 0.66) < 0.14), (180, 80, 60)),
        ((rows < 0.53) & (rows > 0.34 + abs(columns - 0.35)), (110, 50, 40)),
        ((abs(columns - 0.35) < 0.04) & (rows > 0.66) & (rows < 0.8), (60, 40, 30)),
        ((abs(columns - 0.75) < 0.02) & (rows > 0.6) & (rows < 0.8), (100, 70, 40)),
        (np.hypot(rows - 0.55, columns - 0.75) < 0.11, (40, 110, 50)),
    ]
    for place, color in parts:
        drawn[place] = color
    return drawn.astype(np.uint8)


def draw_features(features: npt.NDArray[Any]) -> Bytes:
    """Draw the features of a sound: time to the right, low bands below, louder is brighter."""
    low, high = np.percentile(features, [1, 99])
    grey = np.clip((features[0][::-1] - low) / (high - low), 0, 1)
    image = import_pillow().fromarray((255 * grey).astype(np.uint8)).resize((SIDE, SIDE))
    return np.stack([np.asarray(image)] * 3, -1)


def make_rows() -> dict[str, list[Bytes]]:
    """Return the pictures of each change, by its name; the first one of a row is unchanged."""
    house, other = draw_scene(0.03, (120, 170, 230)), draw_scene(-0.06, (230, 150, 120))[:, ::-1]
    changes: dict[str, Any] = {
        "flip": RandomFlip(probability=0.7, vertical=True),
        "crop": RandomResizedCrop(SIDE, scale=(0.3, 1.0)),
        "color": ColorJitter(brightness=0.5, contrast=0.5, saturation=0.8),
        "rotate": RandomRotation(30),
        "erase": RandomErasing(probability=1),
    }
    shown = {
        name: [house, *(change((house,), np.random.default_rng(k))[0] for k in range(TIMES))]
        for name, change in changes.items()
    }
    pair = np.stack([house, other]).astype(np.float32)
    for name, mixing in {"mixup": Mixup(alpha=2.0), "cutmix": CutMix(alpha=2.0)}.items():
        shown[name] = [house]
        for seed in range(40):
            mixed, shares = mixing((pair, np.arange(2)), np.random.default_rng(seed), 2)
            if 0.2 < shares[0, 0] < 0.8 and len(shown[name]) <= TIMES:
                shown[name].append(mixed[0].astype(np.uint8))
    word = speak("yes", np.random.default_rng(1))
    features = LogMel()
    plain = features(word)[np.newaxis]
    generators = [np.random.default_rng(k) for k in range(TIMES)]
    moved = [features(TimeShift(share=0.4)((word,), rng)[0])[np.newaxis] for rng in generators]
    masked = [SpecAugment()((plain,), rng)[0] for rng in generators]
    shown["shift"] = [draw_features(each) for each in (plain, *moved)]
    shown["spec"] = [draw_features(each) for each in (plain, *masked)]
    return shown


def main() -> None:
    """Write the picture."""
    from PIL import ImageDraw

    shown = make_rows()
    step = SIDE + MARGIN
    size = (NAMES + step * (TIMES + 1), step * len(shown) + MARGIN)
    sheet = import_pillow().new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for row, (name, pictures) in enumerate(shown.items()):
        top = MARGIN + row * step
        pen.text((MARGIN, top + SIDE // 2 - 10), name, fill="black", font_size=20)
        for column, picture in enumerate(pictures):
            sheet.paste(import_pillow().fromarray(picture), (NAMES + column * step, top))
    PICTURES.mkdir(exist_ok=True)
    sheet.save(PICTURES / "augmentation.png", optimize=True)


if __name__ == "__main__":
    main()

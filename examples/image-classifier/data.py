"""Sample data for the example: drawings of things in random colours, sizes, rotations and lights.

`python data.py` writes 20 photos per class to photos/<class>/<number>.jpg, and test photos to
test/<class>/<number>.jpg.  The base network learns from other things, listed in `BASE`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 96, 80

Things = dict[str, list[tuple]]

# The parts of a thing, in a square from -1 to 1: the corners of a polygon, the ends of a line, or
# the bounding box of a disc, a ring or a dome (the upper half of a disc).
BASE: Things = {
    "arrow": [("line", -1, 0, 0.4, 0), ("polygon", 0.3, -0.5, 1, 0, 0.3, 0.5)],
    "ball": [("disc", -0.9, -0.9, 0.9, 0.9)],
    "cross": [("line", -0.9, -0.9, 0.9, 0.9), ("line", -0.9, 0.9, 0.9, -0.9)],
    "fish": [("disc", -1, -0.5, 0.5, 0.5), ("polygon", 0.3, 0, 1, -0.5, 1, 0.5)],
    "flag": [("line", -0.6, -1, -0.6, 1), ("polygon", -0.6, -1, 0.9, -0.6, -0.6, -0.1)],
    "glasses": [("ring", -1, -0.4, -0.1, 0.5), ("ring", 0.1, -0.4, 1, 0.5)],
    "house": [("polygon", -0.7, 0, 0, -1, 0.7, 0), ("polygon", -0.6, 0, 0.6, 0, 0.6, 1, -0.6, 1)],
    "ladder": [("line", -0.5, -1, -0.5, 1), ("line", 0.5, -1, 0.5, 1), ("line", -0.5, 0, 0.5, 0),
               ("line", -0.5, -0.6, 0.5, -0.6), ("line", -0.5, 0.6, 0.5, 0.6)],
    "mushroom": [("dome", -1, -1, 1, 0.8), ("polygon", -0.25, -0.2, 0.25, -0.2, 0.3, 1, -0.3, 1)],
    "plate": [("ring", -1, -1, 1, 1), ("disc", -0.5, -0.5, 0.5, 0.5)],
    "table": [("line", -1, -0.4, 1, -0.4), ("line", -0.8, -0.4, -0.8, 0.9),
              ("line", 0.8, -0.4, 0.8, 0.9)],
    "tree": [("polygon", 0, -1, 0.8, 0.5, -0.8, 0.5), ("line", 0, 0.4, 0, 1)],
}  # fmt: skip
MINE: Things = {
    "bottle": [("polygon", -0.15, -1, 0.15, -1, 0.4, -0.2, 0.4, 1, -0.4, 1, -0.4, -0.2)],
    "key": [("ring", -1, -0.45, -0.1, 0.45), ("line", -0.1, 0, 1, 0), ("line", 0.6, 0, 0.6, 0.4),
            ("line", 0.9, 0, 0.9, 0.4)],
    "lamp": [("polygon", -0.3, -1, 0.3, -1, 0.8, 0, -0.8, 0), ("line", 0, 0, 0, 0.9),
             ("line", -0.5, 0.9, 0.5, 0.9)],
    "mug": [("polygon", -0.8, -0.7, 0.4, -0.7, 0.4, 0.8, -0.8, 0.8), ("ring", 0.1, -0.4, 0.9, 0.5)],
    "umbrella": [("dome", -1, -1, 1, 0.8), ("line", 0, -0.2, 0, 0.9), ("line", 0, 0.9, 0.3, 0.9)],
}  # fmt: skip


def draw(parts: list[tuple], rng: np.random.Generator) -> Image.Image:
    """Draw a thing anywhere, rotated by up to 25 degrees, on a noisy background."""
    outline = Image.new("L", (160, 160))
    pen = ImageDraw.Draw(outline)
    thick = int(rng.integers(9, 16))
    for kind, *numbers in parts:
        places = [80 + 52 * number for number in numbers]
        if kind == "polygon":
            pen.polygon(places, 255)
        elif kind == "line":
            pen.line(places, 255, thick)
        elif kind == "disc":
            pen.ellipse(places, 255)
        elif kind == "ring":
            pen.ellipse(places, outline=255, width=thick)
        else:
            pen.pieslice(places, 180, 360, 255)
    side = int(rng.integers(58, 96))
    outline = outline.rotate(rng.uniform(-25, 25)).resize((side, side))
    mask = Image.new("L", (WIDTH, HEIGHT))
    mask.paste(
        outline, (int(rng.integers(WIDTH - side + 1)), int(rng.integers(-8, HEIGHT - side + 9)))
    )
    color = rng.uniform(0, 255, 3)
    ground = (color + rng.choice([-1, 1], 3) * rng.uniform(60, 150, 3)) % 256
    light = np.linspace(*rng.uniform(0.6, 1.3, 2), WIDTH)[:, None]
    share = np.asarray(mask.filter(ImageFilter.GaussianBlur(0.7)))[:, :, None] / 255
    pixels = (share * color + (1 - share) * ground) * light + rng.normal(0, 12, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write(folder: str, things: Things, count: int, seed: int) -> None:
    """Write `count` pictures of each thing as JPEG files, in a sub-folder per thing."""
    rng = np.random.default_rng(seed)
    for name, parts in things.items():
        place = Path(folder, name)
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            draw(parts, rng).save(place / f"{number:03}.jpg", quality=90)


if __name__ == "__main__":
    write("photos", MINE, 20, seed=1)
    write("test", MINE, 40, seed=2)
    print("wrote photos/ and test/")

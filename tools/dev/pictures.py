"""Pictures of the documentation, in docs/pictures, of what the commands of docs/gallery.md write.

    python -m engine.tools.dev.pictures

The page runs in a temporary folder, as its test does; a headless browser shows the files.  Times in
them belong to the machine that made them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.data.pictures import import_pillow
from engine.tools.dev.browser import Browser, browser

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/pictures"
WIDTH, COLORS = 1080, 96


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: a drawing that a command writes, or a window on a page.

    name: in docs/pictures.
    file: what the commands of the gallery write.
    section: the section at the top of the window; "": the start of the page.
    height: the height of the window.
    """

    name: str
    file: str
    section: str = ""
    height: int = 860
    dark: bool = False

    def take(self, folder: Path, chromium: Browser) -> None:
        """Write the picture of the file in a folder."""
        source, target = folder / self.file, PICTURES / self.name
        if source.suffix == target.suffix:
            shutil.copyfile(source, target)
            return
        page = chromium.open_page(source, WIDTH, self.height, dark=self.dark)
        if self.section:
            page.ask(f"document.getElementById('{self.section}').scrollIntoView()")
        page.picture(target, whole=False)
        page.close()
        image = import_pillow().open(target).convert("RGB")
        image.quantize(COLORS, dither=0).save(target, optimize=True)


SHOTS = (
    Shot("report.png", "runs/first/report.html"),
    Shot("report-dark.png", "runs/first/report.html", "confusion", dark=True),
    Shot("confusion.png", "runs/first/report.html", "confusion", 520),
    Shot("curves.svg", "curves.svg"),
    Shot("comparison.png", "comparison.html"),
    Shot("rates.svg", "rates.svg"),
    Shot("arena.png", "plan.html", "arena0", 540),
    Shot("profile.png", "profile.html", "kernels", 640),
)


def main() -> None:
    """Run the gallery's commands and write the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, browser() as chromium:
        subprocess.run(
            [sys.executable, "-m", "tests.support.pages", ROOT / "docs/gallery.md"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        for shot in SHOTS:
            shot.take(Path(place), chromium)


if __name__ == "__main__":
    main()

"""Wheels, one for each platform with its shipped kernels, and the sdist.

    python -m engine.tools.dev.wheels [--platform NAME ...] [--out FOLDER] [--jobs N]

Everything is made on one machine, without the network: kernels are compiled by tools/dev/ship.py
for the levels of a platform, ziglang links them, and setuptools packs the wheel.  One wheel serves
all distributions of Linux, since the libraries need no C library.  The bytes of a wheel depend on
the sources, on the versions of the tools and on SOURCE_DATE_EPOCH alone, which is the date of the
commit unless it is set.  Where nothing is shipped, pip takes the sdist, which compiles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import EngineError
from engine.kernels.machine.levels import LEVELS, Level
from engine.plan.plan import KernelSpec
from engine.tools.dev.ship import list_kernels, ship_kernels
from engine.tools.trimmed.progress import SILENT, StagePrinter

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 15_000_000  # bytes of a wheel
# Files in a checkout other than sources.
_MADE = (
    ".*", "*.egg-info", "__pycache__", "build", "dist", "demo_output", "shipped", "tests", "bench",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wheel:
    """Wheel to make.

    system, arch: a value of `sys.platform`; an architecture, as in `Target.arch`.
    tags: platform tags, see packaging.python.org/specifications/platform-compatibility-tags.
    """

    system: str
    arch: str
    tags: str

    def list_levels(self) -> list[Level]:
        """Return the levels that are shipped for this platform."""
        return [v for v in LEVELS if v.arch == self.arch and self.system in v.systems]


def _make_linux(arch: str) -> Wheel:
    return Wheel("linux", arch, f"manylinux2014_{arch}.manylinux_2_17_{arch}.musllinux_1_1_{arch}")


# The systems are those for which NumPy 2 has wheels; macOS 11 is the first on both architectures.
PLATFORMS = {
    "linux-x86_64": _make_linux("x86_64"),
    "linux-aarch64": _make_linux("aarch64"),
    "macos-arm64": Wheel("darwin", "aarch64", "macosx_11_0_arm64"),
    "macos-x86_64": Wheel("darwin", "x86_64", "macosx_11_0_x86_64"),
    "windows-x86_64": Wheel("win32", "x86_64", "win_amd64"),
}


def make_sdist(out: Path) -> Path:
    """Make the sdist of this checkout in a folder; return its path.

    Raises:
        EngineError: this is not a checkout, or the package `build` is missing or fails.
    """
    if not (ROOT / "pyproject.toml").exists():
        raise EngineError("wheels are made from a checkout; this is an installed package")
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name) / "sources"
        shutil.copytree(ROOT, sources, symlinks=True, ignore=shutil.ignore_patterns(*_MADE))
        return _build(sources, out, "--sdist")


def make_wheel(
    wheel: Wheel,
    sdist: Path,
    out: Path,
    kernels: Iterable[KernelSpec],
    *,
    levels: Sequence[Level] | None = None,
    jobs: int = 1,
    epoch: str = "",
    progress: StagePrinter = SILENT,
) -> Path:
    """Make a wheel of an sdist in a folder; return its path.

    kernels: the kernels to ship. levels: by default the platform's.
    epoch: the date of the files in it, in seconds; empty: see the head of this file.

    Raises:
        EngineError: a kernel cannot be compiled, nothing can link, or the wheel is too large.
    """
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        (sources,) = Path(name).iterdir()
        shipped = sources / "engine" / "shipped"
        ship_kernels(kernels, levels or wheel.list_levels(), wheel.system, shipped, jobs, progress)
        for path in shipped.iterdir():
            path.chmod(0o644)  # whatever the linker gave it
        made = _build(
            sources, out, "--wheel", f"-C--build-option=--plat-name={wheel.tags}", epoch=epoch
        )
    if (size := made.stat().st_size) > LIMIT:
        raise EngineError(f"{made.name} has {size:,} bytes; wheels have up to {LIMIT:,}")
    return made


def make_pure_wheel(sdist: Path, out: Path) -> Path:
    """Make the wheel that ships no kernels, for all other platforms; raises as `make_sdist`."""
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        (sources,) = Path(name).iterdir()
        return _build(sources, out, "--wheel")


def _build(sources: Path, out: Path, *words: str, epoch: str = "") -> Path:
    """Run the package `build` on sources; returns what it made in a folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [*command, name, *words, str(sources)],
            capture_output=True,
            text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": epoch or _find_epoch()},
        )
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
            raise EngineError(f"building {' '.join(words)} failed:\n{said}")
        (made,) = Path(name).iterdir()
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, out / made.name))


def _find_epoch() -> str:
    """Return the date of the files: SOURCE_DATE_EPOCH, otherwise the commit's, otherwise 1980."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        date = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        date = ""
    return date or "315532800"


def check(files: Sequence[Path], progress: StagePrinter = SILENT) -> None:
    """Check metadata, contents and, of Linux, the needs of what was made.

    Raises:
        EngineError: twine, check-wheel-contents or auditwheel finds something wrong.
    """
    wheels = [path for path in files if path.suffix == ".whl"]
    _run(progress, "twine", "check", "--strict", *files)
    _run(progress, "check_wheel_contents", *wheels)
    for path in wheels:
        if "linux" in path.name:
            said = _run(progress, "auditwheel", "show", path)
            if "requires no external shared libraries" not in " ".join(said.split()):
                raise EngineError(f"{path.name} needs a library:\n{said}")


def _run(progress: StagePrinter, module: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True
    )
    if done.returncode:
        raise EngineError(f"{module} {words[0]}:\n{done.stdout}{done.stderr}")
    progress.say(f"{module}: nothing is wrong")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Make the wheels of all platforms, and the sdist."""
    parser = argparse.ArgumentParser("python -m engine.tools.dev.wheels", description=main.__doc__)
    parser.add_argument("--platform", nargs="+", choices=PLATFORMS, default=list(PLATFORMS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    args = parser.parse_args(argv)
    progress = StagePrinter()
    sdist = make_sdist(args.out)
    made = [sdist, make_pure_wheel(sdist, args.out)]
    kernels = list_kernels()
    for name in args.platform:
        progress.say(f"wheel for {name}")
        made.append(
            make_wheel(PLATFORMS[name], sdist, args.out, kernels, jobs=args.jobs, progress=progress)
        )
    check(made, progress)
    for path in made:
        print(f"{path.stat().st_size:>12,} bytes  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

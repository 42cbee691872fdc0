"""Packaging: four folders are one package with two names, whatever the checkout looks like."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import engine
from engine.tools.actions.templates import list_contents, list_templates
from tests.support.places import GOLDENS, ROOT

RELEASE = f"edgegrad-{engine.__version__}"
TOP = {"engine": "engine", **{name: f"engine/{name}" for name in ("kernels", "graphs", "tools")}}
SECOND = "engine/alias"  # the second name, beside the first in wheels
DEV = Path("tools/dev")  # which makes data of the product, and is in no wheel


def folders(root: Path) -> dict[str, str]:
    """Return every package folder of the sources that wheels have, and where a wheel has it."""
    actual = {}
    for top, place in TOP.items():
        for path in sorted((root / top).rglob("__init__.py")):
            folder = path.parent.relative_to(root / top)
            if (Path(top) / folder).is_relative_to(DEV):
                continue
            if path.is_relative_to(root / SECOND):
                actual[(Path(top) / folder).as_posix()] = folder.relative_to("alias").as_posix()
                continue
            if not any((root / top / part).is_symlink() for part in [*folder.parents, folder][:-1]):
                actual[(Path(top) / folder).as_posix()] = (Path(place) / folder).as_posix()
    return actual


def run(arguments: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True)


def python(cwd: Path, *arguments: str | Path) -> str:
    done = run([sys.executable, *arguments], cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Built(NamedTuple):
    """The tracked sources, and what was made of them."""

    sources: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist from a copy of the tracked files, and the wheel from the sdist."""
    sources = tmp_path_factory.mktemp("sources")
    tracked = run(["git", "ls-files", "-z"], ROOT).stdout.split("\0")
    for name in filter(None, tracked):
        if (path := ROOT / name).is_symlink() or path.exists():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, sources / name, follow_symlinks=False)
    out = tmp_path_factory.mktemp("dist")
    python(sources, "-m", "build", "--no-isolation", "--outdir", out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sources, sdist, wheel)


def test_wheel_holds_the_packages_and_nothing_else(built: Built) -> None:
    info = f"{RELEASE}.dist-info"
    with zipfile.ZipFile(built.wheel) as archive:
        entries = {e.filename: e for e in archive.infolist()}
        assert (
            "edgegrad = edgegrad.tools.cli:main"
            in archive.read(f"{info}/entry_points.txt").decode()
        )
    modules = {name for name in entries if not name.startswith(info)}
    assert modules == {
        "edgegrad/py.typed",
        "engine/py.typed",
        "engine/graphs/io/schemas.txt",
        "engine/kernels/analysis/efficiency.txt",
        "engine/drawing/arena.js",
        "engine/drawing/chart.css",
        "engine/drawing/page.css",
        "engine/drawing/page.js",
    } | {
        f"{package}/{path.name}"
        for folder, package in folders(built.sources).items()
        for path in (built.sources / folder).glob("*.py")
    } | {
        path.relative_to(built.sources / SECOND).as_posix()
        for path in (built.sources / SECOND).rglob("*.pyi")
    } | {
        f"engine/tools/trimmed/runtime/{path.name}"
        for path in (built.sources / "tools/trimmed/runtime").iterdir()
    } | {
        f"engine/{path.relative_to(built.sources).as_posix()}"
        for path in (built.sources / "tools/trimmed/bindings/templates").rglob("*.*")
        if path.is_file()
    } | {
        f"engine/examples/{path.relative_to(built.sources / 'examples').as_posix()}"
        for path in (built.sources / "examples").rglob("*")
        if path.is_file() and path != built.sources / "examples" / "README.md"
    }
    assert f"{info}/licenses/LICENSE" in entries
    assert not [n for n, e in entries.items() if stat.S_ISLNK(e.external_attr >> 16)]


def test_sdist_holds_real_folders(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = {m.name.removeprefix(RELEASE + "/"): m for m in archive.getmembers()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "examples/quick_start.py",
        *(f"{f}/__init__.py" for f in folders(built.sources)),
        *(
            f"examples/{name}/{path.as_posix()}"
            for name in list_templates()
            for path in list_contents(name)
        ),
    } <= set(members)
    others = ("tests", "bench", "tools/dev", "engine/kernels")
    assert not [name for name in members if name.startswith(others)]


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without what it depends on."""
    folder = tmp_path_factory.mktemp("site")
    python(
        folder, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, built.wheel
    )
    return folder


def test_installed_wheel_runs_without_the_checkout(site: Path, tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r});"
        "import importlib.util as u, engine, engine.tools.cli as cli;"
        "print(engine.__version__, engine.__file__,"
        " *(u.find_spec('engine.' + n).origin for n in 'onnxblock kernels graphs tools'.split()))"
    )
    version, *places = python(tmp_path, "-c", code).split()
    assert version == engine.__version__
    assert [Path(p).parent.relative_to(site).as_posix() for p in places] == [
        "engine",
        *(f"engine/{name}" for name in ["onnxblock", "kernels", "graphs", "tools"]),
    ]


def test_an_installed_wheel_has_both_names_whatever_is_beside_a_script(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "engine.py").write_text("raise AssertionError('mine was run')\n")
    code = (
        f"import sys; sys.path.insert(1, {str(site)!r}); import edgegrad, engine, edgegrad.trainer;"
        "from edgegrad import Trainer; assert Trainer is engine.Trainer; print(engine.__file__)"
    )
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.stdout == f"{site / 'engine/__init__.py'}\n", done.stderr
    assert f"RuntimeWarning: {tmp_path / 'engine.py'} has the name" in done.stderr
    paths = os.pathsep.join(map(str, (tmp_path, site)))
    told = subprocess.check_output(
        [sys.executable, "-W", "ignore", str(site / "bin/edgegrad"), "version"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, text=True,
    )  # fmt: skip
    assert told.startswith("edgegrad ")


def test_an_installed_wheel_measures_without_the_checkout(site: Path, tmp_path: Path) -> None:
    """Its processes find each other, and the models of the benchmark are among its files."""
    command = f"import sys; sys.path.insert(0, {str(site)!r}); from engine.tools import cli; "
    command += "sys.exit(cli.main(sys.argv[1:]))"
    words = ["mlp", "--threads", "1", "--batch", "2", "--time", "0.01", "--json"]
    data = json.loads(python(tmp_path, "-c", command, "bench", *words))
    assert [row["failed"] for row in data["rows"]] == [""]
    golden = GOLDENS / "mlp"
    words = [str(golden), "--threads", "1", "--repeats", "1", "--json"]
    assert json.loads(python(tmp_path, "-c", command, "profile", *words))["steps"]


@pytest.mark.parametrize("name", ["kernels", "graphs", "tools"])
def test_no_second_copy_under_a_short_name(name: str) -> None:
    done = run([sys.executable, "-c", f"import {name}"], ROOT)
    assert f"ImportError: import engine.{name}, not {name}" in done.stderr

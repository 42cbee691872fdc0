"""Wheels of platforms: tags, contents, bytes, and what they do where nothing else is installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.runtime.program import LAUNCH
from engine.tools import wheels
from engine.tools.trimmed import binary

FORMS = {"linux": "elf", "darwin": "macho", "win32": "pe"}
EPOCH = "1700000000"


class Made:
    """The sdist of this checkout, and wheels of it that ship a single kernel, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sdist = wheels.make_sdist(folder)
        self._wheels: dict[str, Path] = {}

    def again(self, name: str, where: str) -> Path:
        """A wheel made anew, in a folder of its own."""
        return wheels.make_wheel(
            wheels.PLATFORMS[name], self.sdist, self.folder / where, [LAUNCH], epoch=EPOCH
        )

    def wheel(self, name: str) -> Path:
        if name not in self._wheels:
            self._wheels[name] = self.again(name, "first")
        return self._wheels[name]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("wheels"))


# --- what is in them


@pytest.mark.parametrize("name", wheels.PLATFORMS)
def test_a_wheel_has_the_libraries_of_its_platform_alone(
    name: str, made: Made, tmp_path: Path
) -> None:
    path, platform = made.wheel(name), wheels.PLATFORMS[name]
    assert path.name.endswith(f"-py3-none-{platform.tags}.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
        (about,) = (n for n in archive.namelist() if n.endswith("/WHEEL"))
        lines = archive.read(about).decode().splitlines()
    assert "Root-Is-Purelib: false" in lines
    assert {f"Tag: py3-none-{tag}" for tag in platform.tags.split(".")} <= set(lines)
    shipped = {p.name: p for p in (tmp_path / "engine/shipped").iterdir()}
    libraries = [p for n, p in shipped.items() if not n.endswith((".json", ".keys"))]
    assert {p.stem for p in libraries} == {level.name for level in platform.levels()} != set()
    for library in libraries:
        found = binary.read(library)
        assert (found.form, found.machine) == (FORMS[platform.system], platform.arch)
        assert "edgegrad_shipped" in {symbol.lstrip("_") for symbol in found.exports}
        if platform.system == "linux":  # so that glibc's and musl's loaders take it, of any age
            assert not found.needs
            assert not found.libraries


@pytest.mark.parametrize("name", ["linux-aarch64", "macos-arm64", "windows-x86_64"])
def test_a_wheel_is_made_of_the_same_bytes_twice(name: str, made: Made) -> None:
    assert made.wheel(name).read_bytes() == made.again(name, "second").read_bytes()


def test_what_is_made_passes_the_checks(made: Made, tmp_path: Path) -> None:
    wheels.check([made.sdist, *map(made.wheel, wheels.PLATFORMS)])
    whole = made.wheel("linux-x86_64")
    half = tmp_path / whole.name
    half.write_bytes(whole.read_bytes()[:100_000])
    with pytest.raises(EngineError, match="twine"):
        wheels.check([half])

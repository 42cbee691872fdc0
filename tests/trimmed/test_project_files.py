"""Projects that find a build, from another folder: by CMake, by pkg-config, by its Makefile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import make_build, needs_cc, run
from tests.support.places import GOLDENS

LISTS = """\
cmake_minimum_required(VERSION 3.10)
project(app C CXX)
find_package(mnist CONFIG REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE mnist::mnist)
add_executable(app_cpp app_cpp.cpp)
target_compile_features(app_cpp PRIVATE cxx_std_17)
target_link_libraries(app_cpp PRIVATE mnist::mnist)
"""

CACHES = shutil.ignore_patterns("__pycache__")  # other tests import these builds meanwhile
pytestmark = needs_cc


def move(folder: Path, to: Path) -> Path:
    """Return a copy of a build, so that nothing can depend on where it was made, in a folder whose
    name has spaces and a letter of two bytes.
    """
    return Path(shutil.copytree(folder, to / "moved über 2 folders", ignore=CACHES))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static build with threads."""
    out = tmp_path_factory.mktemp("archive")
    build(
        GOLDENS / "mlp", out, Options("mnist", resolve("native"), PlanRequest([4], 2), static=True)
    )
    return out


def find_build(kind: str, archive: Path) -> Path:
    return archive if kind == "archive" else make_build("mlp", 2)


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
@pytest.mark.parametrize("kind", ["shared", "archive"])
def test_find_package_finds_a_build(kind: str, archive: Path, tmp_path: Path) -> None:
    made = move(find_build(kind, archive), tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(LISTS)
    shutil.copy(made / "src" / "example.c", project / "app.c")
    shutil.copy(made / "src" / "example.cpp", project / "app_cpp.cpp")
    words: list[str | Path] = [
        "cmake",
        "-S",
        project,
        "-B",
        tmp_path / "out",
        f"-DCMAKE_PREFIX_PATH={made}",
    ]
    run(*words, PATH="/usr/bin:/bin")
    run("cmake", "--build", tmp_path / "out", PATH="/usr/bin:/bin")
    for program in ("app", "app_cpp"):
        out = run(tmp_path / "out" / program, made / "checkpoint", tmp_path / "new")
        assert out.count("loss") == 20


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_find_package_refuses_a_build_for_another_system(tmp_path: Path) -> None:
    made = move(make_build("mlp", 2), tmp_path)
    config = made / "mnist-config.cmake"
    config.write_text(config.read_text().replace("^(Linux)$", "^(Windows)$"))
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    words = ["cmake", "-S", tmp_path, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={made}"]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert done.returncode
    said = " ".join(done.stderr.split())
    assert "the library is for native, and this project for Linux" in said


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
@pytest.mark.parametrize("kind", ["shared", "archive"])
def test_pkg_config_finds_a_build(kind: str, archive: Path, tmp_path: Path) -> None:
    made = move(find_build(kind, archive), tmp_path)
    program = tmp_path / "app"
    # Spaces are escaped, for make and a shell's eval.
    line = "eval cc '\"$0\"' $(pkg-config --cflags --libs mnist) -o '\"$1\"'"
    words = ("sh", "-c", line, made / "src/example.c", program)
    run(*words, PATH="/usr/bin:/bin", PKG_CONFIG_PATH=str(made))
    out = run(program, made / "checkpoint", tmp_path / "new", LD_LIBRARY_PATH=str(made))
    assert out.count("loss") == 20


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
@pytest.mark.parametrize("kind", ["shared", "archive"])
def test_make_makes_the_examples(kind: str, archive: Path, tmp_path: Path) -> None:
    made = move(find_build(kind, archive), tmp_path)
    run("make", "-C", made / "src", "CC=cc", "CXX=c++", PATH="/usr/bin:/bin")
    for program in ("example", "example-cpp"):
        out = run(made / "src" / program, made / "checkpoint", tmp_path / "new")
        assert out.count("loss") == 20


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_makes_the_device_of_a_federation(tmp_path: Path) -> None:
    """It finds its library."""
    made = move(make_build("mlp", batches=(4, 3), federated=True), tmp_path)
    run("make", "-C", made / "src", "CC=cc", "CXX=c++", PATH="/usr/bin:/bin")
    done = subprocess.run([made / "src/device"], capture_output=True, text=True)
    assert "usage: " in done.stderr


def test_an_archive_for_another_system_says_how_to_use_its_header(tmp_path: Path) -> None:
    options = Options("mnist", resolve("android-aarch64"), PlanRequest([8]), freestanding=True)
    build(GOLDENS / "mlp", tmp_path, options)
    assert "EDGEGRAD_FREESTANDING" in (tmp_path / "mnist-config.cmake").read_text()
    assert "(Android|Generic)" in (tmp_path / "mnist-config.cmake").read_text()
    assert "-DEDGEGRAD_FREESTANDING" in (tmp_path / "mnist.pc").read_text()

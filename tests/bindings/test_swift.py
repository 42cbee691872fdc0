"""Swift: the package for Apple's systems; its sources are compiled, and train, on Linux."""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.tools import cli
from engine.tools.trimmed import binary
from engine.tools.trimmed.api import Only
from tests.bindings import drills
from tests.bindings.packages import make_package
from tests.bindings.swift import run_swift
from tests.bindings.uses import check_example, make_use
from tests.support.builds import list_decoder_functions, make_build, needs_cc
from tests.support.places import BINDINGS, GOLDENS
from tests.support.roots import needs_root
from tests.support.shown import shows

# Objective-C that imports the module of the header and calls a step.
PROGRAM = """
@import CMnist;
float train(const float *images, const int64_t *labels)
{
    mnist *m;
    char why[MNIST_MESSAGE_BYTES];
    float loss = 0;
    const void *inputs[] = {images, labels};
    void *outputs[] = {&loss};
    if (mnist_create(&m, "checkpoint", why))
        return -1;
    mnist_train_step(m, inputs, outputs);
    mnist_destroy(m);
    return loss;
}
"""
SLICES = {"macos-arm64": "macos", "ios-arm64": "ios", "ios-arm64-simulator": "ios-simulator"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package of one build for two systems."""
    out = tmp_path_factory.mktemp("swift")
    words = ["--target", "macos-aarch64,ios-aarch64,ios-simulator", "--bindings", "swift"]
    words += ["--batch", "4", "--threads", "2", "--federated", "--name", "mnist", "-o", str(out)]
    assert cli.main(["build", str(GOLDENS / "mlp"), *words]) == 0
    return out / "swift"


@shows("Swift", "macOS", "made")
@shows("Swift", "iOS", "made")
@shows("Objective-C", "macOS", "made")
@shows("Objective-C", "iOS", "made")
def test_the_framework_has_a_library_for_each_system(package: Path, tmp_path: Path) -> None:
    """An archive as Apple's linker reads it, of objects for the system."""
    framework = package / "CMnist.xcframework"
    listed = plistlib.loads((framework / "Info.plist").read_bytes())
    assert listed["CFBundlePackageType"] == "XFWK"
    assert [row["LibraryIdentifier"] for row in listed["AvailableLibraries"]] == list(SLICES)
    for row in listed["AvailableLibraries"]:
        place = framework / row["LibraryIdentifier"]
        variant = row.get("SupportedPlatformVariant")
        system = "-".join(filter(None, (row["SupportedPlatform"], variant)))
        assert system == SLICES[row["LibraryIdentifier"]]
        assert row["SupportedArchitectures"] == ["arm64"]
        assert (place / row["HeadersPath"] / "mnist.h").is_file()
        library = place / row["LibraryPath"]
        assert library.read_bytes().startswith(b"!<arch>\n#1/12")  # a long name, as on BSD
        assert b"__.SYMDEF" in library.read_bytes()[:100]
        extract = [sys.executable, "-m", "ziglang", "ar", "x", str(library)]
        subprocess.run(extract, cwd=tmp_path, check=True)
        for member in ("kernels0.o", "mnist.o"):
            made = binary.read(tmp_path / member)
            facts = (made.form, made.machine, made.system)
            assert facts == ("macho", "aarch64", system)


def test_ios_alone_takes_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["build", str(GOLDENS / "mlp"), "--target", "ios-arm64", "--bindings", "swift"]
    words += ["--batch", "4", "--name", "mnist", "-o", str(tmp_path / "out")]
    if not shutil.which("xcrun"):
        assert cli.main(words) == 1
        assert "archives alone: --static or --freestanding" in capsys.readouterr().err
    assert cli.main([*words, "--static"]) == 0
    assert (tmp_path / "out/swift/CMnist.xcframework/ios-arm64/libmnist.a").is_file()
    assert (tmp_path / "out/libmnist.a").is_file()


@pytest.mark.parametrize("system", SLICES)
def test_objective_c_imports_the_module(system: str, package: Path, tmp_path: Path) -> None:
    (tmp_path / "program.m").write_text(PROGRAM)
    headers = package / "CMnist.xcframework" / system / "Headers"
    words = ["-fmodules", f"-fmodules-cache-path={tmp_path}", "-Wall", "-Werror", f"-I{headers}"]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-macos"]
    out = ["-c", str(tmp_path / "program.m"), "-o", str(tmp_path / "program.o")]
    done = subprocess.run([*zig, *words, *out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_cc
@needs_root("swift")
@pytest.mark.whole
@pytest.mark.parametrize("case", ["mlp", "cnn"])
@shows("Swift", "Linux, x86-64", "run")
def test_swift_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    drills.write_steps(case, tmp_path / "steps")
    words = ("checkpoint", "steps", "out", sessions)
    printed = run_swift(case, BINDINGS / "Drill.swift", tmp_path, *words)
    drills.check(printed, tmp_path / "out", case, exact=True)


@needs_cc
@needs_root("swift")
@pytest.mark.whole
def test_swift_refuses_in_words(tmp_path: Path) -> None:
    """Wrong sizes, orders, checkpoints and no memory, each many times: nothing is lost."""
    other = make_build("cnn") / "checkpoint"
    shutil.copy(other, tmp_path / "other")
    printed = run_swift("mlp", BINDINGS / "Hostile.swift", tmp_path, "checkpoint", "other")
    drills.check_refusals(printed)


@needs_cc
@needs_root("swift")
@pytest.mark.whole
@pytest.mark.parametrize("only", ["", "inference", "train", "decoder"])
def test_the_example_runs(only: Only, tmp_path: Path) -> None:
    package = (
        make_use(only, "macos-aarch64") if only else make_package("mlp", "swift", "macos-aarch64")
    )
    words = [[], ["checkpoint"], ["checkpoint", "trained"]]
    given = words[{"decoder": 0, "inference": 1}.get(only, 2)]
    program = package / "swift/Examples/main.swift"
    printed = run_swift("mlp", program, tmp_path, *given, only=only)
    check_example(only or "train", printed, tmp_path)


def test_sources_follow_the_grammar(package: Path) -> None:
    """Where no compiler of Swift is at hand, a parser sees that nothing is malformed."""
    tree_sitter = pytest.importorskip("tree_sitter")
    grammar = pytest.importorskip("tree_sitter_swift")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))
    sources = sorted(package.rglob("*.swift"))
    assert len(sources) == 4
    for path in sources:
        text = path.read_bytes()
        bad = [text[n.start_byte : n.end_byte] for n in _find_bad(parser.parse(text).root_node)]
        assert bad == [], path.name
    assert _find_bad(parser.parse(b"func f() { let x = }").root_node)


def test_calls_have_the_arguments_of_the_header(package: Path) -> None:
    header = (package / "CMnist.xcframework/macos-arm64/Headers/mnist.h").read_text()
    declared = {
        name: 0 if rest.strip() == "void" else rest.count(",") + 1
        for name, rest in re.findall(r"(?m)^MNIST_API [^;]*?\bmnist_(\w+)\(([^;]*)\);", header)
    }
    text = (package / "Sources/Mnist/Model.swift").read_text()
    called = {}
    for name, rest in re.findall(r"\bmnist_(\w+)\(((?:[^()]|\([^()]*\))*)\)", text):
        outer = re.sub(r"\([^()]*\)", "", rest)
        called[name] = outer.count(",") + 1 if outer else 0
    others = {"create_in", "worker", *list_decoder_functions()}
    assert called.keys() >= declared.keys() - others
    assert {name: declared[name] for name in called} == called


def _find_bad(node: Any) -> list[Any]:
    """Return the nodes of a tree that the grammar does not know, or that are missing."""
    bad = [node] if node.is_error or node.is_missing else []
    for child in node.children:
        bad += _find_bad(child)
    return bad

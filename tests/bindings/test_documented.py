"""Packages in the eyes of a native developer: every public name has a comment, as its language
wants it, and the compilers that can say so agree.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from engine.tools.trimmed.api import list_enumerations, list_functions
from engine.tools.trimmed.bindings.package import add_s
from tests.bindings.packages import NATIVE, make_package
from tests.support.builds import make_source, needs_cc, run
from tests.support.needs import needs_cargo, needs_java, needs_mono


@pytest.mark.parametrize("library", [False, True])
def test_the_header_describes_every_function(library: bool) -> None:
    header = make_source("mnist", library=library).read_header()
    for function in list_functions(header):
        assert re.match(r"[A-Z][a-z]+ .*\.(\s|$)", function.comment, re.DOTALL), function.name
        first = function.comment.split(" ")[0]
        assert not first.endswith("s"), f"{function.name}: {first} describes, and does not ask"
    for enumeration in list_enumerations(header):
        assert enumeration.comment.endswith("."), enumeration.name
        for name, _, sentence in enumeration.members:
            assert re.fullmatch(r"[A-Z][^\n]*\.", sentence), name


def test_verbs_follow_names() -> None:
    verbs = {"copy": "copies", "return": "returns", "pass": "passes", "display": "displays"}
    assert {verb: add_s(verb) for verb in verbs} == verbs


@needs_cc
def test_go_has_a_comment_for_every_name() -> None:
    """The comment begins with the name."""
    text = (make_package("mlp", NATIVE) / "go/mnist.go").read_text()
    names = list(re.finditer(r"(?m)^(?:func (?:\(m \*Model\) )?|type )([A-Z]\w*)", text))
    assert len(names) > 60
    for declared in names:
        comment = text[: declared.start()].rpartition("\n\n")[2]
        assert comment.startswith(f"// {declared[1]} "), f"{declared[1]}: {comment}"


@needs_cc
@needs_java
def test_java_has_a_comment_for_every_name(tmp_path: Path) -> None:
    sources = make_package("mlp", NATIVE) / "java/src/main/java"
    words = ("-J-Xshare:auto", "-Xdoclint:all,-missing", "-Werror", "-quiet", "-d", tmp_path)
    run("javadoc", *words, "-sourcepath", sources, "edgegrad.mnist")
    for path in sources.rglob("*.java"):
        text = path.read_text()
        bare = re.findall(r"(?m)^(?!.*\*/)(.*)\n +(public (?!.*@Override)[^\n]*)", text)
        for before, declared in bare:
            assert before.strip() in ("@Override",), f"{path.name}: {declared}"


@needs_cc
@needs_mono
def test_csharp_has_a_comment_for_every_name(tmp_path: Path) -> None:
    sources = (make_package("mlp", NATIVE) / "csharp/src").glob("*.cs")
    words = ("-target:library", "-warn:4", "-warnaserror", f"-doc:{tmp_path / 'doc.xml'}")
    run("mcs", *words, f"-out:{tmp_path / 'mnist.dll'}", *sources)


@needs_cc
@needs_cargo
def test_rust_has_a_comment_for_every_name(tmp_path: Path) -> None:
    crate = make_package("mlp", NATIVE) / "rust"
    folder = {**os.environ, "CARGO_TARGET_DIR": str(tmp_path), "RUSTFLAGS": "-Dwarnings"}
    words = ("--quiet", "--offline", f"--manifest-path={crate / 'Cargo.toml'}")
    assert "#![warn(missing_docs)]" in (crate / "src/lib.rs").read_text()
    run("cargo", "doc", "--no-deps", *words, **folder, RUSTDOCFLAGS="-Dwarnings")


def test_swift_has_a_comment_for_every_name() -> None:
    folder = make_package("mlp", "swift", "macos-aarch64") / "swift/Sources"
    text = (folder / "Mnist/Model.swift").read_text()
    for before, declared in re.findall(r"(?m)^(.*)\n {4}(public (?:static )?func [^\n]*)", text):
        assert before.strip().startswith("///"), declared


def test_typescript_has_a_comment_for_every_name() -> None:
    text = (make_package("mlp", "js", "wasm32") / "js/mnist.d.ts").read_text()
    for before, declared in re.findall(r"(?m)^(.*)\n(  (?:static )?[a-z]\w*\([^\n]*;)", text):
        assert before.strip().endswith("*/"), declared
    for before, declared in re.findall(r"(?m)^(.*)\n(export (?:enum|class|interface) \w+)", text):
        assert before.strip().endswith("*/"), declared

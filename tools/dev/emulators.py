"""Programs for other platforms, run here: qemu's user mode, Wine, and WebAssembly in Node."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.kernels.machine.target import detect_host
from engine.tools.trimmed.targets import TARGETS

# WASI's host calls, by Node's own module for them; the arguments after the module's are its own.
WASI = """
import { WASI } from 'node:wasi';
import { readFile } from 'node:fs/promises';
const args = process.argv.slice(2);
const wasi = new WASI({ version: 'preview1', args, preopens: { '/': '/' } });
const wasm = await WebAssembly.compile(await readFile(args[0]));
process.exitCode = wasi.start(await WebAssembly.instantiate(wasm, wasi.getImportObject()));
"""


@functools.cache
def _make_folder() -> Path:
    """Return the folder of what emulators of this process read and write."""
    made = Path(tempfile.mkdtemp(prefix="edgegrad-emulators-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def find_wine() -> str:
    """Return Wine's loader of 64-bit programs, which Debian keeps out of the PATH, or ""."""
    return shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine") or ""


@dataclass(frozen=True)
class Emulator:
    """Command that runs the programs of a platform.

    command: the words before the program's path.
    folder: where the platform's C library is, if programs need one.
    tools: for messages, the commands or files that are needed.
    variables: set in its environment.
    """

    command: tuple[str, ...]
    tools: tuple[str, ...] = ()
    folder: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def list_missing(self) -> list[str]:
        """Return the tools that this machine lacks."""
        return [t for t in self.tools if not (shutil.which(t) or Path(t).exists())]

    def run(self, program: Path, *arguments: str | Path, timeout: int = 600) -> str:
        """Run a program beside whose libraries it lies; returns what it prints.

        Raises:
            RuntimeError: its status is not 0; the message has what it printed.
        """
        command = [*self.command]
        if self.folder:
            command += ["-L", self.folder, "-E", f"LD_LIBRARY_PATH={program.parent}"]
        variables = {**os.environ, "LD_LIBRARY_PATH": str(program.parent), **self.variables}
        done = subprocess.run(
            [*command, str(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            env=variables,
            timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(
                f"{program.name}: status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


ARM64 = ("cortex-a53", "cortex-a72", "cortex-a76")  # that qemu knows; others run as the last


def _make_qemu(machine: str, cpu: str, triple: str) -> Emulator:
    command, folder = f"qemu-{machine}-static", f"/usr/{triple}"
    return Emulator((command, "-cpu", cpu), (command, f"{folder}/lib/libc.so.6"), folder)


def find_emulator(target: str) -> Emulator | None:
    """Return the emulator for the programs of a named target, or None."""
    if target == "native":
        return Emulator(())
    if target.startswith("x86-64"):
        return Emulator(()) if _has(target) else None
    if target in ("raspberrypi1", "raspberrypi2"):
        # Debian's C library for hard floats is for ARMv7; so is the CPU that runs builds for ARMv6.
        return _make_qemu("arm", "cortex-a7", "arm-linux-gnueabihf")
    row = TARGETS.get(target)
    if row is not None and row.triple.startswith("aarch64-") and "linux-gnu" in row.triple:
        emulated = {"generic": "cortex-a53"} | {core: core for core in ARM64}
        return _make_qemu("aarch64", emulated.get(row.cpus, ARM64[-1]), "aarch64-linux-gnu")
    if target == "riscv64":
        return _make_qemu("riscv64", "rv64", "riscv64-linux-gnu")
    if target == "windows-x86_64":
        quiet = {"WINEPREFIX": str(_make_folder() / "wine"), "WINEDEBUG": "-all",
                 "WINEDLLOVERRIDES": "mscoree,mshtml,winemenubuilder.exe="}  # fmt: skip
        return Emulator((find_wine() or "wine64",), (find_wine() or "wine64",), "", quiet)
    if target in ("wasm32", "wasm32-relaxed"):
        script = _make_folder() / "wasi.mjs"
        script.write_text(WASI)
        # With threads of its own Node 20 crashes as a program of WASI ends whose memory has grown.
        flags = ["--no-warnings", "--single-threaded"]
        flags += ["--experimental-wasm-relaxed-simd"] if target != "wasm32" else []
        return Emulator(("node", *flags, str(script)), ("node",))
    return None


def _has(level: str) -> bool:
    """Return whether this CPU runs a level of x86-64."""
    bytes_of = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}
    return detect_host().arch == "x86_64" and detect_host().vector >= bytes_of[level]

"""Training with an installed wheel and nothing but NumPy: old CPUs, and 64-bit ARM.

The golden models are prepared here for every level (`edgegrad prepare`), and trained by Pythons
that have NumPy and the wheel alone: on this CPU, and under qemu's user mode on models of old ones.
The wheels hold the kernels of these models.  A cell compares parameters, losses and the checkpoint
with a process that has all packages, and compiles the same kernels itself for the level: `equal` to
the last bit, or the largest relative difference of a loss.  --arm64 is a folder in which
tests/arm64.sh has been; without it there are no rows for ARM.  --page writes the table of
docs/wheels.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench import installed
from bench.measuring import ROOT
from bench.processes import SCRIPTS
from bench.rows import Bench, Cells, Option
from bench.tables import make_markdown
from engine.kernels.machine.levels import LEVELS, list_levels, name_machine
from engine.tools.dev import zoo

GOLDENS = ROOT / "tests" / "data" / "goldens"
MODELS = ("mlp", "cnn", "mobilenet", "transformer")
SCRIPT = SCRIPTS / "train_steps.py"
ARM64 = ROOT / "build" / "arm64"
ARM64_PYTHON = "root/usr/bin/python3.11"  # in the folder of tests/arm64.sh

Result = dict[str, Any]  # what train_steps.py prints


@dataclass(frozen=True)
class Cpu:
    """CPU to run on.

    name: the name of the model that qemu emulates; empty: this CPU.
    level: the level that must be chosen on it.
    """

    name: str
    level: str

    @property
    def arch(self) -> str:
        """The architecture, as in `Target.arch`."""
        return next(v.arch for v in LEVELS if v.name == self.level)


def list_cpus() -> list[Cpu]:
    """Return every CPU that rows are made for."""
    x86 = (("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3"))
    arm = [(name, "aarch64") for name in ("cortex-a53", "cortex-a72")]
    arm += [("cortex-a76", "aarch64-fp16")]
    return [Cpu("", list_levels()[0].name), *(Cpu(*row) for row in (*x86, *arm))]


class Wheels:
    """Installed wheels, and prepared artifacts of golden models, all in one folder.

    arm64: a folder in which tests/arm64.sh has been; there are wheels for ARM if it has.
    """

    def __init__(self, folder: Path, models: Sequence[str], arm64: Path) -> None:
        self.folder, self.models, self.arm64 = folder, models, arm64.resolve()
        self._compiled: dict[tuple[str, str], Result] = {}
        plans = [plan for name in models for plan in zoo.of_golden(GOLDENS / name)]
        self.sites = {}
        archs = [name_machine(), *(["aarch64"] if (arm64 / ARM64_PYTHON).exists() else [])]
        for arch in dict.fromkeys(archs):
            wheel = installed.make(plans, f"linux-{arch}", folder / arch)
            self.sites[arch] = installed.install(wheel, folder / arch / "site")

    @cached_property
    def python(self) -> Path:
        """The Python of a new virtual environment that has the wheel and NumPy."""
        home = self.folder / "environment"
        venv.create(home, symlinks=True)
        (site,) = home.glob("lib/python*/site-packages")
        link_numpy(site, Path(np.__file__).parents[1])
        for path in self.sites[name_machine()].iterdir():
            (site / path.name).symlink_to(path)
        return home / "bin" / "python"

    def prepare_model(self, model: str, place: str) -> Path:
        """Return a copy of the artifacts of a golden model, with plans for every level."""
        batch = zoo.find_batch(GOLDENS / model)
        made = self.folder / "prepared" / model
        if not made.exists():
            shutil.copytree(GOLDENS / model, made)
            targets = [v.name for v in LEVELS if "linux" in v.systems]
            words = [word for name in targets for word in ("--target", name)]
            command = ("-m", "engine.tools.cli", "prepare", made, "--batch", batch, "--threads", 2)
            run([sys.executable, *command, *words], self._here, self.folder)
        copy = self.folder / place / model
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(made, copy))

    @property
    def _here(self) -> dict[str, str]:
        """The environment of this Python, with all that is installed for it, and the wheel."""
        return {"PYTHONPATH": str(self.sites[name_machine()])}

    def run_compiled(self, model: str, cpu: Cpu) -> Result:
        """Return the result of a process that compiles all kernels for the level of a CPU.

        It runs on this CPU, or for another architecture on the first CPU that it is asked for.
        """
        if (model, cpu.level) not in self._compiled:
            folder = self.prepare_model(model, "compiled")
            (folder / "prepared.plans").unlink()
            python: list[object] = [sys.executable]
            env = self._here
            if cpu.arch != name_machine():
                python, env = self._find_emulated(cpu, self.sites[cpu.arch], self.arm64 / "site")
            printed = run([*python, SCRIPT, folder, cpu.level], env, self.folder)
            self._compiled[model, cpu.level] = parse_result(printed)
        return self._compiled[model, cpu.level]

    def run_shipped(self, model: str, cpu: Cpu) -> Result:
        """Return the result of a process with the wheel and NumPy alone, on a CPU."""
        folder = self.prepare_model(model, cpu.name or "here")
        python, env = self._find_interpreter(cpu)
        env |= {"EDGEGRAD_CACHE_DIR": str(self.folder / "unused"), "OPENBLAS_NUM_THREADS": "1"}
        return parse_result(run([*python, SCRIPT, folder], env, self.folder))

    def _find_interpreter(self, cpu: Cpu) -> tuple[list[object], dict[str, str]]:
        """Return the words that run a Python on a CPU, and its environment."""
        if not cpu.name:
            return [self.python], {"PYTHONPATH": ""}
        if cpu.arch == name_machine():
            (site,) = self.python.parents[1].glob("lib/python*/site-packages")
            emulator = [f"qemu-{cpu.arch}-static", "-cpu", cpu.name]
            # NumPy's OpenBLAS may take the emulated CPU for a newer one: by the host's.
            env = {"PYTHONPATH": str(site), "OPENBLAS_CORETYPE": "Nehalem"}
            return [*emulator, self.python.resolve(), "-S"], env
        return self._find_emulated(cpu, self.sites[cpu.arch], self.arm64 / "numpy")

    def _find_emulated(self, cpu: Cpu, *places: Path) -> tuple[list[object], dict[str, str]]:
        """Return the same for the Python for 64-bit ARM, with packages in these places."""
        emulator = ["qemu-aarch64-static", "-cpu", cpu.name, "-L", self.arm64 / "root"]
        path = os.pathsep.join(map(str, places))
        return [*emulator, self.arm64 / ARM64_PYTHON], {"PYTHONPATH": path}


def link_numpy(site: Path, origin: Path) -> None:
    """Let a folder for packages have the NumPy of another one."""
    for pattern in ("numpy", "numpy.libs", "numpy-*.dist-info"):
        for path in origin.glob(pattern):
            (site / path.name).symlink_to(path)


def run(words: Sequence[object], env: dict[str, str], cwd: Path) -> str:
    """Run a program, with these variables besides the others; returns what it prints.

    Raises:
        RuntimeError: its status is not 0; the message has what it printed.
    """
    command = [str(word) for word in words]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "EDGEGRAD_KERNELS": "auto", **env},
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def parse_result(printed: str) -> Result:
    """Return the last line that a program printed, which is JSON."""
    result: Result = json.loads(printed.splitlines()[-1])
    return result


def compare(found: Result, wanted: Result, level: str) -> str:
    """Return the text of a cell.

    Raises:
        RuntimeError: another level was chosen, or something was imported that need not be there.
    """
    if found["kernels"].split()[:2] != ["shipped", level] or found["imported"]:
        raise RuntimeError(f"{level} was expected, and no import: {found}")
    if all(found[key] == wanted[key] for key in ("losses", "parameters", "saved")):
        return "equal"
    pairs = zip(found["losses"], wanted["losses"], strict=True)
    return f"{max(abs(a - b) / abs(b) for a, b in pairs):.0e}"


def measure(model: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each CPU."""
    with tempfile.TemporaryDirectory() as name:
        made = Wheels(Path(name), [model], options.arm64)
        for cpu in list_cpus():
            if cpu.arch in made.sites:
                cell = compare(
                    made.run_shipped(model, cpu), made.run_compiled(model, cpu), cpu.level
                )
                yield cpu.name or "this CPU", cpu.level, cell


def write_page(found: Mapping[str, Sequence[Cells]], path: Path) -> None:
    """Replace the table of a page, which has a row for each CPU."""
    cells: dict[tuple[object, object], dict[str, object]] = {}
    for model, rows in found.items():
        for cpu, level, cell in rows:
            cells.setdefault((cpu, level), {})[model] = cell
    table = make_markdown(
        ["CPU", "level", *found],
        [[*map(str, key), *(str(row.get(m, "")) for m in found)] for key, row in cells.items()],
    )
    text = path.read_text("utf-8")
    begin, end = text.index("| CPU |"), text.rindex("|\n") + 2
    path.write_text(text[:begin] + "\n".join(table) + "\n" + text[end:], "utf-8")


BENCHES = (
    Bench(
        "wheels",
        "what an installed wheel trains where NumPy alone is installed: old CPUs, and 64-bit ARM",
        {name: name for name in MODELS},
        ("CPU", "level", "trained"),
        measure,
        options=(Option("arm64", ARM64, "what tests/arm64.sh has made"),),
        page=write_page,
        document="docs/wheels.md",
    ),
)

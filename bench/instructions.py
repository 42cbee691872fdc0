"""Instructions that one training step executes, counted by a QEMU plugin: exact, on any machine.

Subjects of `instructions` are folders of artifacts.  A step is forward, backward and optimizer.
The program is the trimmed build's, with one thread; kernels of the full engine are the same code.
Needs the Debian package qemu-user (not -static, which has no plugins) and a compiler for each
target.

The program of `instructions.start` is Python with the package installed from a wheel, and the whole
process is counted, from `python` to the end of its first step: the first process ever, which plans,
and a later one, which finds the plans in the cache.  For comparison, a process imports only NumPy.
Python is for x86-64, and with --arm64 from a folder that tests/arm64.sh has prepared.  One thread
runs; bytecode is cached.  Instructions do not include waiting for the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import installed
from bench.measuring import ROOT
from bench.processes import SCRIPTS
from bench.programs import written
from bench.rows import Bench, Cells, Option
from engine.kernels.machine.levels import LEVELS
from engine.tools.benchmark.workloads import WORKLOADS
from engine.tools.dev import zoo
from engine.tools.trimmed.build import build
from engine.tools.trimmed.link import find_compiler
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve

TARGETS = ("raspberrypi4", "x86-64-v3")
DRIVER = """
#include <stdlib.h>
#include <string.h>
#include "model.h"
int main(int argc, char **argv)
{
    char why[MODEL_MESSAGE_BYTES];
    model *m;
    float loss;
    void *outputs[MODEL_TRAIN_OUTPUTS] = {&loss};
    if (argc != 3 || model_create(&m, argv[1], why))
        return 2;
    for (int i = 0; i < model_input_count(m, MODEL_TRAIN); i++)
        memset(model_input(m, MODEL_TRAIN, i), 0, model_input_info(m, MODEL_TRAIN, i)->bytes);
    for (int step = atoi(argv[2]); step > 0; step--) {
        if (model_train_step(m, NULL, outputs) || model_optimizer_step(m))
            return 1;
        model_lazy_reset_grad(m);
    }
    return 0;
}
"""


@dataclass(frozen=True)
class Program:
    """Program that takes a number of training steps, and its emulator on this machine.

    file: the program, linked statically.
    """

    file: Path
    emulator: str
    checkpoint: Path

    def run(self, plugin: str, steps: int) -> str:
        """Return the plugin's output for `steps` steps.

        plugin: its file, and its arguments after commas.
        """
        words = (self.emulator, "-cpu", "max", "-plugin", plugin, "-d", "plugin")
        return _run(*words, self.file, self.checkpoint, steps)


def build_program(artifacts: Path, target: str, batch: int, folder: Path) -> Program:
    """Build a program of one thread that trains artifacts on batches of this size."""
    platform = resolve(target)
    out = folder / f"{artifacts.name}-{target}-{batch}"
    build(artifacts, out, Options("model", platform, PlanRequest([batch])))
    (out / "driver.c").write_text(DRIVER)
    compiler = find_compiler(platform).command
    sources = [out / "driver.c", out / "src" / "model.c", out / "src" / "kernels.o"]
    _run(*compiler, "-O2", "-static", f"-I{out}", *sources, "-o", out / "driver")
    return Program(out / "driver", f"qemu-{platform.target.arch}", out / "checkpoint")


def count(artifacts: Path, target: str, batch: int, folder: Path) -> int:
    """Return the instructions of one step: a tenth of the instructions of ten more."""
    built = build_program(artifacts, target, batch, folder)
    few, many = (_parse_count(built.run(str(folder / "count.so"), steps)) for steps in (2, 12))
    return (many - few) // 10


def compile_plugin(folder: Path) -> Path:
    """Compile instructions.c."""
    made = folder / "count.so"
    _run("cc", "-shared", "-fPIC", "-O2", ROOT / "bench/instructions.c", "-o", made)
    return made


def count_starts(artifacts: Path, python: Sequence[object], site: str) -> dict[str, int]:
    """Instructions of processes from `python` to the end of a first step, by what they find.

    artifacts: a folder of them, with a batch.
    python: the words that run an interpreter and count.
    site: PYTHONPATH, with an installed wheel.
    """
    work = artifacts / "counted"
    env = {
        "PYTHONPATH": site, "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "EDGEGRAD_CACHE_DIR": str(work / "cache"), "EDGEGRAD_KERNELS": "shipped",
        "EDGEGRAD_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    first_step = (*python, SCRIPTS / "first_step.py", artifacts)
    _run(*first_step, env=env)  # writes bytecode
    shutil.rmtree(work / "cache", ignore_errors=True)
    instructions = {
        name: _parse_count(_run(*first_step, env=env)) for name in ("first ever", "plans kept")
    }
    instructions["import numpy"] = _parse_count(_run(*python, "-c", "import numpy", env=env))
    shutil.rmtree(work)
    return instructions


def _parse_count(said: str) -> int:
    return int(re.findall(r"instructions (\d+)", said)[-1])


def _list_interpreters(
    arm64: Path | None, counting: Sequence[object]
) -> dict[str, tuple[object, ...]]:
    """Return the words that run a Python for a level and count, by name of the level.

    arm64: a folder in which tests/arm64.sh has been, if any.
    """
    commands = {"x86-64-v3": ("qemu-x86_64", "-cpu", "max", *counting, sys.executable)}
    if arm64:
        python = arm64 / "root/usr/bin/python3.11"
        emulator = ("qemu-aarch64", "-cpu", "cortex-a72", "-L", arm64 / "root")
        commands["aarch64"] = (*emulator, *counting, python)
    return commands


def _run(*words: object, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, words)],
        capture_output=True,
        text=True,
        env=None if env is None else {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **env},
    )
    if done.returncode:
        raise SystemExit(f"{words[0]}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def measure(artifacts: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each target."""
    with tempfile.TemporaryDirectory() as folder:
        compile_plugin(Path(folder))
        for target in options.target:
            yield target, options.batch, count(Path(artifacts), target, options.batch, Path(folder))


def measure_start(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield a row for each level and process of a workload."""
    arm64 = options.arm64.resolve() if options.arm64 else None
    with tempfile.TemporaryDirectory() as place, written(name) as artifacts:
        folder = Path(place)
        counting = ("-plugin", compile_plugin(folder), "-d", "plugin")
        plans = list(zoo.of_folder(artifacts, WORKLOADS[name].x[0]))
        for title, python in _list_interpreters(arm64, counting).items():
            (level,) = (v for v in LEVELS if v.name == title)
            wheel = installed.make(plans, f"linux-{level.arch}", folder / title, [level])
            site = str(installed.install(wheel, folder / title / "site"))
            if level.arch == "aarch64":
                site += f"{os.pathsep}{arm64}/site"
            for what, number in count_starts(artifacts, python, site).items():
                yield title, what, number


BENCHES = (
    Bench(
        "instructions",
        "instructions that one training step executes, counted by a QEMU plugin",
        None,
        ("target", "batch", "instructions:,"),
        measure,
        options=(
            Option("batch", 1, "samples of a step"),
            Option("target", TARGETS, "processors"),
        ),
    ),
    Bench(
        "instructions.start",
        "instructions of whole processes, to the end of a first step",
        {name: name for name in WORKLOADS},
        ("level", "process", "instructions:,"),
        measure_start,
        usual=("mlp",),
        options=(Option("arm64", None, "a folder in which tests/arm64.sh has been", Path),),
    ),
)

"""Instructions that one training step executes, counted by a QEMU plugin: exact, on any machine.

    python -m bench.instructions [--batch N] [--target NAME ...] ARTIFACTS ...

A step is forward, backward and optimizer.  The program is the trimmed build's, with one thread;
kernels of the full engine are the same code.  Needs the Debian package qemu-user (not -static,
which has no plugins) and a compiler for each target.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.tools.build import Options, build
from engine.tools.trimmed.link import find_compiler
from engine.tools.trimmed.targets import resolve

HERE = Path(__file__).resolve().parent
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


def count(artifacts: Path, target: str, batch: int, folder: Path) -> int:
    """Instructions of one step: what ten more steps take, by ten."""
    platform = resolve(target)
    out = folder / f"{artifacts.name}-{target}"
    build(artifacts, out, Options("model", platform, [batch]))
    (out / "driver.c").write_text(DRIVER)
    compiler = find_compiler(platform).command
    sources = [out / "driver.c", out / "src" / "model.c", out / "src" / "kernels.o"]
    _run(*compiler, "-O2", "-static", f"-I{out}", *sources, "-o", out / "driver")
    emulator = f"qemu-{platform.target.arch}"
    cpu = ["-cpu", "max"]
    told = []
    for steps in (2, 12):
        plugin = ["-plugin", folder / "count.so", "-d", "plugin"]
        said = _run(emulator, *cpu, *plugin, out / "driver", out / "checkpoint", steps)
        told.append(int(re.findall(r"instructions (\d+)", said)[0]))
    return (told[1] - told[0]) // 10


def _run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words[0]}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row a model and target."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--target", action="append", default=[])
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run("cc", "-shared", "-fPIC", "-O2", HERE / "instructions.c", "-o", folder / "count.so")
        for artifacts in args.artifacts:
            for target in args.target or TARGETS:
                n = count(artifacts, target, args.batch, folder)
                print(f"{artifacts.name:12} batch {args.batch:3} {target:14} {n:>12,} instructions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

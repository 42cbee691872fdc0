"""The readers of builds, in C: `python -m tests.fuzz.native N [--seed S] [--what ...]`.

tests/c/fuzz.c changes files again and again, guided by the ways that they take through a reader
(gcc's -fsanitize-coverage=trace-pc), under AddressSanitizer and UndefinedBehaviorSanitizer.  An
input at which a reader fails is left in a file, with which the program it is made by fails again:

    build/fuzz/checkpoint 0 0 again - build/fuzz/checkpoint.failed
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.tools.trimmed.generate import RUNTIME
from tests.support.builds import (
    SANITIZE,
    WARNINGS,
    load,
    make_build,
    make_library,
    plan_file,
    write_types,
)
from tests.support.messages import request
from tests.support.places import DRIVERS, GOLDENS

GUIDED = "-fsanitize-coverage=trace-pc"
READERS = ("checkpoint", "plan", "message")


def sources(reader: str) -> list[str]:
    """Return the sources of the driver of a reader, besides tests/c/fuzz.c, and the flags."""
    if reader == "message":
        return [f"-I{RUNTIME}", f"-I{write_types()}", "-Wno-unused-function"]
    folder = make_library() if reader == "plan" else make_build("mlp")
    return [f"-I{folder}", *(str(folder / "src" / n) for n in ("mnist.c", "kernels.o")), "-pthread"]


def program(reader: str, folder: Path) -> Path:
    """The program that fuzzes a reader.

    Raises:
        subprocess.CalledProcessError: it cannot be compiled.
    """
    loop, out = folder / "fuzz.o", folder / reader
    system = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", *WARNINGS)
    words = ["cc", *system, "-O2", "-DSANITIZED", "-c", DRIVERS / "fuzz.c", "-o", loop]
    subprocess.run(list(map(str, words)), check=True)
    driver = str(DRIVERS / f"fuzz_{reader}.c")
    flags = [*WARNINGS, *SANITIZE, GUIDED, *sources(reader)]
    subprocess.run(["cc", *flags, driver, str(loop), "-o", str(out)], check=True)
    return out


def seeds(reader: str, folder: Path) -> list[Path]:
    """Files that a reader takes, to begin with."""
    if reader == "plan":
        return [plan_file(GOLDENS / "mlp", batches) for batches in ("6,1", "1")]
    if reader == "message":
        request().write(folder / "message.first")
        return [folder / "message.first"]
    trainer = load(make_build("mlp")).Trainer()
    trainer.step(np.zeros((4, 64), np.float32), np.arange(4))
    for name, value in (("epoch", 3), ("loss", 0.25), ("note", "hello")):
        trainer.state.properties[name] = value
    trainer.save(folder / "checkpoint.first")
    return [folder / "checkpoint.first", GOLDENS / "mlp" / "checkpoint"]


def run(
    reader: str, count: int, seed: int, folder: Path, keep: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Give `count` inputs to a reader; the status is 0 unless it failed at one.

    folder: for the program, and for the input that it failed at.
    keep: for inputs that took a way of their own.
    """
    words: Sequence[object] = (
        program(reader, folder), seed, count, folder / f"{reader}.failed", keep or "-",
        *seeds(reader, folder),
    )  # fmt: skip
    return subprocess.run(list(map(str, words)), capture_output=True, text=True)


def main() -> int:
    """Fuzz the readers one after the other, and print what became of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000, help="inputs a reader")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    parser.add_argument("--what", default=",".join(READERS), help="readers: " + ",".join(READERS))
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="for failures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for reader in options.what.split(","):
        done = run(reader, options.count, options.seed, options.folder)
        print(f"{reader}: {done.stdout}{done.stderr}", end="", flush=True)
        failed |= done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

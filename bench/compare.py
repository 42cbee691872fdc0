"""Training steps of this checkout against another one, side by side: what a change costs or gains.

python -m bench.compare OTHER_CHECKOUT [WORKLOAD ...] [--kernels THIS OTHER]

Two processes a row, one of each checkout, take turns of `STEPS` steps on the same artifacts, so
that a machine whose speed drifts slows both.  A row gives the medians of a step, of this checkout
and of the other, and the median of their ratio over the turns: below 1 this checkout is faster.

THIS and OTHER are values of EDGEGRAD_KERNELS for the two.  `bench.compare . --kernels shipped
native` thus compares shipped kernels, if this checkout has some, with those compiled for this CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

HERE = Path(__file__).resolve().parent
TURNS, WARM_UP = 15, 3
STEPS = {"mlp": 200, "cnn": 10, "mobilenet": 3, "transformer": 5}


def serve(folder: Path, threads: int) -> None:
    """In a child: for every number read from standard input, take that many steps."""
    from engine.api import CheckpointState, Module, Optimizer

    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    batch = np.load(folder / "batch.npz")
    x, y = batch["x"], batch["y"]
    for line in sys.stdin:
        for _ in range(int(line)):
            module(x, y)
            optimizer.step()
            module.lazy_reset_grad()
        print("done", flush=True)


class Runner:
    """A child that trains with the engine of one checkout."""

    def __init__(self, ask: IO[str], answers: IO[str]) -> None:
        self._ask, self._answers = ask, answers

    def seconds(self, steps: int) -> float:
        """Time of one step, over `steps` of them."""
        start = time.perf_counter()
        print(steps, file=self._ask, flush=True)
        if self._answers.readline() != "done\n":
            raise SystemExit("a child ended before its steps did")
        return (time.perf_counter() - start) / steps


@dataclass(frozen=True)
class Side:
    """What is compared: a checkout, and where its kernels are from; "" is its default."""

    checkout: Path
    kernels: str = ""


@contextmanager
def child(side: Side, folder: Path, threads: int) -> Iterator[Runner]:
    """A process that trains the artifacts in `folder`."""
    command = [sys.executable, str(HERE / "compare.py"), "--serve", str(folder), str(threads)]
    env = {**os.environ, "PYTHONPATH": str(side.checkout)}
    if side.kernels:
        env["EDGEGRAD_KERNELS"] = side.kernels
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=folder
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Runner(process.stdin, process.stdout)
        process.stdin.close()


def row(name: str, folder: Path, sides: Sequence[Side], threads: int) -> str:
    """One line: milliseconds of both sides, and the ratio."""
    steps = STEPS.get(name, 5)
    with ExitStack() as stack:
        runners = [stack.enter_context(child(side, folder, threads)) for side in sides]
        for runner in runners * WARM_UP:
            runner.seconds(steps)
        turns = [[runner.seconds(steps) for runner in runners] for _ in range(TURNS)]
    this, that = (statistics.median(t) * 1e3 for t in zip(*turns, strict=True))
    ratio = statistics.median(a / b for a, b in turns)
    return f"{name:12} {threads} threads  {this:9.3f} ms  {that:9.3f} ms  ratio {ratio:.3f}"


def main(argv: Sequence[str]) -> None:
    """Print a row a workload and number of threads."""
    from engine.tools.workloads import USUAL, WORKLOADS

    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=main.__doc__)
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--kernels", nargs=2, default=("", ""), metavar=("THIS", "OTHER"))
    args = parser.parse_args(argv)
    if not (args.other / "engine/api.py").is_file():
        raise SystemExit(f"{args.other} is no checkout of this project")
    checkouts = (HERE.parent, args.other.resolve())
    sides = [Side(path, kernels) for path, kernels in zip(checkouts, args.kernels, strict=True)]
    for name in args.workloads or USUAL:
        with tempfile.TemporaryDirectory() as made:
            folder = WORKLOADS[name].write(Path(made))
            for threads in (1, 2):
                print(row(name, folder, sides, threads), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(sys.argv[1:])

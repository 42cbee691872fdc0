"""How evenly a training step is shared by more threads than this machine has cores: a model.

    python -m bench.balance [WORKLOAD ...] [--threads N ...] [--kernels N]

Plans for so many threads run here, and each thread's own processor time is taken for each step, so
that it does not matter how many of them run at once.  Between two barriers the busiest thread
decides: `busiest / mean` is the sum of the busiest ones by that of the means.  `work` is the
processor time of all threads by that of a plan for one thread: what sharing adds.  `speed-up` is
what follows for a machine with as many cores, if barriers cost nothing and memory is no limit.
`serial` is the share of the work in steps that one thread does alone.

Below stand the kernels that lose most by imbalance at the most threads: their share of the loss,
and on how many threads their steps put work, at most.  Times carry this machine's noise: shares of
some microseconds are uneven by chance.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.api import CheckpointState, Module, Optimizer
from engine.profiling.profile import StepTime
from engine.runtime import timing
from engine.tools.workloads import WORKLOADS

NAMES = ("mobilenet", "minilm", "resnet18")
THREADS = (2, 4, 8, 16)
REPEATS = 7
IDLE = 0.02  # a thread that does less of the busiest one's work only looks whether it has some


class ProcessorTime(timing.Clock):
    """The time for which the thread that asks has run, in the place of the time of day."""

    def __init__(self) -> None:
        super().__init__()
        function = ctypes.CDLL(None).clock_gettime
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0
        self.number = time.CLOCK_THREAD_CPUTIME_ID


@dataclass(frozen=True)
class Loss:
    """What the steps of one kernel lose by imbalance, in seconds, and their busy threads."""

    kernel: str
    seconds: float
    threads: int


@dataclass(frozen=True)
class Balance:
    """How the steps of a plan are shared.

    work: processor time of all threads.
    busiest: the sum of the busiest thread's time between barriers.
    serial: processor time of steps that one thread does alone.
    """

    threads: int
    work: float
    busiest: float
    serial: float
    barriers: int
    losses: tuple[Loss, ...]

    @property
    def ratio(self) -> float:
        """Busiest thread by the mean; 1 is even."""
        return self.busiest * self.threads / self.work


def intervals(steps: Sequence[StepTime]) -> Iterator[list[StepTime]]:
    """The steps between two barriers."""
    found: list[StepTime] = []
    for step in steps:
        if found and (step.barrier or step.plan != found[-1].plan):
            yield found
            found = []
        found.append(step)
    if found:
        yield found


def balance(steps: Sequence[StepTime]) -> Balance:
    """What the busy times of steps tell."""
    threads = len(steps[0].busy)
    busiest = serial = 0.0
    lost: dict[str, float] = defaultdict(float)
    most: dict[str, int] = defaultdict(int)
    parts = list(intervals(steps))
    for part in parts:
        busiest += float(np.sum([s.busy for s in part], axis=0).max())
        for step in part:
            busy = np.array(step.busy)
            active = int((busy > IDLE * busy.max()).sum())
            lost[step.kernel] += float(busy.max() - busy.mean())
            most[step.kernel] = max(most[step.kernel], active)
            serial += float(busy.sum()) if active <= 1 else 0.0
    order = sorted(lost, key=lambda kernel: -lost[kernel])
    return Balance(
        threads,
        sum(sum(step.busy) for step in steps),
        busiest,
        serial,
        len(parts),
        tuple(Loss(kernel, lost[kernel], most[kernel]) for kernel in order),
    )


def measure(folder: Path, threads: int) -> Balance:
    """Of the training step of artifacts, whose folder has a batch."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, threads=threads)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    with np.load(folder / "batch.npz") as batch:
        x, y = batch["x"], batch["y"]
    return balance(module.profile(x, y, optimizer=optimizer, repeats=REPEATS).steps)


def lines(name: str, threads: Sequence[int], kernels: int) -> Iterator[str]:
    """Rows of the table, and the kernels that lose most at the most threads."""
    with tempfile.TemporaryDirectory() as place:
        folder = WORKLOADS[name].write(Path(place))
        alone = measure(folder, 1)
        for count in threads:
            found = measure(folder, count)
            yield (
                f"| {name} | {count} | {found.barriers} | {found.work / alone.work:.2f} | "
                f"{found.ratio:.2f} | {100 * found.serial / found.work:.1f} % | "
                f"{alone.work / found.busiest:.1f} |"
            )
    total = sum(loss.seconds for loss in found.losses)
    for loss in found.losses[:kernels]:
        yield f"    {loss.kernel}: {loss.seconds / total:.0%} of the loss, {loss.threads} threads"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.balance", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(NAMES))
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument("--kernels", type=int, default=8, help="that lose most; 0 for none")
    args = parser.parse_args(argv)
    timing.Clock = ProcessorTime  # type: ignore[misc]  # what stopwatches of this process read
    print("| workload | threads | barriers | work | busiest / mean | serial | speed-up |")
    print("|---|---|---|---|---|---|---|")
    for name in args.workloads or NAMES:
        for line in lines(name, args.threads, args.kernels):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

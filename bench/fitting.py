"""What `Trainer.fit` costs beyond the steps it makes, on the MLP at batch 64.

    python -m bench.fitting [--rounds N] [--batches N]

A bare loop of `trainer.step` over the same batches and a `fit` take turns; the ratio of each pair
is of processor time of one thread.  Where other load makes that too coarse, the second figure is
finer: the same two loops with steps that do nothing, whose difference is what `fit` adds to a
batch, as a share of a step.  `fit` runs as it does by default, with its reports, without a
validation or a folder.  Its fixed cost, of a run of one batch, is told by itself.  The learning
rate is 0, so that all steps are alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from engine import Trainer
from engine.data import Batches
from engine.data.samples import Batch, size
from engine.tools.workloads import WORKLOADS


class Fixed(Batches):
    """One batch, several times over."""

    def __init__(self, batch: Batch, count: int) -> None:
        self.batch, self.count = batch, count
        self.batch_size = size(batch)
        self.samples = count * self.batch_size

    def __len__(self) -> int:
        return self.count

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        return repeat(self.batch, self.count - start)


def seconds(run: Callable[[], object]) -> float:
    """The processor time of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


class Idle(Trainer):
    """A trainer whose steps do nothing."""

    def accumulate(self, *batch: Any) -> float:
        return 0.5

    def update(self) -> None:
        pass


def pairs(trainer: Trainer, batch: Batch, batches: int, rounds: int) -> list[tuple[float, float]]:
    """The times of a bare loop and of a `fit`, in turns."""
    data = Fixed(batch, batches)

    def bare() -> None:
        for each in data.epoch():
            trainer.accumulate(*each)
            trainer.update()

    bare()
    trainer.fit(data)
    return [(seconds(bare), seconds(lambda: trainer.fit(data))) for _ in range(rounds)]


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=1000)
    words = parser.parse_args()
    batch = WORKLOADS["mlp"].batch()
    with tempfile.TemporaryDirectory() as folder:
        artifacts = WORKLOADS["mlp"].write(Path(folder))
        trainer, idle = (kind(artifacts, threads=1, learning_rate=0.0) for kind in (Trainer, Idle))
        real = pairs(trainer, batch, words.batches, words.rounds)
        empty = pairs(idle, batch, 20 * words.batches, words.rounds)
        fixed = min(seconds(lambda: trainer.fit(Fixed(batch, 1))) for _ in range(words.rounds))
    step = min(bare for bare, _ in real) / words.batches
    ratio = statistics.median(fitted / bare for bare, fitted in real)
    added = min(f for _, f in empty) - min(b for b, _ in empty)
    added /= 20 * words.batches
    print(
        f"mlp, batch 64, 1 thread: a step {1e3 * step:.3f} ms; fit {ratio:.3f} times the bare loop "
        f"of {words.batches} steps; added to a batch {1e6 * added:.2f} us, "
        f"{100 * added / step:.2f} % of a step; a fit of one batch {1e3 * fixed:.2f} ms"
    )


if __name__ == "__main__":
    main()

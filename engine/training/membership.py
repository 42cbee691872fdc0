"""Membership: what a module must know of the processes that train it together."""

from __future__ import annotations

from engine.distributed.group import RankGroup
from engine.plan.collective import PART, SAMPLES, SHARE
from engine.runtime.program import BoundProgram


class Membership:
    """The group with which a module trains, and the part of each batch that this rank has.

    A `Module` with ranks runs its training model on the samples of this rank alone.  Its loss, its
    gradients and the updates of a joined step belong to the joined batch, and are the same on all
    ranks.  Every rank runs as many training steps as the others.  A rank that has no samples of a
    batch runs the step on any valid samples, with `share` and `samples` 0.

    group: the ranks; None where a step is only planned.
    size: how many there are.
    statistics: whether batch normalisations that train use the statistics of the joined batch;
        otherwise they use this rank's part, and running statistics differ from rank to rank.
    share: what this rank's loss counts in the loss of the joined batch, which is the sum of share
        times loss over all ranks.  For a mean over samples it is this rank's part of them, for a
        sum 1.  It is set before each step.
    samples: this rank's part of the samples of the joined batch, 0 to 1, of all ranks 1 together.
        It is set before each step, and read where statistics are combined.
    """

    def __init__(self, group: RankGroup | int, *, statistics: bool = True) -> None:
        """group: the ranks, or how many there would be, where a step is only planned."""
        self.group = None if isinstance(group, int) else group
        self.size = group if isinstance(group, int) else group.size
        self.statistics = statistics
        self.share = self.samples = 1.0 / self.size

    @property
    def key(self) -> tuple[object, ...]:
        """The properties of the ranks on which plans depend."""
        return "ranks", self.size, self.statistics

    def fill(self, program: BoundProgram) -> None:
        """Tell a program of the training model which part of the batch this rank has."""
        for name, value in ((SHARE, self.share), (SAMPLES, self.samples), (PART, self.samples)):
            if name in program.inputs:
                program.inputs[name][...] = value

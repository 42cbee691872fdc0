"""Prediction of the time of a step on more threads than this machine has cores.

The plan for so many threads runs here, whose cores take turns, and each thread's own processor time
is taken for each step: it does not matter how many threads run at once.  In a stretch, from one
barrier to the next, the busiest thread decides, or the memory, if the bytes that no cache holds
take longer:

    t(T) = t(1) - b(1) + sum over stretches of max(busiest(T), bytes / bandwidth) + barriers * m T

t(1) is the measured time of a step on one thread and b(1) the processor time of its kernels, so
that a program's own work between runs counts as it is.  The bandwidth is the one that all cores of
this machine reach together: a machine with more cores is assumed to have no faster memory.  Clocks
that fall as more cores work, and cores that share their units, are not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.profiling.profile import Profile
from engine.profiling.times import StepTime

# Seconds that a barrier takes a thread: each adds to a counter, which goes from core to core.
# 0.25 us of two threads by `python -m bench meetings`, on an Emerald Rapids server.
BARRIER = 0.125e-6
REPEATS = 7  # runs of a profile that is good enough


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of a step over threads.

    threads: their number.
    stretches: of each, the seconds of the busiest thread, and the bytes
        that no cache holds.
    memory: bytes a second that the machine moves from and to memory.
    """

    threads: int
    stretches: tuple[tuple[float, int], ...]
    memory: float

    @property
    def busiest(self) -> float:
        """Seconds of a step if barriers cost nothing and memory is not a limit."""
        return sum(seconds for seconds, _ in self.stretches)


def list_stretches(steps: Sequence[StepTime]) -> Iterator[list[StepTime]]:
    """Yield the steps of each stretch, from one barrier to the next."""
    pending: list[StepTime] = []
    for step in steps:
        if pending and (step.barrier or step.plan != pending[-1].plan):
            yield pending
            pending = []
        pending.append(step)
    if pending:
        yield pending


def measure_balance(profile: Profile) -> Balance:
    """Return the balance of a step, by a profile of processor time."""
    return Balance(
        profile.threads,
        tuple(
            (
                max(map(sum, zip(*(step.busy for step in stretch), strict=True))),
                sum(step.uncached for step in stretch),
            )
            for stretch in list_stretches(profile.steps)
        ),
        profile.roofline.memory,
    )


def predict_seconds(alone: Balance, seconds: float, shared: Balance) -> float:
    """Predict the seconds of a step on as many cores as it has threads.

    alone: the balance of the step on one thread.  seconds: its measured time there.
    shared: its balance on the threads.
    """
    work = sum(max(busiest, nbytes / shared.memory) for busiest, nbytes in shared.stretches)
    barriers = 0 if shared.threads == 1 else len(shared.stretches) * BARRIER * shared.threads
    return seconds - alone.busiest + (alone.busiest if shared.threads == 1 else work) + barriers

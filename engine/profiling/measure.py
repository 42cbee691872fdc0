"""Measuring a profile: programs run one after another under stopwatches, several times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.base.aliases import Array
from engine.plan.plan import PHASES, Kernel
from engine.profiling.profile import Profile
from engine.profiling.times import StepTime
from engine.runtime.program import BoundProgram
from engine.runtime.roofline import Roofline, measure
from engine.runtime.team import Resolver
from engine.runtime.timing import Stopwatch
from engine.system.paths import Paths

WARM_UP = 2  # runs before those that count


@dataclass(frozen=True, slots=True)
class ProfiledProgram:
    """Program to profile.

    name: the name of its model. program: the program to run. prepare: called before each run with
        its number; sets the inputs, the seed of random numbers and the step from which they are
        drawn. paths: the paths of the nodes of its model.
    """

    name: str
    program: BoundProgram
    prepare: Callable[[int], tuple[int, int | None]]
    paths: Paths = field(default=Paths())


def measure_profile(
    title: str,
    parts: Sequence[ProfiledProgram],
    repeats: int,
    resolve: Resolver,
    *,
    processor_time: bool = False,
) -> Profile:
    """Run the parts one after another, `repeats` times, and report where the time went.

    resolve: gives the kernels that measure the machine.
    processor_time: count the time that each thread has run, instead of the time of day.

    Raises:
        LabelError: an input is out of range.
        EngineError: the kernels that measure are neither shipped nor can be compiled.
    """
    roofline = measure(parts[0].program.threads, resolve)
    watches = [part.program.make_stopwatch(processor_time=processor_time) for part in parts]
    all_spans: list[list[Spans]] = []
    for number in range(WARM_UP + repeats):
        spans = [_run(part, watch, number) for part, watch in zip(parts, watches, strict=True)]
        if number >= WARM_UP:
            all_spans.append(spans)
    runs = tuple(sum(part.seconds for part in run) for run in all_spans)
    fastest = all_spans[int(np.argmin(runs))]
    steps: list[StepTime] = []
    begin = 0.0
    for i, part in enumerate(parts):
        times = _Times([run[i] for run in all_spans], fastest[i], begin)
        steps += _list_steps(part, times, roofline)
        begin += fastest[i].seconds
    return Profile(title, roofline, tuple(steps), runs)


@dataclass(frozen=True, slots=True)
class Spans:
    """Run of one program: f64[threads, steps], seconds from its start."""

    begin: Array
    end: Array
    busy: Array

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first step to the end of the last one."""
        return float(self.end.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class _Times:
    """All runs of one program, its fastest run, and its start in the fastest run of all parts."""

    runs: Sequence[Spans]
    fastest: Spans
    begin: float


def _run(part: ProfiledProgram, watch: Stopwatch, number: int) -> Spans:
    step, seed = part.prepare(number)
    part.program.run(step, seed, watch)
    return Spans(*watch.read())


def _list_steps(part: ProfiledProgram, times: _Times, roofline: Roofline) -> list[StepTime]:
    """Return the steps of a part with their times, without those that run only once."""
    from engine.kernels.analysis.flops import measure_work

    plan = part.program.plan
    barriers = [step.barrier for step in plan.steps]
    busy = np.median([run.busy for run in times.runs], axis=0)
    wait = np.median([compute_waits(run, barriers) for run in times.runs], axis=0)
    names = {kernel.symbol: _name_kernel(kernel) for kernel in plan.kernels}
    first, last = times.begin + np.stack(lay_boxes(times.fastest))
    rows = []
    for i, (step, done) in enumerate(zip(plan.steps, measure_work(plan), strict=True)):
        rows.append(
            StepTime(
                plan=part.name,
                number=i,
                phase=PHASES[step.phase],
                kernel=names[step.kernel],
                node=forward_node(step.source),
                barrier=step.barrier,
                busy=tuple(map(float, busy[:, i])),
                wait=float(wait[i]),
                flops=done.flops,
                nbytes=done.nbytes,
                uncached=roofline.count_uncached_bytes(done.moves),
                limit=roofline.compute_seconds(done.flops, done.itemsize, done.moves),
                spans=tuple(
                    (float(a), float(b)) for a, b in zip(first[:, i], last[:, i], strict=True)
                ),
                title=part.paths.label_node(forward_node(step.source)),
            )
        )
    return rows[plan.once :]


def lay_boxes(run: Spans) -> tuple[Array, Array]:
    """Return starts and ends of the steps of each thread, laid end to end; f64[threads, steps].

    Steps that a thread interleaves, tile by tile, are drawn as if they ran one after another.
    """
    begin, end = run.begin.copy(), run.end.copy()
    for i in range(begin.shape[1]):
        if i:
            begin[:, i] = np.maximum(begin[:, i], end[:, i - 1])
        # No later than it ended, which the rounded sum may be by a bit: another plan begins there.
        end[:, i] = np.minimum(begin[:, i] + run.busy[:, i], run.end[:, i])
    return begin, end


def compute_waits(run: Spans, barriers: Sequence[bool]) -> Array:
    """Return the average time that threads wait after each step until all have come; f64[steps].

    barriers: whether all threads meet before each step.  They also meet at the end.
    """
    threads, steps = run.begin.shape
    times = np.zeros((threads, steps))
    if steps:
        gaps = np.maximum(run.begin[:, 1:] - run.end[:, :-1], 0.0)
        times[:, :-1] = gaps * np.array(barriers[1:], float)
        times[:, -1] = run.end[:, -1].max() - run.end[:, -1]
    mean: Array = times.mean(axis=0)
    return mean


def forward_node(source: str) -> str:
    """Return the node that a step computes, or whose gradient it computes, by its name."""
    return source.split("_Grad/")[0]


def _name_kernel(kernel: Kernel) -> str:
    """Return the symbol of a kernel, without the digest that replaces long parameters."""
    spec = kernel.spec
    plain = "_".join(map(str, (spec.template, *spec.params)))
    return spec.symbol if spec.symbol == plain else re.sub(r"_[0-9a-f]{10}$", "", spec.symbol)

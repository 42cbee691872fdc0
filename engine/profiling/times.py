"""Times of the steps of one or more plans, their sums, and tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.base.errors import InputError, suggest_nearest
from engine.base.representation import shorten_name
from engine.base.signatures import check_arguments
from engine.drawing.text_table import align_cells
from engine.plan.plan import PHASES
from engine.runtime.roofline import Roofline

By = Literal["phase", "kernel", "node", "step"]
BY: tuple[By, ...] = ("phase", "kernel", "node", "step")


@check_arguments
@dataclass(frozen=True, slots=True)
class StepTime:
    """Step of a plan: its place, its time, and its amount of work.

    plan: the model of its plan, such as `training model`.
    number: among the steps of that plan, from 0.
    phase: `forward`, `backward` or `optimizer`.
    kernel: the kernel's symbol.
    node: the node of the ONNX model that it computes, or whose gradient it computes.
    barrier: whether all threads meet before it.
    busy: seconds that each thread works on it; medians of the runs.
    wait: seconds that the threads wait after it for the slowest thread, on average; median.
    flops: floating-point operations of products, of all threads.
    nbytes: bytes that it reads and writes, each byte of an operand once.
    limit: the least seconds that these take on this machine; see `Roofline.compute_seconds`.
    spans: start and end on each thread, in seconds, in the fastest run.
    title: the name of the node in tables, with its submodule if the model records it; empty: only
        its name.
    uncached: the number of its bytes that this machine's caches cannot hold.
    """

    plan: str
    number: int
    phase: str
    kernel: str
    node: str
    barrier: bool
    busy: tuple[float, ...]
    wait: float
    flops: int
    nbytes: int
    limit: float
    spans: tuple[tuple[float, float], ...]
    title: str = ""
    uncached: int = 0

    @property
    def shown(self) -> str:
        """Name of the node in tables."""
        return self.title or self.node

    @property
    def work(self) -> float:
        """Seconds that a thread works on it, on average."""
        return sum(self.busy) / len(self.busy)

    @property
    def seconds(self) -> float:
        """Contribution to the total time: the mean of its threads, including their waits."""
        return self.work + self.wait


@check_arguments
@dataclass(frozen=True, slots=True)
class Total:
    """Sum of some steps.

    name: their common property. phase: their common phase, or empty. steps, barriers: their
        numbers.
    seconds, wait, flops, nbytes, limit: the sums; see `StepTime`.
    share: the share of the time of all steps, 0 to 1.
    imbalance: the time of the busiest thread of each step over the mean of the threads; 1 is best.
    """

    name: str
    phase: str
    steps: int
    barriers: int
    seconds: float
    wait: float
    flops: int
    nbytes: int
    limit: float
    share: float
    imbalance: float

    @property
    def gflops(self) -> float:
        """Floating-point operations of products, 10^9 a second."""
        return _compute_rate(self.flops, self.seconds)

    @property
    def gigabytes(self) -> float:
        """Bytes read and written, 10^9 a second."""
        return _compute_rate(self.nbytes, self.seconds)

    @property
    def roofline(self) -> float:
        """The least time that the work takes on this machine over the time it took, 0 to 1."""
        return self.limit / self.seconds if self.seconds else 0.0


def _compute_rate(amount: float, seconds: float) -> float:
    return amount / seconds / 1e9 if seconds else 0.0


@check_arguments
@dataclass(frozen=True, slots=True)
class Times:
    """The times of all steps of some plans.  `str` is a table; times are in seconds.

    title: the name of the profiled model.
    roofline: the limits of this machine on the number of threads of the plans.
    steps: the steps of all plans, in order.
    runs: the time of each run of all plans.
    """

    title: str
    roofline: Roofline
    steps: tuple[StepTime, ...]
    runs: tuple[float, ...]

    @property
    def threads(self) -> int:
        """The number of threads of the plans."""
        return self.roofline.threads

    @property
    def seconds(self) -> float:
        """The median time of a run of all plans, from the first step to the end of the last."""
        from statistics import median  # imports decimal: 10 ms

        return median(self.runs)

    @property
    def total(self) -> Total:
        """All steps together."""
        return self._sum("all", self.steps)

    @property
    def by_phase(self) -> tuple[Total, ...]:
        """The sums of forward, backward and optimizer, in this order."""
        totals = self._group_by(lambda step: (step.phase, step.phase))
        return tuple(sorted(totals, key=lambda total: list(PHASES.values()).index(total.phase)))

    @property
    def by_kernel(self) -> tuple[Total, ...]:
        """The sums of each kernel in each phase, the one that takes most time first."""
        return self._group_by(lambda step: (step.kernel, step.phase))

    @property
    def by_node(self) -> tuple[Total, ...]:
        """The sums of each node, its gradient included, the one that takes most time first."""
        return self._group_by(lambda step: (step.shown, ""))

    @property
    def by_step(self) -> tuple[Total, ...]:
        """Every step alone, in the order of the plans."""
        return tuple(
            self._sum(f"{i} {step.kernel}  # {step.shown}", [step])
            for i, step in enumerate(self.steps)
        )

    def by(self, what: str) -> tuple[Total, ...]:
        """Return the sums by `phase`, `kernel`, `node` or `step`.

        Raises:
            InputError: `what` has another value.
        """
        if what not in BY:
            raise InputError(
                f"by={what!r}: expected one of {', '.join(BY)}{suggest_nearest(what, BY)}"
            )
        totals: tuple[Total, ...] = getattr(self, f"by_{what}")
        return totals

    def _group_by(self, key: Callable[[StepTime], tuple[str, str]]) -> tuple[Total, ...]:
        groups: dict[tuple[str, str], list[StepTime]] = {}
        for step in self.steps:
            groups.setdefault(key(step), []).append(step)
        sums = (self._sum(name, steps) for (name, _), steps in groups.items())
        return tuple(sorted(sums, key=lambda total: -total.seconds))

    def _sum(self, name: str, steps: Sequence[StepTime]) -> Total:
        whole = math.fsum(step.seconds for step in self.steps)
        seconds = math.fsum(step.seconds for step in steps)
        work = math.fsum(step.work for step in steps)
        phases = {step.phase for step in steps}
        return Total(
            name,
            phases.pop() if len(phases) == 1 else "",
            len(steps),
            sum(step.barrier for step in steps),
            seconds,
            math.fsum(step.wait for step in steps),
            sum(step.flops for step in steps),
            sum(step.nbytes for step in steps),
            math.fsum(step.limit for step in steps),
            seconds / whole if whole else 0.0,
            math.fsum(max(step.busy) for step in steps) / work if work else 1.0,
        )

    def __str__(self) -> str:
        parts = [self.summary(), self.table("phase"), self.table("kernel"), self.table("node")]
        return "\n".join(parts)

    __repr__ = __str__  # in a notebook

    def summary(self) -> str:
        """Return a few lines: the time, the limits of the machine, the losses at barriers."""
        total, top = self.total, self.roofline
        lost = total.wait / total.seconds if total.seconds else 0.0
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return (
            f"{self.title}, {threads}: {1e3 * self.seconds:.3f} ms, the median of {len(self.runs)} "
            f"runs ({1e3 * min(self.runs):.3f} to {1e3 * max(self.runs):.3f})\n"
            f"{total.steps} steps, {total.barriers} barriers; {100 * lost:.1f} % of the time is "
            f"lost at them; the busiest thread has {total.imbalance:.3f} times the mean\n"
            f"{total.gflops:.1f} GFLOP/s of {top.flops / 1e9:.1f}, {total.gigabytes:.1f} GB/s of "
            f"{top.memory / 1e9:.1f} from memory; {100 * total.roofline:.0f} % of the roofline\n"
        )

    def table(self, by: str = "kernel", most: int = 15) -> str:
        """Return a table of sums, a line for each.

        by: `phase`, `kernel`, `node` or `step`.
        most: the number of lines, plus one for the rest; 0: all.

        Raises:
            InputError: `by` has another value.
        """
        totals = self.by(by)
        shown = totals if not most else totals[:most]
        head = (f"by {by}", "phase", "steps", "ms", "%", "GFLOP/s", "GB/s", "% roof", "imbalance",
                "wait ms")  # fmt: skip
        rows = [head, *(_make_cells(total) for total in shown)]
        left = math.fsum(total.seconds for total in totals[len(shown) :])
        if left:
            rest = sum(total.steps for total in totals[len(shown) :])
            share = left / self.total.seconds
            rows.append((f"{len(totals) - len(shown)} more", "", str(rest), f"{1e3 * left:.3f}",
                         f"{100 * share:.1f}", *[""] * 5))  # fmt: skip
        return align_cells(rows, left=2)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it in a form that JSON can hold; times in seconds, rates per second."""
        return {
            "title": self.title,
            "threads": self.threads,
            "seconds": self.seconds,
            "runs": list(self.runs),
            "roofline": {
                "flops": self.roofline.flops,
                "streams": [{"bytes": n, "speed": speed} for n, speed in self.roofline.streams],
            },
            "total": _convert_total(self.total),
            **{f"by_{by}": [_convert_total(t) for t in self.by(by)] for by in BY if by != "step"},
            "steps": [
                {
                    "plan": s.plan, "number": s.number, "phase": s.phase, "kernel": s.kernel,
                    "node": s.node, "title": s.shown, "barrier": s.barrier, "seconds": s.seconds,
                    "busy": list(s.busy), "wait": s.wait, "flops": s.flops, "bytes": s.nbytes,
                    "limit": s.limit,
                }
                for s in self.steps
            ],
        }  # fmt: skip


def _convert_total(total: Total) -> dict[str, Any]:
    return {
        "name": total.name, "phase": total.phase, "steps": total.steps, "barriers": total.barriers,
        "seconds": total.seconds, "wait": total.wait, "flops": total.flops, "bytes": total.nbytes,
        "limit": total.limit, "share": total.share, "imbalance": total.imbalance,
        "gflops": total.gflops, "gigabytes": total.gigabytes, "roofline": total.roofline,
    }  # fmt: skip


def _make_cells(total: Total) -> tuple[str, ...]:
    """Return the cells of a line of a table; empty ones for work that was not done."""
    return (
        shorten_name(total.name),
        total.phase,
        str(total.steps),
        f"{1e3 * total.seconds:.3f}",
        f"{100 * total.share:.1f}",
        f"{total.gflops:.1f}" if total.flops else "",
        f"{total.gigabytes:.1f}",
        f"{100 * total.roofline:.0f}",
        f"{total.imbalance:.2f}",
        f"{1e3 * total.wait:.3f}",
    )

"""Results of a dry run, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.base.plan_options import Precision
from engine.plan.plan import format_bytes

Status = Literal["trains", "cannot train", "does not fit"]

# Bytes of LLVM in a process whose cache has no kernels; other processes compile, but this one asks
# it for the CPU.  `python -m bench.predictions --cold`.
COMPILER = 45_000_000

NO_GRADIENT, NO_KERNEL = "no gradient", "no kernel"


@dataclass(frozen=True, slots=True)
class Fault:
    """Node that keeps a model from being trained.

    lacks: NO_GRADIENT or NO_KERNEL.
    module: the submodule of the node, if the exporter has recorded it.
    """

    node: str
    op: str
    lacks: str
    reason: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """An input of a training step: as the model declares it, and its shape here, if it is known."""

    name: str
    dtype: str
    declared: tuple[int | str, ...]
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Memory and time of a training step.

    regions: bytes of each region of its plans.
    parts: bytes of the training process by holder; None if the system does not report the memory of
        processes.
    seconds: the time of a step.
    """

    regions: Mapping[str, int]
    parts: Mapping[str, int] | None
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all regions, which a budget bounds."""
        return sum(self.regions.values())

    @property
    def process(self) -> int | None:
        """Peak bytes of the process, if known."""
        return None if self.parts is None else sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Halves:
    """Values and nodes of a training step whose precision is not float32.

    reason: which one "auto" chose, and why; empty if the plan was in the cache.  Of a given one why
        it only saves memory; empty if the CPU multiplies it.
    values: the number of those stored in 16 bits.
    in_float32: the numbers of nodes by operator, the most first, that touch float32 numbers, but no
        value in 16 bits, and round no factors to them.
    reasons: why, with the operators of the nodes that it holds for.
    unnamed: the nodes without a name of their own, which are not counted.
    """

    precision: Precision
    reason: str
    values: int
    in_float32: Mapping[str, int]
    reasons: Mapping[str, Sequence[str]]
    unnamed: int

    def list_lines(self) -> Iterator[str]:
        """Yield the lines of a report."""
        chosen = f"auto: {self.reason}" if self.precision == "auto" and self.reason else ""
        said = chosen or self.reason or self.precision
        yield f"precision {said}  values in 16 bits {self.values}"
        if self.precision == "auto" and not self.values:
            return  # it has chosen float32 for all nodes
        ops = ", ".join(f"{op} {count}" for op, count in self.in_float32.items())
        unnamed = f"; not counted, as they have no name of their own: {self.unnamed}"
        yield f"  nodes in float32: {ops or 'none'}{unnamed if self.unnamed else ''}"
        for why, titles in self.reasons.items():
            yield f"    {why}: {', '.join(titles)}"


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Change, and the figures of a step with it."""

    change: str
    figures: Figures


def sort_by_bytes(suggestions: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """Return suggestions, the least memory first."""
    return tuple(sorted(suggestions, key=lambda s: s.figures.nbytes))


@dataclass(frozen=True, slots=True)
class Check:
    """Prediction of a training run, and of obstacles.

    source: the name of the checked model.
    threads: the number of threads.  kernels: the name of the instruction set of the kernels.
        inputs: the inputs of a step.
    trained, frozen: the numbers of parameters and of their values.
    integers: the number of layers of a step that compute in integers of 8 bits.
    faults: all nodes that keep the model from being trained; empty if it trains.
    why: the planner's error for a model that cannot be trained, or for a budget that no plan keeps
        to; empty if it trains.
    figures: the figures of a step with cached plans that fit the budget or are the smallest; None
        if there is no plan.
    first: the peak bytes of a process that makes its plans; None if unknown.
    budget: the most bytes of all regions, or None.
    least: the least bytes of regions for which there is a plan, if the budget is less.
    suggestions: variants that take less, the least memory first.
    halves: the values and nodes of plans in 16 bits; None if the precision is float32.
    machine: the operations and bytes a second for the estimate of time.
    unsure: whether the machine was busy while that was measured, so that steps may take less.
    """

    source: str
    threads: int
    kernels: str
    inputs: tuple[ModelInput, ...] = ()
    trained: tuple[int, int] = (0, 0)
    frozen: tuple[int, int] = (0, 0)
    integers: int = 0
    faults: tuple[Fault, ...] = ()
    why: str = ""
    figures: Figures | None = None
    first: int | None = None
    budget: int | None = None
    least: int | None = None
    suggestions: tuple[Suggestion, ...] = ()
    halves: Halves | None = None
    machine: tuple[float, float] = (0.0, 0.0)
    unsure: bool = False

    @property
    def status(self) -> Status:
        """Status: whether the model trains, and within the budget."""
        if self.figures is None:
            return "cannot train"
        return "trains" if self.least is None else "does not fit"

    @property
    def cold(self) -> int | None:
        """Peak bytes of a process that makes its plans and whose cache has no kernels."""
        return None if self.first is None else self.first + COMPILER

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as dictionaries and lists."""
        values = asdict(self) | {"status": self.status, "cold": self.cold}
        if self.figures is not None:
            values["figures"] |= _count_totals(self.figures)
        for row, suggestion in zip(values["suggestions"], self.suggestions, strict=True):
            row["figures"] |= _count_totals(suggestion.figures)
        return values

    def __str__(self) -> str:
        return "\n".join(self._list_lines()) + "\n"

    __repr__ = __str__  # in a notebook

    def _list_lines(self) -> Iterator[str]:
        yield f"{self.source}: {self._make_verdict()}"
        for each in self.inputs:
            declared = f"{each.dtype}[{','.join(map(str, each.declared))}]"
            here = "" if each.shape is None else f"  here [{','.join(map(str, each.shape))}]"
            yield f"  input {each.name}  {declared}{here}"
        for title, (count, values) in (("trained", self.trained), ("frozen", self.frozen)):
            yield f"  {title}  {values:,} values in {count} parameters"
        if self.integers:
            yield f"  in integers of 8 bits  {self.integers} layers"
        if self.why:
            yield f"  {self.why}"
        for fault in self.faults:
            of = f" of {fault.module}" if fault.module else ""
            yield f"  {fault.lacks}: {fault.op} {fault.node!r}{of}: {fault.reason}"
        if self.figures is not None:
            yield from self._list_figures(self.figures)
        if self.suggestions:
            yield from self._list_table_rows()

    def _make_verdict(self) -> str:
        if self.status == "cannot train" or self.budget is None:
            return self.status
        bound = format_bytes(self.budget)
        if self.status == "trains":
            return f"trains within {bound}"
        least = (
            ""
            if self.least is None
            else f"; the smallest possible budget is {format_bytes(self.least)}"
        )
        return f"does not fit {bound}{least}"

    def _list_figures(self, found: Figures) -> Iterator[str]:
        regions = "  ".join(f"{name} {format_bytes(n)}" for name, n in found.regions.items())
        yield f"memory, planned  {format_bytes(found.nbytes)}: {regions}"
        if found.parts is not None and found.process is not None:
            rest = {n: b for n, b in found.parts.items() if not n.startswith("region ")}
            told = ", ".join(f"{name} {format_bytes(n)}" for name, n in rest.items())
            yield f"memory, process  {format_bytes(found.process)}: planned, and {told}"
        if self.first is not None and self.cold is not None:
            yield (
                f"  {format_bytes(self.first)} in a process that makes the plans, "
                f"{format_bytes(self.cold)} in one that also compiles the kernels"
            )
        if self.halves is not None:
            yield from self.halves.list_lines()
        flops, speed = self.machine
        yield (
            f"time of a step   {format_seconds(found.seconds)} on {self.threads} threads, at "
            f"{flops / 1e9:.3g} GFLOP/s and {speed / 1e9:.3g} GB/s; kernels {self.kernels}"
        )
        if self.unsure:
            yield (
                "  uncertain: the machine was busy while its speed was measured; a step may take "
                "less time"
            )

    def _list_table_rows(self) -> Iterator[str]:
        rows = [("to need less", "planned", "process", "step")]
        for each in self.suggestions:
            figures = each.figures
            process = "" if figures.process is None else format_bytes(figures.process)
            rows.append(
                (
                    each.change,
                    format_bytes(figures.nbytes),
                    process,
                    format_seconds(figures.seconds),
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for first, *rest in rows:
            cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            yield f"{first.ljust(widths[0])}  {'  '.join(cells)}"


def _count_totals(found: Figures) -> dict[str, int | None]:
    return {"nbytes": found.nbytes, "process": found.process}


def format_seconds(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"

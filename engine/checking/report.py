"""What a dry run has found, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.plan.plan import in_bytes

Status = Literal["trains", "cannot train", "does not fit"]

# Bytes that LLVM takes of a process whose cache has no kernels; others compile, but it is asked
# what CPU this is.  `python -m bench.predictions --cold`.
COMPILER = 45_000_000

NO_GRADIENT, NO_KERNEL = "no gradient", "no kernel"


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that keeps a model from being trained.

    lacks: NO_GRADIENT or NO_KERNEL.
    module: the submodule that it is of, as far as the exporter has written it down.
    """

    node: str
    op: str
    lacks: str
    reason: str
    module: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a training step: as the model declares it, and its shape here, if it is known."""

    name: str
    dtype: str
    declared: tuple[int | str, ...]
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a training step takes.

    regions: bytes of each region of its plans.
    parts: bytes of the process that trains, by what holds them; None where the system does not
        tell the memory of a process.
    seconds: of a step.
    """

    regions: Mapping[str, int]
    parts: Mapping[str, int] | None
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of all regions: what a budget bounds."""
        return sum(self.regions.values())

    @property
    def process(self) -> int | None:
        """The most bytes of the process, if they are known."""
        return None if self.parts is None else sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A change, and what a step takes with it."""

    change: str
    figures: Figures


def by_bytes(suggestions: Iterable[Suggestion]) -> tuple[Suggestion, ...]:
    """Suggestions, the least memory first."""
    return tuple(sorted(suggestions, key=lambda s: s.figures.nbytes))


@dataclass(frozen=True, slots=True)
class Check:
    """What a training will take, and what keeps it from being one.

    source: what was checked.
    threads: of a step.  kernels: the name of the set that it runs on.
    inputs: of a step.
    trained, frozen: how many parameters there are, and how many values they have.
    faults: all nodes that keep the model from being trained; empty if it trains.
    why: what the planner says of a model that cannot be trained, or of a budget that no plan keeps
        to; empty if it trains.
    figures: of a step whose plans are kept, and fit the budget or are the smallest; None if there
        is no plan.
    first: the most bytes of a process that makes its plans; None if that is not known.
    budget: the bytes that all regions may have; None for any.
    least: the least bytes of regions for which there is a plan, where the budget is less.
    suggestions: what would take less, the least memory first.
    machine: operations and bytes a second by which the time was reckoned.
    unsure: whether the machine was busy while that was measured, so that steps may take less.
    """

    source: str
    threads: int
    kernels: str
    inputs: tuple[Input, ...] = ()
    trained: tuple[int, int] = (0, 0)
    frozen: tuple[int, int] = (0, 0)
    faults: tuple[Fault, ...] = ()
    why: str = ""
    figures: Figures | None = None
    first: int | None = None
    budget: int | None = None
    least: int | None = None
    suggestions: tuple[Suggestion, ...] = ()
    machine: tuple[float, float] = (0.0, 0.0)
    unsure: bool = False

    @property
    def status(self) -> Status:
        """Whether the model trains, and within the budget."""
        if self.figures is None:
            return "cannot train"
        return "trains" if self.least is None else "does not fit"

    @property
    def cold(self) -> int | None:
        """The most bytes of a process that makes its plans and whose cache has no kernels."""
        return None if self.first is None else self.first + COMPILER

    def as_dict(self) -> dict[str, Any]:
        """All of it as dictionaries and lists."""
        found = asdict(self) | {"status": self.status, "cold": self.cold}
        if self.figures is not None:
            found["figures"] |= _totals(self.figures)
        for row, suggestion in zip(found["suggestions"], self.suggestions, strict=True):
            row["figures"] |= _totals(suggestion.figures)
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"{self.source}: {self._verdict()}"
        for each in self.inputs:
            declared = f"{each.dtype}[{','.join(map(str, each.declared))}]"
            here = "" if each.shape is None else f"  here [{','.join(map(str, each.shape))}]"
            yield f"  input {each.name}  {declared}{here}"
        for title, (count, values) in (("trained", self.trained), ("frozen", self.frozen)):
            yield f"  {title}  {values:,} values in {count} parameters"
        if self.why:
            yield f"  {self.why}"
        for fault in self.faults:
            of = f" of {fault.module}" if fault.module else ""
            yield f"  {fault.lacks}: {fault.op} {fault.node!r}{of}: {fault.reason}"
        if self.figures is not None:
            yield from self._figures(self.figures)
        if self.suggestions:
            yield from self._table()

    def _verdict(self) -> str:
        if self.status == "cannot train" or self.budget is None:
            return self.status
        bound = in_bytes(self.budget)
        if self.status == "trains":
            return f"trains within {bound}"
        least = "" if self.least is None else f"; {in_bytes(self.least)} is the least that would do"
        return f"does not fit {bound}{least}"

    def _figures(self, found: Figures) -> Iterator[str]:
        regions = "  ".join(f"{name} {in_bytes(n)}" for name, n in found.regions.items())
        yield f"memory, planned  {in_bytes(found.nbytes)}: {regions}"
        if found.parts is not None and found.process is not None:
            rest = {n: b for n, b in found.parts.items() if not n.startswith("region ")}
            told = ", ".join(f"{name} {in_bytes(n)}" for name, n in rest.items())
            yield f"memory, process  {in_bytes(found.process)}: the same and {told}"
        if self.first is not None and self.cold is not None:
            yield (
                f"  {in_bytes(self.first)} where its plans are made, {in_bytes(self.cold)} where "
                "kernels are compiled, too"
            )
        flops, speed = self.machine
        yield (
            f"time of a step   {seconds_text(found.seconds)} on {self.threads} threads, by "
            f"{flops / 1e9:.3g} GFLOP/s and {speed / 1e9:.3g} GB/s; kernels {self.kernels}"
        )
        if self.unsure:
            yield (
                "  unsure: the machine was busy while its speed was measured, and runs differed; a "
                "step may take less"
            )

    def _table(self) -> Iterator[str]:
        rows = [("what would take less", "planned", "process", "step")]
        for each in self.suggestions:
            found = each.figures
            process = "" if found.process is None else in_bytes(found.process)
            rows.append((each.change, in_bytes(found.nbytes), process, seconds_text(found.seconds)))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        for first, *rest in rows:
            cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            yield f"{first.ljust(widths[0])}  {'  '.join(cells)}"


def _totals(found: Figures) -> dict[str, int | None]:
    return {"nbytes": found.nbytes, "process": found.process}


def seconds_text(seconds: float) -> str:
    """A time for people."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} us"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"

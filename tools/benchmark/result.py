"""Results of a benchmark: rows, their table, their file, and the comparison of two."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from engine.base.errors import FileError, InputError
from engine.drawing.text_table import align_cells
from engine.system import files

RATIO = 5  # the column that has the time of a step over a forward pass's
KIND, VERSION = "edgegrad bench", 1  # what a file says of itself
# Facts of a machine that change from hour to hour and make no other machine of it.
PASSING = ("load", "date", "temperature", "frequency now")


@dataclass(frozen=True, slots=True)
class Peer:
    """Same step by another library.

    seconds: the median time of a step. ratio: the median of its turns over the median of ours,
        measured in turns; above 1 it is slower.
    start: seconds from the start of its process to the end of its first step, with all that it
        compiles.
    joules: of the processors for a step; NaN: unknown.
    """

    seconds: float
    ratio: float
    start: float = math.nan
    joules: float = math.nan


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """Workload on a number of threads; times are in seconds.

    batch: samples of a step.
    step: a training step, forward, backward and update: the median; count: of how many.
    spread: the distance of the quartiles of these, over the median.
    inference: a forward pass with the loss, the median.
    flops: floating-point operations of the products of a training step.
    peak: the multiply-adds of this machine on these threads, in operations a second.
    memory: the most bytes that the process has had resident; 0: unknown.
    start: from the start of a process to the end of its first step, plans and kernels being kept.
    peers: other libraries by name.
    failed: why there are no figures.
    predicted: a training step on as many cores as threads; NaN: not asked for.
    joules: of the processors for a training step, or an answer; NaN: the machine does not tell.
    """

    workload: str
    batch: int
    threads: int
    step: float = math.nan
    count: int = 0
    spread: float = math.nan
    inference: float = math.nan
    flops: int = 0
    peak: float = math.nan
    memory: int = 0
    start: float = math.nan
    peers: Mapping[str, Peer] = field(default_factory=dict)
    failed: str = ""
    predicted: float = math.nan
    joules: float = math.nan

    @property
    def key(self) -> tuple[str, int, int]:
        """Key by which rows of two results correspond."""
        return self.workload, self.batch, self.threads

    @property
    def ratio(self) -> float:
        """A training step over a forward pass."""
        return self.step / self.inference

    @property
    def gflops(self) -> float:
        """Operations of products, 10^9 a second."""
        return self.flops / self.step / 1e9


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a benchmark: the machine, and the rows.

    what: `step`, or `answer`: rows then have the times of an answer in the place of a step's.
    """

    machine: Mapping[str, str]
    rows: tuple[BenchmarkRow, ...]
    what: str = "step"

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row.peers))
        head = ["workload" if self.what == "step" else "model", "batch", "threads",
                f"{self.what} ms", "± %", "train/infer", "GFLOP/s", "% of peak", "memory MB",
                "start s"]  # fmt: skip
        is_predicted = any(math.isfinite(row.predicted) for row in self.rows)
        is_metered = any(math.isfinite(row.joules) for row in self.rows)
        head += ["predicted ms"] * is_predicted + [f"J a {self.what}"] * is_metered
        for name in names:
            head += [f"{name} ms", "ratio", *["J"] * is_metered]
        cells = [head, *(_list_cells(row, names, is_predicted, is_metered) for row in self.rows)]
        if self.what != "step":  # no row has both
            cells = [[*row[:RATIO], *row[RATIO + 1 :]] for row in cells]
        table = align_cells(cells)
        failed = [f"{r.workload}, {r.threads} threads: {r.failed}\n" for r in self.rows if r.failed]
        return "".join([self.list_facts(), "\n", table, *failed])

    def list_facts(self) -> str:
        """Return the facts about the machine, a line each."""
        width = max(map(len, self.machine), default=0)
        return "".join(f"{name:{width}}  {value}\n" for name, value in self.machine.items())

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, as JSON can hold it; unknown numbers are None."""
        return {
            "kind": KIND,
            "version": VERSION,
            "what": self.what,
            "machine": dict(self.machine),
            "rows": [_convert(asdict(row)) for row in self.rows],
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as a JSON file.

        Raises:
            FileError: it cannot be written.
        """
        text = json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n"
        files.write(os.fspath(path), [text.encode()])


def read(path: str | os.PathLike[str]) -> Result:
    """Read a file that `Result.write`, or `edgegrad bench --json`, has written.

    Raises:
        FileError: it cannot be read, or is something else.
    """
    name = os.fspath(path)
    try:
        content = json.loads(files.read(name, "benchmark"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise FileError(f"benchmark {name!r}: not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FileError(f"benchmark {name!r}: expected a file of `edgegrad bench --json`")
    if content.get("version") != VERSION:
        raise FileError(
            f"benchmark {name!r}: version {content.get('version')!r}; this version of edgegrad "
            f"reads {VERSION}"
        )
    try:
        rows = tuple(_parse_row(row) for row in content["rows"])
        machine = {str(name): str(value) for name, value in content["machine"].items()}
        what = str(content.get("what", "step"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"benchmark {name!r}: damaged ({type(error).__name__}: {error})") from None
    return Result(machine, rows, what)


def _parse_row(values: Mapping[str, Any]) -> BenchmarkRow:
    """Return a row of a file; None is a number that is not known."""
    known = {f.name for f in fields(BenchmarkRow)}
    given: dict[str, Any] = {
        name: math.nan if value is None else value
        for name, value in values.items()
        if name in known
    }
    given["peers"] = {
        str(name): Peer(*(math.nan if peer.get(n) is None else float(peer[n]) for n in _PEER))
        for name, peer in values.get("peers", {}).items()
    }
    row = BenchmarkRow(**given)
    numbers = (row.batch, row.threads, row.step, row.spread, row.inference, row.flops, row.peak,
               row.memory, row.start, row.predicted, row.joules)  # fmt: skip
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{value!r} is not a number")
    return row


_PEER = tuple(f.name for f in fields(Peer))


def compare(first: Result, second: Result, names: Sequence[str]) -> str:
    """Return two results side by side, with the ratio of each row, and how their circumstances
    differ.

    names: what the results are called.

    Raises:
        InputError: one has steps, and the other one answers.
    """
    if first.what != second.what:
        raise InputError(
            f"{names[0]} has times of {first.what}s and {names[1]} of {second.what}s: expected two "
            "files of the same kind"
        )
    ours, theirs = ({row.key: row for row in result.rows} for result in (first, second))
    rows = [["workload", "batch", "threads", "A ms", "± %", "B ms", "± %", "B/A", "memory B/A",
             "start B/A"]]  # fmt: skip
    for key in ours:
        if key in theirs:
            rows.append(_compare_values(ours[key], theirs[key]))
    lines = [f"A: {names[0]}\nB: {names[1]}\n\n"]
    if len(rows) > 1:
        lines += [align_cells(rows), "\nA ratio below 1: B is faster, or needs less.\n"]
    else:
        lines.append("no row is in both\n")
    for name, mine, other in (("A", ours, theirs), ("B", theirs, ours)):
        alone = [_name_fact(key) for key in mine if key not in other]
        if alone:
            lines.append(f"in {name} alone: {', '.join(alone)}\n")
    different = list_differences(first.machine, second.machine)
    if different:
        lines.append("\nThe two differ in more than what is compared:\n")
        lines.append(align_cells([["", "A", "B"], *different], left=3))
    return "".join(lines)


def list_differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[list[str]]:
    """Name and both values of each fact in which two machines or installations differ."""
    every = dict.fromkeys((*first, *second))
    rows = [[name, first.get(name, "unknown"), second.get(name, "unknown")] for name in every]
    return [row for row in rows if row[0] not in PASSING and row[1] != row[2]]


def _name_fact(key: tuple[str, int, int]) -> str:
    workload, batch, threads = key
    return f"{workload} b{batch} {threads} thread{'s' if threads > 1 else ''}"


def _compare_values(a: BenchmarkRow, b: BenchmarkRow) -> list[str]:
    workload, batch, threads = a.key
    memory = b.memory / a.memory if a.memory and b.memory else math.nan
    return [
        workload, str(batch), str(threads),
        _format_number(1e3 * a.step), _format_number(100 * a.spread, 0),
        _format_number(1e3 * b.step), _format_number(100 * b.spread, 0),
        _format_number(b.step / a.step, 3),
        _format_number(memory), _format_number(b.start / a.start),
    ]  # fmt: skip


def _list_cells(
    row: BenchmarkRow, peers: Sequence[str], is_predicted: bool, is_metered: bool
) -> list[str]:
    cells = [
        row.workload, str(row.batch), str(row.threads), _format_number(1e3 * row.step),
        _format_number(100 * row.spread, 0), _format_number(row.ratio),
        _format_number(row.gflops, 1),
        _format_number(100 * row.gflops * 1e9 / row.peak, 0),
        _format_number(row.memory / 1e6, 0) if row.memory else "", _format_number(row.start),
    ]  # fmt: skip
    if is_predicted:
        cells.append(_format_number(1e3 * row.predicted))
    if is_metered:
        cells.append(_format_number(row.joules, 4))
    for name in peers:
        peer = row.peers.get(name, Peer(math.nan, math.nan))
        cells += [_format_number(1e3 * peer.seconds), _format_number(peer.ratio)]
        if is_metered:
            cells.append(_format_number(peer.joules, 4))
    return cells


def _format_number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else ""


def _convert(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {name: _convert(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

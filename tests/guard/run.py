"""Runs of rows in worker processes: what strays is found, named, and the rest goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.guard.rows import KINDS, cases, planned, target_of
from tests.guard.walk import WORDS
from tests.guard.worker import NOTE
from tests.support.places import ROOT

# How a kernel ends a process that strays, divides by 0, or does not come to an end.
ENDS = signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGVTALRM


@dataclass
class Report:
    """Results of a run.

    strays: one text for each kernel call that reads or writes outside of its operands.
    """

    plans: int = 0
    calls: int = 0
    templates: set[str] = field(default_factory=set)
    strays: list[str] = field(default_factory=list)


def run(
    rows: Sequence[int], level: str = "host", kinds: Iterable[int] = range(len(KINDS))
) -> Report:
    """Run rows, by their numbers among `cases()`, in worker processes."""
    report, left = Report(), list(rows)
    chosen = ",".join(map(str, kinds))
    while left:
        lines, note = _worker(level, chosen, [str(row) for row in left])
        finished = _read(report, lines, level)
        if finished:
            break
        report.strays.append(_named(level, note))
        left = left[left.index(note["row"]) + 1 :]
    return report


def _read(report: Report, lines: list[dict[str, Any]], level: str) -> bool:
    """Add what a worker has printed to a report; returns whether it came to its end."""
    for line in lines:
        if "stray" in line:
            report.strays.append(f"{_title(level, line)}: {line['stray']}")
        else:
            report.plans += line["done"]["plans"]
            report.calls += line["done"]["calls"]
            report.templates |= set(line["templates"])
            return True
    return False


def _worker(level: str, kinds: str, rows: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the output of a worker, and its last note."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "note")
        path.write_bytes(bytes(NOTE))
        command = [sys.executable, "-m", "tests.guard.worker", str(path), level, kinds, *rows]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        raw = path.read_bytes().strip(b" \0")
        if done.returncode not in (0, *(-s for s in ENDS)):
            raise RuntimeError(f"{raw.decode()}\n{done.stderr}")
    note = {**json.loads(raw or b"{}"), "code": done.returncode}
    return [json.loads(line) for line in done.stdout.splitlines()], note


def _title(level: str, note: dict[str, Any]) -> str:
    return f"{cases()[note['row']].id} {KINDS[note['kind']]} {level}"


def _named(level: str, note: dict[str, Any]) -> str:
    """The text for a worker that died: its row, step, operand and side."""
    title = _title(level, note)
    if note["step"] < 0:
        return f"{title}: died while planning"
    place = f"{note['row']}:{note['kind']}:{note['step']}:{note['side']}"
    _, again = _worker(level, str(note["kind"]), [place])
    made = planned(cases()[note["row"]], KINDS[note["kind"]], target_of(level))
    assert made is not None
    step = made[0].steps[note["step"]]
    operand = again.get("operand") if again["code"] else None
    what = "several together" if operand is None else "words" if operand == WORDS else operand
    return (
        f"{title}: step {note['step']} {step.kernel}{[str(a) for a in step.args]}: operand {what} "
        f"of {len(step.args)}, past its {note['side']}"
    )


@dataclass
class Forgery:
    """Results of forged plans.

    strays: a text for each that was let pass and reads or writes outside.  slow: for each whose
        call took too long, which no reach bounds.
    """

    forged: int = 0
    refused: int = 0
    calls: int = 0
    strays: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)


def run_forged(count: int, seed: int = 0, level: str = "host") -> Forgery:
    """Forge so many plans in worker processes, and run those that are let pass."""
    report, left = Forgery(), count
    while left > 0:
        lines, note = _worker(level, "forge", [str(seed), str(left)])
        counts = next((line["done"] for line in lines if "done" in line), note)
        report.strays += [f"{line['title']}: {line['stray']}" for line in lines if "stray" in line]
        if counts is note:
            ends = report.slow if note["code"] == -signal.SIGVTALRM else report.strays
            ends.append(f"{note['title']}: {note['kernel']}: {note['what']} ({note['code']})")
        report.forged += counts["forged"]
        report.refused += counts["refused"]
        report.calls += counts["calls"]
        left, seed = left - counts["forged"], seed + 1_000_003
    return report

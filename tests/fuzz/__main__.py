"""The command: `python -m tests.fuzz N [--seed S] [--what models,checkpoints,...]`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import workers
from tests.fuzz.kind import Kind
from tests.fuzz.kinds import KINDS


def main() -> int:
    """Run mutations of all kinds in turn, print what became of them, and keep the defects."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000, help="mutations in all")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first")
    parser.add_argument("--what", default=",".join(KINDS), help="kinds: " + ",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="for defects")
    parser.add_argument("--replay", metavar="KIND:SEED", help="run one in this process")
    options = parser.parse_args()
    if options.replay:
        name, _, seed = options.replay.partition(":")
        return replay(KINDS[name], int(seed), options.folder)
    kinds = [KINDS[name] for name in options.what.split(",")]
    return fuzz(kinds, options.count, options.seed, options.jobs, options.folder)


def fuzz(kinds: list[Kind], count: int, first: int, jobs: int, folder: Path) -> int:
    """Run `count` mutations; returns the exit status."""
    for kind in kinds:
        kind.prepare()
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(kinds[n % len(kinds)].name, first + n // len(kinds)) for n in range(count)]
    outcomes, seen = Counter[tuple[str, str]](), Counter[str]()
    begin, cpu = time.monotonic(), os.times()
    with contextlib.suppress(KeyboardInterrupt):  # what was found until then is reported
        for n, result in enumerate(workers.run(kinds, tasks, jobs, folder), 1):
            name, seed = result.task
            outcomes[name, result.outcome] += 1
            if result.is_defect:
                seen[result.outcome] += 1
                if seen[result.outcome] == 1:
                    print(f"{name}:{seed}  {result.outcome}", flush=True)
                if seen[result.outcome] <= 3:
                    keep(KINDS[name], result, folder)
            if n % 5000 == 0:
                print(f"{n} of {count} in {time.monotonic() - begin:.0f} s", flush=True)
    print(table(outcomes))
    now = os.times()
    used = sum(now[:4]) - sum(cpu[:4])
    print(
        f"{outcomes.total()} mutations, seeds from {first}, {used:.0f} s of CPU, "
        f"{seen.total()} defects"
    )
    return 1 if seen else 0


def keep(kind: Kind, result: workers.Result, folder: Path) -> None:
    """Write the input of a defect and what is known of it, under the name of its kind and seed."""
    name, seed = result.task
    path = folder / f"{name}-{seed}"
    subject, steps = kind.made(seed)
    path.with_suffix(".txt").write_text(
        f"python -m tests.fuzz --replay {name}:{seed}\n{result.outcome}, {steps} changes\n\n"
        f"{result.detail}\n",
        errors="replace",
    )
    path.with_suffix(kind.suffix).write_bytes(kind.content(subject))


def replay(kind: Kind, seed: int, folder: Path) -> int:
    """Run one mutation in this process, then with as few changes as do the same."""
    kind.prepare()
    workers.bounded()
    timed = workers.timed(kind, seed)
    print(timed.outcome, timed.detail, sep="\n")
    subject, steps = kind.made(seed)
    needed = set(range(steps))
    for step in range(steps if timed.is_defect else 0):
        fewer = frozenset(needed - {step})
        if workers.timed(kind, seed, fewer).outcome == timed.outcome:
            needed.discard(step)
            subject, _ = kind.made(seed, fewer)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind.name}-{seed}{kind.suffix}"
    path.write_bytes(kind.content(subject))
    print(f"{path}: changes {sorted(needed)} of {steps}")
    return int(timed.is_defect)


def table(outcomes: Counter[tuple[str, str]]) -> str:
    """A row for every kind, a column for every outcome."""
    columns = sorted({outcome for _, outcome in outcomes})
    lines = ["| kind | all |" + "".join(f" {c} |" for c in columns)]
    lines.append("|---|" + "---|" * (len(columns) + 1))
    for name in dict.fromkeys(name for name, _ in outcomes):
        cells = [outcomes[name, c] for c in columns]
        lines.append(f"| {name} | {sum(cells)} |" + "".join(f" {n or ''} |" for n in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""The command: `python -m tests.random_graphs N [--seed S] [--replay SEED | FILE.onnx]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import workers
from tests.random_graphs.kind import RandomGraphs, kept, load, replay, save


def main() -> int:
    """Make and compare random graphs, print what became of them, and keep the defects."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100, help="graphs in all")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--closed", action="store_true", help="compile no formula: faster")
    parser.add_argument("--folder", type=Path, default=Path("build/random_graphs"))
    parser.add_argument("--replay", metavar="SEED|FILE", help="compare one in this process")
    options = parser.parse_args()
    kind = RandomGraphs(options.folder, open_too=not options.closed)
    if options.replay:
        given = options.replay
        return replay(kind, load(Path(given)) if given.endswith(".onnx") else int(given))
    return run(kind, options.count, options.seed, options.jobs)


def run(kind: RandomGraphs, count: int, first: int, jobs: int) -> int:
    """Compare `count` graphs; returns the exit status."""
    kind.folder.mkdir(parents=True, exist_ok=True)
    kind.log.unlink(missing_ok=True)
    tasks = [(kind.name, seed) for seed in range(first, first + count)]
    seen, begin = Counter[str](), time.monotonic()
    for n, result in enumerate(workers.run([kind], tasks, jobs, kind.folder), 1):
        if result.is_defect:
            seen[result.outcome] += 1
            path = kind.folder / f"whole-{result.task[1]}.onnx"
            print(f"python -m tests.random_graphs --replay {path}  {result.outcome}", flush=True)
            print("   ", *result.detail.strip().splitlines()[-1:], flush=True)
            save(kind.folder / f"{result.task[1]}.txt", result.detail)
        if n % 100 == 0:
            print(f"{n} of {count} in {time.monotonic() - begin:.0f} s", flush=True)
    lines = [json.loads(line) for line in kind.log.read_text().splitlines()]
    print(kept(lines))
    print(f"{count} graphs, seeds from {first}, {seen.total()} defects")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())

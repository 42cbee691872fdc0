"""`python -m tests.guard`: case rows between guard pages, for the levels that this CPU has.

--every N   each Nth row alone; --level NAME: this level alone, or "host"
--forge N   forge N plans instead; --seed S: others
"""

from __future__ import annotations

import argparse
import sys

from engine.kernels.machine.levels import list_levels
from tests.guard.rows import cases
from tests.guard.run import run, run_forged

BATCH = 200  # rows of a worker


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.guard", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--level", action="append")
    parser.add_argument("--forge", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.forge:
        return forge(given.forge, given.seed)
    rows = range(0, len(cases()), given.every)
    failed = False
    for level in given.level or [level.name for level in list_levels()]:
        plans, calls, strays = 0, 0, 0
        templates: set[str] = set()
        for at in range(0, len(rows), BATCH):
            report = run(rows[at : at + BATCH], level)
            plans, calls = plans + report.plans, calls + report.calls
            templates |= report.templates
            strays += len(report.strays)
            print(*report.strays, sep="\n", end="\n" if report.strays else "", flush=True)
        print(
            f"{level}: {len(rows)} rows, {plans} plans, {calls} calls of {len(templates)} kernel "
            f"templates; {strays} strays",
            flush=True,
        )
        failed |= strays > 0
    return int(failed)


def forge(count: int, seed: int) -> int:
    """Forge plans, and print what came of them."""
    report = run_forged(count, seed)
    for kind, texts in (("strays", report.strays), ("slow", report.slow)):
        for text in texts:
            print(f"{kind}: {text}")
    print(
        f"{report.forged} plans forged, {report.refused} refused, {report.calls} run between "
        f"guards; {len(report.strays)} strays, {len(report.slow)} ended as too slow"
    )
    return int(bool(report.strays))


if __name__ == "__main__":
    sys.exit(main())

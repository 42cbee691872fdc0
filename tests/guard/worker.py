"""The process that runs rows between guard pages, and dies where a kernel strays.

    python -m tests.guard.worker NOTES LEVEL KINDS ROW...
    python -m tests.guard.worker NOTES LEVEL forge SEED COUNT

NOTES: a file of `NOTE` bytes, in which it says what it is about to run.  KINDS: their numbers, with
commas.  A row of the form ROW:KIND:STEP:SIDE runs its step once for each operand alone at a guard.
"""

from __future__ import annotations

import json
import mmap
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.target import Target
from engine.plan.plan import REGIONS, Plan
from tests.guard.forge import forge, passes, subjects, try_out
from tests.guard.rows import KINDS, cases, planned, target_of
from tests.guard.walk import WORDS, NextCall, StrayError, Walk

NOTE = 1024
LONG = 1000  # plans to forge, from which on trainings are among them
SECONDS = 20.0  # of CPU time that a forged call may take
Say = Callable[..., None]


def notes(path: Path) -> Say:
    """A function that writes its arguments into the file, at once."""
    file = path.open("r+b")
    shared = mmap.mmap(file.fileno(), NOTE)

    def say(**what: Any) -> None:
        shared[:] = json.dumps(what).encode()[:NOTE].ljust(NOTE)

    return say


def memory(plan: Plan, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The regions of a plan: NaN where nothing is, its constants, and its inputs, 0 by default."""
    regions = {r: np.full(plan.compute_region_bytes(r), 0xFF, np.uint8) for r in REGIONS}
    for index, data in plan.constants:
        at = plan.buffers[index].offset
        regions["const"][at : at + len(data)] = np.frombuffer(data, np.uint8)
    for port in plan.inputs:
        b = plan.buffers[port.buffer]
        given = inputs.get(port.name)
        raw = np.zeros(b.nbytes, np.uint8) if given is None else bytes_of(given)
        regions[b.region][b.offset : b.offset + raw.size] = raw
    return regions


def bytes_of(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)


def forging(say: Say, target: Target, seed: int, count: int) -> None:
    """Forge plans, and run what is not refused; after `SECONDS` of a call the process ends."""
    rng = random.Random(seed)
    counts = {"forged": 0, "refused": 0, "calls": 0}
    ran: set[str] = set()
    for title, plan in subjects(rng, target, count >= LONG):
        walk = Walk(
            plan, get_linker(target).get_addresses(plan.kernels), memory(plan, {}), lambda _: None
        )
        for n in range(len(plan.steps)):
            if not plan.steps[n].tiles:
                walk.call(n, 0, "middle", None)
        for _ in range(min(4 * len(plan.steps), 40)):
            forged = forge(plan, rng)
            counts["forged"] += 1
            if not passes(forged.plan, target):
                counts["refused"] += 1
                continue
            say(
                title=title[:150], what=forged.what, kernel=plan.steps[forged.step].kernel, **counts
            )
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                try_out(walk, forged, rng)
            except StrayError as error:
                print(json.dumps({"title": title, "stray": f"{forged.what}: {error}"}), flush=True)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            counts["calls"] += 1
            ran.add(plan.steps[forged.step].kernel)
        if counts["forged"] >= count:
            break
    print(json.dumps({"done": counts, "kernels": len(ran)}), flush=True)


def main() -> None:
    path, level, kinds, *rows = sys.argv[1:]
    say, target = notes(Path(path)), target_of(level)
    if kinds == "forge":
        forging(say, target, int(rows[0]), int(rows[1]))
        return
    counts = {"plans": 0, "calls": 0}
    kernels: set[str] = set()
    for text in rows:
        number, *rest = text.split(":")
        row = int(number)
        for k in [int(rest[0])] if rest else map(int, kinds.split(",")):
            say(row=row, kind=k, step=-1)
            made = planned(cases()[row], KINDS[k], target)
            if made is None:
                continue
            plan = made[0]
            addresses = get_linker(target).get_addresses(plan.kernels)
            counts["plans"] += 1
            kernels |= {f"{s.template}" for s in plan.specs}

            def announce(call: NextCall, row: int = row, kind: int = k) -> None:
                say(row=row, kind=kind, step=call.step, side=call.side, operand=call.operand)

            walk = Walk(plan, addresses, memory(*made), announce)
            try:
                if rest:
                    name_operand(walk, int(rest[1]), rest[2])
                else:
                    walk.run()
            except StrayError as error:
                print(json.dumps({"row": row, "kind": k, "stray": str(error)}), flush=True)
            counts["calls"] += walk.calls
    print(json.dumps({"done": counts, "templates": sorted(kernels)}), flush=True)


def name_operand(walk: Walk, bad: int, side: Any) -> None:
    """Run a plan to step `bad`, and that step for each operand alone at a guard."""
    n = 0
    while n <= bad:
        steps = range(n, n + max(walk.plan.steps[n].group, 1))
        if bad in steps:
            for operand in (WORDS, *range(len(walk.operands(bad)))):
                walk.tiles(steps, side, (bad, operand))
        else:
            walk.tiles(steps, "middle")
        n = steps.stop


if __name__ == "__main__":
    main()

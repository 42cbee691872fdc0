"""Forged plans: either they are refused, or their calls stay inside of their operands.

A step of a plan gets another number, another operand, or another table of constants.  Where
`verify` and `check` let the plan pass, the step runs between guard pages, on what a run of the
plan has left in memory, or on the same bytes in disorder: what is declared holds for all data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import PlanError
from engine.kernels.analysis.bounds import check
from engine.kernels.machine.target import Target
from engine.kernels.vocabulary.call import Machine
from engine.plan.plan import Arg, Plan, PlanStep
from engine.plan.verify import verify
from engine.tools.dev import optimizer_plans
from engine.tools.trimmed.options import PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from tests.guard.rows import KINDS, cases, planned
from tests.guard.walk import SIDES, Walk
from tests.support.places import GOLDENS

ELEMENTS = 1 << 16  # of the parameters of plans of optimizers
WORDS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 255, 4096, 1 << 20, 1 << 31, 1 << 40)


def subjects(rng: random.Random, target: Target, whole: bool) -> Iterator[tuple[str, Plan]]:
    """Plans to forge, without end: rows at random, and if `whole` now and then a training run's."""
    made_whole = list(trainings(target)) if whole else []
    while True:
        if made_whole and rng.random() < 0.1:
            yield rng.choice(made_whole)
        row, kind = rng.randrange(len(cases())), rng.randrange(len(KINDS))
        made = planned(cases()[row], KINDS[kind], target)
        if made is not None and made[0].steps:
            yield f"{cases()[row].id} {KINDS[kind]}", made[0]


def trainings(target: Target) -> Iterator[tuple[str, Plan]]:
    """Plans of optimizers and of goldens, joined ones too."""
    for name, method in optimizer_plans.ROWS.items():
        yield name, optimizer_plans.plan_of(method, ELEMENTS)
    yield "rows of a table", optimizer_plans.plan_of_table()
    for folder in sorted(p.parent for p in GOLDENS.glob("*/training_model.onnx")):
        for joined in (False, True):
            made = make_plans(list_artifacts(folder), target, PlanRequest([4], 2, joined=joined))
            for plan in made.plans.values():
                yield f"{folder.name} {plan.name}", plan


@dataclass(frozen=True, slots=True)
class Forged:
    """A forged plan; step: where it differs from the one it was made of; what: how."""

    plan: Plan
    step: int
    what: str


def forge(plan: Plan, rng: random.Random) -> Forged:
    """A plan with one thing changed."""
    n = rng.randrange(len(plan.steps))
    step = plan.steps[n]
    ways: list[Callable[[Plan, int, PlanStep, random.Random], Forged | None]] = [
        _word, _word, _word, _word, _word, _operand, _mode, _table, _tiles,
    ]  # fmt: skip
    while True:
        made = rng.choice(ways)(plan, n, step, rng)
        if made is not None:
            return made


def _with(plan: Plan, n: int, what: str, **changes: object) -> Forged:
    steps = list(plan.steps)
    steps[n] = replace(steps[n], **changes)  # type: ignore[arg-type]  # fields of a step
    return Forged(replace(plan, steps=tuple(steps)), n, f"step {n}: {what}")


def _word(plan: Plan, n: int, step: PlanStep, rng: random.Random) -> Forged | None:
    places = [i for i, c in enumerate(step.consts) if isinstance(c, int)]
    if not places:
        return None
    at, consts = rng.choice(places), list(step.consts)
    old = int(consts[at])
    near = [old + 1, old - 1, 2 * old, old // 2, -old, old + 16, int(consts[rng.choice(places)])]
    consts[at] = rng.choice([*near, *near, *WORDS, -1, -(1 << 40)])
    return _with(plan, n, f"number {at} is {consts[at]}, was {old}", consts=tuple(consts))


def _operand(plan: Plan, n: int, step: PlanStep, rng: random.Random) -> Forged | None:
    """Another buffer of the same type, or none."""
    if not step.args:
        return None
    at, args = rng.randrange(len(step.args)), list(step.args)
    old = args[at]
    if old.buffer < 0:
        return None
    kind = plan.buffers[old.buffer].dtype
    others = [i for i, b in enumerate(plan.buffers) if b.dtype == kind]
    args[at] = rng.choice([replace(old, buffer=rng.choice(others)), Arg(-1, "-")])
    return _with(plan, n, f"operand {at} is {args[at]}, was {old}", args=tuple(args), inplace=())


def _mode(plan: Plan, n: int, step: PlanStep, rng: random.Random) -> Forged | None:
    """A written operand that is said to be read."""
    written = [i for i, a in enumerate(step.args) if a.mode in "wus"]
    if not written:
        return None
    at, args = rng.choice(written), list(step.args)
    args[at] = replace(args[at], mode="r")
    return _with(plan, n, f"operand {at} is read", args=tuple(args), inplace=())


def _table(plan: Plan, n: int, step: PlanStep, rng: random.Random) -> Forged | None:
    """Another integer in a table of constants."""
    known = {a.buffer for a in step.args}
    places = [
        i
        for i, (buffer, data) in enumerate(plan.constants)
        if buffer in known and plan.buffers[buffer].dtype == "i64" and data
    ]
    if not places:
        return None
    at, constants = rng.choice(places), list(plan.constants)
    buffer, data = constants[at]
    values = np.frombuffer(data, np.int64).copy()
    i = rng.randrange(values.size)
    old = int(values[i])
    values[i] = rng.choice([old + 1, old - 1, 2 * old, -1, *WORDS])
    constants[at] = buffer, values.tobytes()
    what = f"step {n}: constant %{buffer}[{i}] is {values[i]}, was {old}"
    return Forged(replace(plan, constants=tuple(constants)), n, what)


def _tiles(plan: Plan, n: int, step: PlanStep, rng: random.Random) -> Forged | None:
    """Other tiles of an operand."""
    if not step.tiles:
        return None
    at, args = rng.randrange(len(step.args)), list(step.args)
    old = args[at]
    value = rng.choice([0, 64, old.tile, old.thread, 2 * old.tile, old.tile // 2])
    args[at] = replace(old, tile=value) if rng.random() < 0.5 else replace(old, thread=value)
    return _with(plan, n, f"operand {at} is {args[at]}, was {old}", args=tuple(args))


def passes(plan: Plan, target: Target) -> bool:
    """Return whether a plan is let pass."""
    try:
        check(verify(plan), Machine.of(target))
    except PlanError:
        return False
    return True


def try_out(walk: Walk, forged: Forged, rng: random.Random) -> None:
    """Run the forged step between guard pages, on both sides.

    walk: of the plan that it was made of, with its memory.
    """
    mine = Walk(forged.plan, walk.addresses, walk.regions, walk.announce)
    mine.slots, mine.words = walk.slots, walk.words
    put_constants(walk, forged.plan)
    n = forged.step
    before = {key: mine.at(key, size).copy() for key, size in mine.operands(n).items()}
    tiles = max(forged.plan.steps[n].tiles, 1)
    for side in SIDES:
        disorder = rng.random() < 0.5
        for key, data in before.items():
            if disorder and key[0] != "const":
                shift = rng.randrange(1 + data.size // 8) * 8
                mine.at(key, data.size)[:] = np.roll(data, shift)
        for tile in dict.fromkeys((0, tiles - 1)):
            mine.call(n, tile, side, None)
        for key, data in before.items():
            mine.at(key, data.size)[:] = data
    put_constants(walk, walk.plan)


def put_constants(walk: Walk, plan: Plan) -> None:
    """Fill region const."""
    for index, content in plan.constants:
        at = plan.buffers[index].offset
        walk.regions["const"][at : at + len(content)] = np.frombuffer(content, np.uint8)

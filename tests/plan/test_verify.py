"""`verify` against mutated plans: a plan that it lets pass must run as safely as the original.

The judge is a second, slow description of a run, `Model`: it walks the steps, notes for every byte
who wrote it, and knows from the plan as it was made what kernels really do (`truth`).  It shares no
code with `verify`.  A mutant that passes must

1. stay inside its regions, read nothing that nobody wrote, lose no value before its last reader,
   and let no step write bytes that another touches without a barrier between them;
2. compute the same as before, unless the mutation is one of `ANOTHER_PROGRAM`: it made a plan that
   is as sound as the first, but of something else, which no rule can tell from what was meant.
"""

from __future__ import annotations

import functools
import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.base.element_types import ITEMSIZE
from engine.errors import PlanError
from engine.graphs.planner.planner import make_plan
from engine.kernels.ops.registry import list_templates
from engine.plan.plan import FAULT, NOISE, PERSISTENT, Arg, Buffer, Plan, PlanStep
from engine.plan.verify import verify
from engine.tools.dev.case_graphs import OneNode, list_cases
from tests.support.golden_plans import TARGET, make_golden_plan

OPS = ("Softmax", "BatchNormalization", "Gather", "LSTM", "Transpose", "Dropout", "TopK", "Conv")

# Fields whose value a plan states nowhere else.  The plan with another value is as sound.
ANOTHER_PROGRAM = {
    "PlanStep.consts",  # other numbers of the same kinds, or as many as the kernel takes
    "PlanStep.kernel",  # another kernel that takes the same
    "PlanStep.args",  # the same operands in another order
    "Arg.buffer",  # another operand of the same type
    "Plan.steps",  # a step less, more, or sooner
    "Plan.buffers",  # operands by another numbering
    "Plan.constants",  # other contents of the same size
    "Port.name",
    "Port.shape",  # of an output: as many elements in another shape
    "Plan.inputs",  # an input less, if no step reads it
    "Plan.outputs",
    "Plan.threads",
    "Buffer.dtype",  # of values that are only moved, whose bits stay
    "Buffer.shape",
    "Buffer.offset",  # another place in a region that outlives the run
    "Buffer.region",
}


@functools.cache
def golden(case: str, threads: int) -> Plan:
    """Return the training plan of a golden model, its parameters and gradients in their regions."""
    return make_golden_plan(case, 4, threads)


@functools.cache
def plans() -> tuple[Plan, ...]:
    """Plans of goldens, and of case rows, open and closed; of one and of two threads."""
    goldens = [golden(case, n) for case in ("mlp", "cnn", "bce") for n in (1, 2)]
    for op in OPS:
        graph = OneNode(next(c for c in list_cases() if c.op == op)).graph
        for threads in (1, 2):
            for closed in (False, True):
                goldens.append(
                    make_plan(graph.copy(), {}, target=TARGET, threads=threads, closed=closed)
                )
    return tuple(goldens)


# --- the second description of a run


Block = tuple[str, int]  # region, offset of 64 bytes


class Unsafe(Exception):
    """Fault that the model found."""


def need(b: Buffer) -> int:
    return ITEMSIZE[b.dtype] * math.prod(b.shape)


class Model:
    """One run of a plan, byte ranges at a time; `results` holds its final bytes.

    truth: the original plan, which says how far kernels reach and what they do to operands.
    """

    def __init__(self, plan: Plan, truth: Plan) -> None:
        self.plan = plan
        known = {b.name: need(b) for b in truth.buffers}
        self.sizes = [known.get(b.name, need(b)) for b in plan.buffers]
        self.steps = (truth if len(plan.steps) == len(truth.steps) else plan).steps
        self.memory: dict[Block, tuple[Any, int]] = {}  # what was written: writer, place in it
        for i, data in plan.constants:
            self.write(i, data)
        for p in plan.inputs:
            self.write(p.buffer, p.name)
        self.walk()
        self.results = [
            (p.name, p.shape, plan.buffers[p.buffer].dtype, self.read(p.buffer, 0))
            for p in sorted(plan.outputs, key=lambda p: p.name)
        ]
        self.kept = {at: items for at, items in self.memory.items() if at[0] in PERSISTENT}
        for i, data in plan.constants:
            if data and {tag for tag, _ in self.read(i, 0)} != {data}:
                raise Unsafe(f"constant %{i} is changed")

    def blocks(self, i: int) -> range:
        b = self.plan.buffers[i]
        size = self.sizes[i]
        if (
            b.offset % 64
            or b.offset < 0
            or b.offset + size > self.plan.compute_region_bytes(b.region)
        ):
            raise Unsafe(f"%{i} outside of {b.region}")
        return range(b.offset, b.offset + size, 64)

    def write(self, i: int, tag: Any) -> None:
        b = self.plan.buffers[i]
        for at in self.blocks(i):
            self.memory[b.region, at] = (tag, at - b.offset)

    def read(self, i: int, n: int) -> tuple[Any, ...]:
        """Return the writers of the bytes of a buffer, and where their bytes are."""
        b = self.plan.buffers[i]
        actual: list[tuple[Any, int]] = []
        for at in self.blocks(i):
            default = (b.region, at) if b.region in PERSISTENT else (None, 0)
            tag, place = self.memory.get((b.region, at), default)
            if tag is None:
                raise Unsafe(f"step {n} reads %{i}, which nobody wrote")
            shift = at - b.offset - place
            if not actual or actual[-1] != (tag, shift):
                actual.append((tag, shift))
        if b.region == "work" and len({tag for tag, _ in actual}) > 1:
            raise Unsafe(f"step {n} reads %{i}, parts of it are lost")
        return tuple(actual)

    def walk(self) -> None:
        inputs = {p.buffer for p in self.plan.inputs}
        reads: set[Block] = set()
        writes: set[Block] = set()
        for n, (step, true) in enumerate(zip(self.plan.steps, self.steps, strict=True)):
            if step.barrier or self.plan.threads == 1:
                reads, writes = set(), set()
            # The effect of a kernel on an operand is known for the planned operands.
            is_planned = [a.buffer for a in step.args] == [a.buffer for a in true.args]
            modes = [a.mode for a in (true if is_planned else step).args]
            mine: list[tuple[str, set[Block]]] = []
            for at, a in enumerate(step.args):
                mode = modes[at] if at < len(modes) else a.mode
                if (a.buffer < 0) != (mode == "-"):
                    raise Unsafe(f"step {n} passes %{a.buffer} where the kernel wants {mode!r}")
                if a.buffer < 0:
                    mine.append(("-", set()))
                    continue
                region = self.plan.buffers[a.buffer].region
                if mode == "s" and region != "work":
                    raise Unsafe(f"step {n} has its scratch in {region}")
                if mode == "w" and a.buffer in inputs:
                    raise Unsafe(f"step {n} overwrites an input")
                mine.append((mode, {(region, block) for block in self.blocks(a.buffer)}))
            self.apart(n, true, mine)
            self.call(n, step, [mode for mode, _ in mine])
            for how, bytes_ in mine:
                if bytes_ & writes or (how in "wus" and bytes_ & reads):
                    raise Unsafe(f"step {n} needs a barrier")
            for how, bytes_ in mine:
                if how in "ru":
                    reads |= bytes_
                if how in "wus":
                    writes |= bytes_

    def apart(self, n: int, true: PlanStep, mine: list[tuple[str, set[Block]]]) -> None:
        """Operands share bytes only if they are read, or all of them where the kernel may."""
        pairs = {frozenset(pair) for pair in true.inplace}
        for i, (mode, bytes_) in enumerate(mine):
            for j in range(i):
                other, more = mine[j]
                whole = frozenset((i, j)) in pairs and bytes_ == more
                if bytes_ & more and mode + other not in ("rr", "uu") and not whole:
                    raise Unsafe(f"step {n}: arguments {i} and {j} share bytes")

    def call(self, n: int, step: PlanStep, modes: list[str]) -> None:
        spec = next(k.spec for k in self.plan.kernels if k.symbol == step.kernel)
        taken = list_templates()[spec.template].takes(*spec.params)
        for at, a in enumerate(step.args):
            if a.buffer < 0 or at >= len(taken) or taken[at] in ("...*",):
                continue
            dtype = self.plan.buffers[a.buffer].dtype
            if taken[at].endswith("*") and dtype not in taken[at][:-1].split("|"):
                raise Unsafe(f"step {n}: argument {at} is {dtype}, the kernel reads {taken[at]}")
        inputs = tuple(
            self.read(a.buffer, n) if mode in "ru" else ()
            for a, mode in zip(step.args, modes, strict=True)
        )
        tag = hash((spec, step.consts, self.plan.threads, inputs))
        for at, (a, mode) in enumerate(zip(step.args, modes, strict=True)):
            if mode in "wu":
                self.write(a.buffer, (tag, at))
            elif mode == "s":
                self.write(a.buffer, None)


@functools.cache
def modelled(plan: Plan) -> Model:
    return Model(plan, plan)


# --- mutations

Path = tuple[str | int, ...]
NUMBERS = (0, 1, -1, 2, 64, -64, 1 << 31, 1 << 62, 1 << 63, 1 << 70, -(1 << 63), -(1 << 70))
TYPES = ("f32", "i32", "i64", "f64", "b1", "f32*", "i64[]", "i64[1]", "...*")
REGIONS = ("param", "frozen", "grad", "state", "const", "io", "work")
TEXTS = ("", "nonsense", *TYPES, *REGIONS, *"rwus-", "fwd", "opt", FAULT, NOISE)


def mutated(data: st.DataObject, value: Any, plan: Plan, field: str) -> tuple[Any, str]:
    """A value with one thing changed somewhere inside; and the field, `Class.name`, it is of."""
    if is_dataclass(value) and not isinstance(value, type):
        name = data.draw(st.sampled_from([f.name for f in fields(value)]))
        new, where = mutated(data, getattr(value, name), plan, f"{type(value).__name__}.{name}")
        return replace(value, **{name: new}), where
    if isinstance(value, tuple):
        return sequence(data, value, plan, field)
    if isinstance(value, bool):
        return not value, field
    if isinstance(value, bytes):
        changes = (value[:-1], value + b"\0", bytes(len(value)), b"")
        return data.draw(st.sampled_from(changes)), field
    if isinstance(value, int):
        near = [value + 1, value - 1, value + 64, value - 64, value * 2, *NUMBERS]
        if field == "PlanStep.consts":
            return data.draw(st.sampled_from([*near, float(near[0]), None, "text"])), field
        any_buffer = st.integers(0, max(len(plan.buffers) - 1, 0))
        return data.draw(st.one_of(st.sampled_from(near), any_buffer)), field
    if isinstance(value, float):
        return data.draw(st.sampled_from([0.0, -value, math.nan, 1, "text"])), field
    assert isinstance(value, str), (field, value)
    symbols = [k.symbol for k in plan.kernels]
    return data.draw(st.sampled_from([*TEXTS, value + "x", *symbols])), field


# An element for a tuple that is now empty.
ELEMENTS: dict[str, tuple[Any, ...]] = {
    "PlanStep.operands": ("f32",), "PlanStep.consts": (0,), "PlanStep.inplace": ((0, 1),),
    "PlanStep.args": (Arg(0, "r"),), "Buffer.shape": (0,), "Port.shape": (0,),
    "Kernel.takes": ("i64",), "Plan.constants": ((0, b""),),
}  # fmt: skip


def sequence(
    data: st.DataObject, value: tuple[Any, ...], plan: Plan, field: str
) -> tuple[tuple[Any, ...], str]:
    """Something inside an element, or an element less, twice, or at another place."""
    if not value:
        return ELEMENTS.get(field, ()), field
    i = data.draw(st.integers(0, len(value) - 1))
    how = data.draw(st.sampled_from(["inside"] * 6 + ["drop", "twice", "swap"]))
    if how == "drop":
        return (*value[:i], *value[i + 1 :]), field
    if how == "twice":
        return (*value[: i + 1], *value[i:]), field
    if how == "swap":
        j = data.draw(st.integers(0, len(value) - 1))
        order = list(value)
        order[i], order[j] = order[j], order[i]
        return tuple(order), field
    new: Any
    if isinstance(value[i], tuple):  # a row of two: a pair in place, a region, a constant
        at = data.draw(st.integers(0, 1))
        part, where = mutated(data, value[i][at], plan, field)
        new = (part, value[i][1]) if at == 0 else (value[i][0], part)
    else:
        new, where = mutated(data, value[i], plan, field)
    return (*value[:i], new, *value[i + 1 :]), where


def judge(mutant: Plan, plan: Plan, changed: set[str]) -> None:
    """Return whether a mutant that `verify` lets pass may pass."""
    try:
        run = Model(mutant, plan)
    except Unsafe as reason:
        pytest.fail(f"{sorted(changed)} changed and passes: {reason}")
    same = (run.results, run.kept) == (modelled(plan).results, modelled(plan).kept)
    assert same or changed & ANOTHER_PROGRAM, f"{sorted(changed)} changed and passes"


@given(st.data())
@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
def test_no_mutant_that_a_run_could_notice_passes(data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(plans()))
    mutant, changed = plan, set()
    for _ in range(data.draw(st.integers(1, 2))):
        mutant, field = mutated(data, mutant, plan, "Plan")
        changed.add(field)
    try:
        verify(mutant)
    except PlanError:
        return
    judge(mutant, plan, changed)


def test_the_model_agrees_with_what_is_planned() -> None:
    for plan in plans():
        Model(plan, plan)

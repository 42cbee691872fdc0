"""One optimizer step over the parameters of an MLP and of MiniLM, 64 tensors, one thread.

Another row is MiniLM's table of words with the gradients of 1024 words, which become rows of its
gradient block by block.

The time is for moving memory: the bytes read and written for each parameter, over the bandwidth of
a core.  Percent refer to the roofline's stream of as much memory.  The MLP's memory lies in caches:
there square roots and divisions are the limit.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import median

import numpy as np

from bench.measuring import measure_limits, repeat
from bench.programs import bind
from bench.rows import Bench, Cells
from engine.plan.plan import Plan
from engine.runtime.program import BoundProgram
from engine.tools.dev import optimizer_plans
from engine.tools.dev.optimizer_plans import ROWS, SIZES, TABLE

OF_TABLE = "adamw of a table"
OF_ROW = 24  # bytes for each parameter of the table: its gradient lies in the cache


def list_subjects() -> Mapping[str, tuple[str, int]]:
    """Return every optimizer with every number of parameters."""
    rows = {f"{name}-{size}": (name, SIZES[size]) for name in ROWS for size in SIZES}
    return {**rows, OF_TABLE: (OF_TABLE, math.prod(TABLE[:2]))}


def plan_of(name: str, size: int) -> Plan:
    """Return the plan of a row."""
    if name == OF_TABLE:
        return optimizer_plans.plan_of_table()
    return optimizer_plans.plan_of(ROWS[name], size)


def fill(program: BoundProgram) -> None:
    """Put numbers into the inputs that a step moves little."""
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        array[...] = 1 if array.size == 1 else rng.uniform(1e-3, 1e-2, array.shape)
    program.inputs["learning_rate"][...] = 1e-6


def measure(row: tuple[str, int], _: Namespace) -> Iterator[Cells]:
    """Yield the row of an optimizer."""
    name, size = row
    program = bind(plan_of(name, size))
    fill(program)
    took = median(repeat(program.run))
    each = OF_ROW if name == OF_TABLE else round(optimizer_plans.count_moved(program.plan) / size)
    rate = each * size / took
    touched = sum(array.nbytes for array in program.inputs.values())
    yield each, 1e3 * took, rate / 1e9, 100 * rate / measure_limits().find_bandwidth(touched)


BENCHES = (
    Bench(
        "optimizers",
        "one step of every optimizer over the parameters of an MLP and of MiniLM",
        list_subjects,
        ("B:d", "ms:.3f", "GB/s:.1f", "% of stream:.0f"),
        measure,
        small="sgd-mlp",
    ),
)

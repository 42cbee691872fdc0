"""One optimizer step over the parameters of an MLP and of MiniLM, 64 tensors, one thread.

Another row is that of MiniLM's table of words from the gradients of 1024 words, which are made into
rows of its gradient block by block.

The time is that of moving memory: bytes read and written for each parameter, in brackets in a row's
name, over the bandwidth of a core.  A row prints GB/s, and their percent of the roofline's stream
of as much memory.  The MLP's lies in caches: there square roots and divisions are the limit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.kernels.compiler.load import addresses
from engine.runtime.arena import allocate
from engine.runtime.plan import Plan
from engine.runtime.program import Program
from engine.runtime.roofline import measure
from engine.tools.dev import optimizer_plans


def load(plan: Plan) -> Program:
    """A bound program with its inputs in place."""
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        array[...] = 1 if array.size == 1 else rng.uniform(1e-3, 1e-2, array.shape)
    program.inputs["learning_rate"][...] = 1e-6
    return program


@pytest.fixture(scope="module", params=optimizer_plans.SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return optimizer_plans.SIZES[request.param]


@pytest.mark.parametrize("row", optimizer_plans.ROWS)
def bench_step(benchmark: Any, row: str, size: int) -> None:
    report(benchmark, row, load(optimizer_plans.plan_of(optimizer_plans.ROWS[row], size)), size)


def bench_table(benchmark: Any) -> None:
    program = load(optimizer_plans.plan_of_table())
    report(benchmark, "adamw of a table[24]", program, math.prod(optimizer_plans.TABLE[:2]))


def report(benchmark: Any, row: str, program: Program, size: int) -> None:
    """Time a row and print what it reaches."""
    benchmark(program.run)
    moved = int(row[row.index("[") + 1 : -1]) * size
    rate = moved / benchmark.stats.stats.median / 1e9
    touched = sum(a.nbytes for a in program.inputs.values())
    limit = measure(1, addresses).bandwidth(touched) / 1e9
    share = round(100 * rate / limit)
    benchmark.extra_info |= {"gbytes": round(rate, 1), "percent_of_stream": share}
    print(f"\n{row}, {size}: {rate:.1f} GB/s, {share} % of {limit:.1f}")

"""One optimizer step over the parameters of an MLP and of MiniLM, 64 tensors, one thread.

Another row is that of MiniLM's table of words from the gradients of 1024 words, which are made into
rows of its gradient block by block.

The time is that of moving memory: bytes read and written for each parameter, in brackets in a row's
name, over the bandwidth of a core.  A row prints GB/s, and their percent of the roofline's stream
of as much memory.  The MLP's lies in caches: there square roots and divisions are the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.optimizers import clip_in_steps, place
from engine.graphs.planner.pipeline import make_plan
from engine.kernels.compiler.load import addresses
from engine.kernels.target import host
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.optim_types import (
    LAMB,
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Group,
    Lion,
    Method,
    RMSprop,
)
from engine.runtime.arena import allocate
from engine.runtime.plan import Plan
from engine.runtime.program import Program
from engine.runtime.roofline import measure
from engine.runtime.states import lay_out

SIZES = {"mlp": 24 << 14, "minilm": 11 << 20}  # parameters
TENSORS, ROW = 64, 256
TABLE = (30522, 384, 1024)  # rows, elements of a row, and rows that are read
NAMES = [f"{'wb'[i % 2]}{i}" for i in range(TENSORS)]
ROWS = {
    "sgd[12]": SGD(),
    "sgd with clipping[16]": SGD(clip_grad=1e-3),
    "momentum[20]": SGD(momentum=0.9),
    "adamw[28]": AdamW(weight_decay=0.01),
    "adamw in groups[28]": AdamW(weight_decay=0.01, groups=[Group(["b*"], weight_decay=0.0)]),
    "adamw with clipping[32]": AdamW(weight_decay=0.01, clip_grad=1e-3),
    "lazy adamw[28]": AdamW(weight_decay=0.01, lazy=True),
    "adam[28]": Adam(),
    "rmsprop[20]": RMSprop(),
    "rmsprop centered with momentum[36]": RMSprop(centered=True, momentum=0.9),
    "adagrad[20]": Adagrad(),
    "lion[20]": Lion(),
    "lamb[40]": LAMB(),
    "adafactor[24]": Adafactor(),
}


def plans() -> Iterator[Plan]:
    """The plans of all rows, and of a clipping whose result steps do not read."""
    yield from map(plan_of, ROWS.values())
    size = TensorType("f32", (SIZES["mlp"],))
    node = Node("InplaceClipGradNorm", ("g",), ("c",), {}, MS, "clip")
    graph = Graph("clip", {"g": size}, ["c"], {}, [node], {"": 17, MS: 1})
    yield make_plan(graph, {}, target=host(), threads=1)
    yield plan_of_table()


def plan_of_table() -> Plan:
    """A plan of the update of a table of words by AdamW in a training step, for a single thread."""
    rows, width, read = TABLE
    table, one = TensorType("f32", (rows, width)), TensorType("f32", (1,))
    inputs = {
        "ids": TensorType("i64", (read,)),
        "dy": TensorType("f32", (read, width)),
        "loss": one,
        "check": TensorType("b1", (1,)),
        "learning_rate": one,
        "step": TensorType("i64", (1,)),
        **dict.fromkeys(("w", "m", "v"), table),
    }
    update = ("learning_rate", "step", "w", "dw", "m", "v", "go")
    nodes = [
        Node("GatherGrad", ("shape", "ids", "dy"), ("dw",), {}, MS, "grad"),
        Node("UpdateSignal", ("loss", "check"), ("go",), {}, OURS, "signal"),
        Node("AdamWOptimizer", update, ("flag",), AdamW().attributes(), OURS, "update"),
    ]
    held = {"shape": np.array([rows, width])}
    graph = Graph("table", inputs, ["go"], held, nodes, {"": 17, MS: 1, OURS: 1})
    return make_plan(graph, {}, target=host(), threads=1)


def plan_of(method: Method, size: int = SIZES["minilm"]) -> Plan:
    """A plan of one step over so many parameters for a single thread."""
    graph, each = method.build(17, "f32", NAMES), (size // TENSORS // ROW, ROW)
    layout = lay_out(method.rule().states, dict.fromkeys(NAMES, ("f32", each)))
    flat = {"params": ("f32", size), "gradients": ("f32", size)}
    flat |= {state.name: layout.flat(k) for k, state in enumerate(layout.states)}
    for name, (dtype, elements) in flat.items():
        graph.inputs[name] = TensorType(dtype, (elements,))
    place(graph, {name: (i * size // TENSORS, each) for i, name in enumerate(NAMES)}, layout)
    clip_in_steps(graph)
    return make_plan(graph, {}, target=host(), threads=1)


def load(plan: Plan) -> Program:
    """A bound program with its inputs in place."""
    program = Program(plan, addresses, {"work": allocate(plan.region_bytes("work"))})
    rng = np.random.default_rng(0)
    for array in program.inputs.values():
        array[...] = 1 if array.size == 1 else rng.uniform(1e-3, 1e-2, array.shape)
    program.inputs["learning_rate"][...] = 1e-6
    return program


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return SIZES[request.param]


@pytest.mark.parametrize("row", ROWS)
def bench_step(benchmark: Any, row: str, size: int) -> None:
    report(benchmark, row, load(plan_of(ROWS[row], size)), size)


def bench_table(benchmark: Any) -> None:
    program = load(plan_of_table())
    report(benchmark, "adamw of a table[24]", program, TABLE[0] * TABLE[1])


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

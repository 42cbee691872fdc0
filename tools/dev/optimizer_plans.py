"""Plans of one step of every optimizer, over the parameters of an MLP or of MiniLM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.base.element_types import PAIRED, TRAINED_INTEGERS, find_gradient_type
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.optim_types import OPTIMIZERS, SGD, AdamW, Group, Method, RMSprop
from engine.graphs.offline.optimizers import clip_in_steps, place
from engine.graphs.planner.planner import make_plan
from engine.kernels.analysis.flops import list_tasks
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.plan.plan import Plan
from engine.plan.states import lay_out
from engine.tools.dev.cases.optimizer.case import list_cases

SIZES = {"mlp": 24 << 14, "minilm": 11 << 20}  # parameters
TENSORS, ROW = 64, 256
TABLE = (30522, 384, 1024)  # rows, elements of a row, and rows that are read
NAMES = [f"{'wb'[i % 2]}{i}" for i in range(TENSORS)]
# Every optimizer with its default options, and options with which steps differ.
ROWS: dict[str, Method] = {
    **{kind.__name__.lower(): kind() for kind in OPTIMIZERS.values()},
    "sgd with clipping": SGD(clip_grad=1e-3),
    "momentum": SGD(momentum=0.9),
    "adamw with decay": AdamW(weight_decay=0.01),
    "adamw in groups": AdamW(weight_decay=0.01, groups=[Group(["b*"], weight_decay=0.0)]),
    "adamw with clipping": AdamW(weight_decay=0.01, clip_grad=1e-3),
    "lazy adamw": AdamW(weight_decay=0.01, lazy=True),
    "rmsprop centered with momentum": RMSprop(centered=True, momentum=0.9),
}


def make_plans() -> Iterator[Plan]:
    """Return the plans of all rows and cases, and of a clipping whose result steps do not read."""
    for method in (*ROWS.values(), *(case.method for case in list_cases())):
        yield from make_plans_of(method)
    size = TensorType("f32", (SIZES["mlp"],))
    node = Node("InplaceClipGradNorm", ("g",), ("c",), {}, MS, "clip")
    graph = Graph("clip", {"g": size}, ["c"], {}, [node], {"": 17, MS: 1})
    yield make_plan(graph, {}, target=detect_host(), threads=1)
    yield plan_of_table()


def plan_of_table() -> Plan:
    """Return a plan of AdamW on a table of words in a training step, for a single thread."""
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
    return make_plan(graph, {}, target=detect_host(), threads=1)


def make_plans_of(method: Method) -> Iterator[Plan]:
    """Return the plans of one step over parameters of each element type that it updates."""
    yield plan_of(method)
    if isinstance(method, SGD) and not method.momentum and method.clip_grad is None:
        yield from (plan_of(method, kind=kind) for kind in TRAINED_INTEGERS)
        yield from (plan_of(method, kind=kind, each=2) for kind in PAIRED)


def plan_of(method: Method, size: int = SIZES["minilm"], kind: str = "f32", each: int = 1) -> Plan:
    """Return a plan of one step over this many parameters of a type for a single thread.

    each: the parameters that an element holds: two integers of 4 bits in a byte.
    """
    kinds, count = dict.fromkeys(NAMES, kind), size // each
    graph, shape = method.build(17, kinds), (count // TENSORS // ROW, ROW)
    layout = lay_out(method.rule().states, dict.fromkeys(NAMES, (kind, shape)))
    graph.inputs["params"] = TensorType(kind, (count,))
    graph.inputs["gradients"] = TensorType(find_gradient_type(kind), (size,))
    for k, state in enumerate(layout.states):
        flat = layout.join_states(k, NAMES)
        graph.inputs[state.name] = TensorType(flat.dtype, flat.shape)
    begins = {name: (i * count // TENSORS, shape) for i, name in enumerate(NAMES)}
    place(graph, kinds, begins, layout)
    clip_in_steps(graph)
    return make_plan(graph, {}, target=detect_host(), threads=1)


def count_moved(plan: Plan) -> int:
    """Return the bytes that a step reads and writes; nodes of one kernel share its operands."""
    operands = {
        (task.spec, use.name, use.mode): use.nbytes * (1 if use.mode == "r" else 2)
        for task in list_tasks(plan)
        for use in task.uses
        if use.name is not None
    }
    return sum(operands.values())

"""Bytes that training steps keep for the backward pass, without running them.

A row is a workload: the bytes that the forward pass keeps for the backward pass, in how many
values, and the bytes of the arena.  --without adds a row without these passes of the planner, by
their names, to compare with.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence

from bench.measuring import MIB
from bench.programs import written
from bench.rows import Bench, Cells, Option
from engine.graphs.io import onnx_io
from engine.graphs.passes.pipeline import PASSES
from engine.graphs.passes.simplify import is_acting
from engine.graphs.planner.planner import Planner
from engine.kernels.machine.target import detect_host
from engine.plan.plan import Plan
from engine.tools.benchmark.workloads import WORKLOADS

THREADS = 2


def make_plans(name: str, without: Sequence[Sequence[str]]) -> list[Plan]:
    """Return the training plans of a workload, each without some passes."""
    with written(name) as folder:
        graph = onnx_io.load(folder / "training_model.onnx")
    x, labels = WORKLOADS[name].batch()
    shapes = dict(zip(graph.inputs, (x.shape, labels.shape), strict=False))
    changed = {name for node in graph.nodes if is_acting(node) for name in node.outputs}
    outputs = [name for name in graph.outputs if name not in changed]
    return [
        Planner(graph, target=detect_host(), threads=THREADS, outputs=outputs, without=passes).plan(
            shapes
        )
        for passes in without
    ]


def measure(name: str, options: Namespace) -> Iterator[Cells]:
    """Yield the row of a workload, and one without some passes."""
    choices = [[], *([list(options.without)] if options.without else [])]
    for without, plan in zip(choices, make_plans(name, choices), strict=True):
        arena = plan.compute_region_bytes("work") / MIB
        yield ", ".join(without) or "none", plan.kept_bytes / MIB, len(plan.kept()), arena


BENCHES = (
    Bench(
        "kept",
        "the MiB that training steps keep for the backward pass; nothing runs",
        {name: name for name in WORKLOADS},
        ("without", "kept:.2f", "values", "arena:.2f"),
        measure,
        options=(Option("without", (), f"passes: {', '.join(p.name for p in PASSES)}"),),
        small="mlp --without fold",
    ),
)

"""What training steps keep for the backward pass, without running them.

python -m bench.kept [WORKLOAD ...] [--without PASS ...]

A row is a workload: the bytes that the forward pass keeps for the backward pass, in how many
values, and the bytes of the arena.  --without adds a row without these passes of the planner, by
their names, to compare with.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.graphs.io import onnx_io
from engine.graphs.passes.simplify import acts
from engine.graphs.planner.pipeline import PASSES, Planner
from engine.kernels.target import host
from engine.runtime.plan import Plan
from engine.tools.workloads import WORKLOADS

THREADS = 2


def plans(name: str, without: Sequence[Sequence[str]]) -> list[Plan]:
    """The training plans of a workload, each without some passes."""
    with tempfile.TemporaryDirectory() as folder:
        workload = WORKLOADS[name]
        workload.write(Path(folder))
        graph = onnx_io.load(Path(folder) / "training_model.onnx")
    x, labels = workload.batch()
    shapes = dict(zip(graph.inputs, (x.shape, labels.shape), strict=False))
    changed = {name for node in graph.nodes if acts(node) for name in node.outputs}
    outputs = [name for name in graph.outputs if name not in changed]
    return [
        Planner(graph, target=host(), threads=THREADS, outputs=outputs, without=passes).plan(shapes)
        for passes in without
    ]


def main() -> None:
    """Print the rows of each workload."""
    parser = argparse.ArgumentParser(prog="python -m bench.kept")
    parser.add_argument("workload", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--without", nargs="+", default=[], choices=[p.name for p in PASSES])
    given = parser.parse_args()
    print(f"{'':19s}{'kept':>10s} {'values':>8s} {'arena':>10s}   MiB")
    for name in given.workload:
        titles: dict[str, list[str]] = {name: []}
        if given.without:
            titles["  without"] = given.without
        for title, plan in zip(titles, plans(name, list(titles.values())), strict=True):
            arena = plan.region_bytes("work") / 2**20
            kept = plan.kept_bytes / 2**20
            print(f"{title:19s}{kept:10.2f} {len(plan.kept()):8d} {arena:10.2f}")


if __name__ == "__main__":
    main()

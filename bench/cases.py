"""Every kernel: the largest case row that calls it, and the rows marked `bench`, alone.

Forward, and forward with backward where the row has a gradient, on one thread.  With --precision
bf16 a Neg stands before each input and after each output, so that the row's own are stored in 16
bits; `--precision f32 --wrapped` is the same in float32.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import median

from bench.measuring import repeat
from bench.programs import load
from bench.rows import Bench, Cells, Option
from engine.tools.benchmark.measure import spread
from engine.tools.dev.case_graphs import OneNode, backward_of, find_largest_rows, list_cases, wrap
from engine.tools.dev.cases.case import Case


def list_rows() -> Mapping[str, Case]:
    """Return the case rows that are measured, by name."""
    marked = [case for case in list_cases() if case.bench]
    return {case.id: case for case in (*marked, *find_largest_rows().values())}


def measure(case: Case, options: Namespace) -> Iterator[Cells]:
    """Yield the row of the forward pass, and the row of the gradients."""
    one = OneNode(case)
    graphs = {"forward": one.graph}
    if case.grad:
        graphs["forward and backward"] = backward_of(one)[0]
    for what, graph in graphs.items():
        made = wrap(graph) if options.wrapped or options.precision != "f32" else graph
        given = {name: one.inputs[name.removesuffix("_in")] for name in made.inputs}
        times = repeat(load(made, inputs=given, precision=options.precision).run)
        yield what, 1e6 * median(times), 1e6 * min(times), 100 * spread(times)


BENCHES = (
    Bench(
        "cases",
        "every kernel, by the largest case row that calls it",
        list_rows,
        ("pass", "us:.1f", "least us:.1f", "+- %:.0f"),
        measure,
        options=(
            Option("precision", "f32", "of values between nodes: bf16 or f16"),
            Option("wrapped", False, "with a Neg before each input and after each output"),
        ),
    ),
)

"""WriteCache: rows in their places, all others as they were, and none outside."""

from __future__ import annotations

import numpy as np
import pytest

from bench.programs import bind
from engine.errors import LabelError, ShapeError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.kernels.vocabulary.op import OURS, TensorType
from engine.runtime.program import BoundProgram


def make_program(dtype: str, count: int, threads: int = 1) -> BoundProgram:
    """Plan a write to a cache [2, 3, 7, 5], and a copy of the cache after it."""
    inputs = {
        "cache": TensorType(dtype, (2, 3, 7, 5)),
        "rows": TensorType(dtype, (2, 3, count, 5)),
        "at": TensorType("i64", (2,)),
    }
    nodes = [
        Node("WriteCache", ("cache", "rows", "at"), ("after",), {}, OURS, "write"),
        Node("Identity", ("after",), ("seen",), {}, "", "seen"),
    ]
    graph = Graph("m", inputs, ["seen"], {}, nodes, {"": 17})
    return bind(make_plan(graph, {}, target=detect_host(), threads=threads))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_rows_are_written_in_place(dtype: str, count: int, threads: int) -> None:
    program, rng = make_program(dtype, count, threads), np.random.default_rng(0)
    cache, rows = program.inputs["cache"], program.inputs["rows"]
    cache[...] = rng.standard_normal(cache.shape)
    expected = cache.copy()
    for at in ((0, 2), (4, 1)):
        rows[...] = rng.standard_normal(rows.shape)
        program.inputs["at"][...] = at
        program.run()
        for b, first in enumerate(at):
            expected[b, :, first : first + count] = rows[b]
        np.testing.assert_array_equal(cache, expected)
        np.testing.assert_array_equal(program.outputs["seen"], expected)


@pytest.mark.parametrize(("at", "bad"), [((1, 5), 5), ((-1, 0), -1), ((7, 9), 7)])
def test_rows_outside_are_refused_and_not_written(at: tuple[int, int], bad: int) -> None:
    program = make_program("f32", 3)
    program.inputs["rows"][...] = 1
    program.inputs["at"][...] = at
    with pytest.raises(LabelError, match=rf"length {bad} at position \d is outside \[0, 5\)"):
        program.run()
    written = {b for b in range(2) if program.inputs["cache"][b].any()}
    assert written == {b for b in range(2) if 0 <= at[b] <= 4}


def test_more_rows_than_a_cache_has_are_refused() -> None:
    with pytest.raises(ShapeError, match="input 1 has 8 rows, but the cache has room for"):
        make_program("f32", 8)

"""Broadcasting of sizes that are not known: types that hold, and gradients of the operands' shapes.

A graph is inferred and differentiated while the dimensions of its inputs are symbols, and then run
with sizes that may be 1.  Its types have to hold for these sizes, and its gradients have to equal
the gradients of the graph that was made for these sizes, and central differences, in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import TensorType
from engine.tools.dev.case_graphs import list_cases
from engine.tools.dev.cases.case import Tensor
from tests.support.harness import run

MS = "com.microsoft"
EPS, TOL = 1e-6, 2e-7
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """Op whose operands are broadcast.

    shapes: of the operands.  free: for each operand the axes, from the end, that may be 1.
    conditions: operands other than floats.  constants: inputs after the operands.
    """

    op: str
    shapes: tuple[Shape, ...]
    free: tuple[tuple[int, ...], ...]
    domain: str = ""
    attrs: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[int, ...] = ()
    constants: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.op, *("x".join(map(str, s)) for s in self.shapes)])


PAIR = ((2, 3), (2, 3))
BOTH = ((-2, -1), (-2, -1))
SLOPE = ((), (-2, -1))
ROWS = (
    *(Row(op, PAIR, BOTH) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean")),
    Row("Mod", PAIR, BOTH, attrs={"fmod": 1}),
    Row("Add", ((2, 3), (3,)), ((-2, -1), (-1,))),
    Row("Mul", ((3,), (2, 3)), ((-1,), (-2, -1))),
    Row("Div", ((), (2, 3)), ((), (-2, -1))),
    Row("Sum", ((2, 3), (2, 3), (3,)), ((-2,), (-2, -1), (-1,))),
    Row("Where", ((2, 3), (2, 3), (3,)), ((-2, -1), (-2,), (-1,)), conditions=(0,)),
    Row("PRelu", PAIR, SLOPE),
    Row("BiasGelu", ((2, 3), (3,)), ((), (-1,)), domain=MS),
    Row("FastGelu", ((2, 3), (3,)), ((), (-1,)), domain=MS),
    Row("Expand", ((2, 3),), ((-2, -1),), constants=([4, 2, 3],)),
    Row("MatMul", ((2, 3, 4, 5), (2, 3, 5, 4)), ((-4, -3), (-4, -3))),
    Row("MatMul", ((3, 4, 5), (2, 3, 5, 4)), ((-3,), (-4, -3))),
    Row("MatMul", ((5,), (2, 3, 5, 4)), ((), (-4, -3))),
    Row("MatMul", ((2, 4, 5), (5, 3)), ((-3, -2), ())),
    Row("FusedMatMul", ((2, 3, 4, 5), (2, 3, 4, 5)), ((-4, -3), (-4, -3)), domain=MS,
        attrs={"transB": 1, "alpha": 0.5}),
    Row("Gemm", ((4, 5), (5, 3), (4, 3)), ((), (), (-2, -1)), attrs={"beta": 0.5}),
    Row("Gemm", ((4, 5), (5, 3), (3,)), ((), (), (-1,))),
    Row("Einsum", ((2, 3, 4), (2, 4, 5)), ((-3,), (-3,)), attrs={"equation": "bij,bjk->bik"}),
    Row("Einsum", ((2, 3, 4), (3, 4, 5)), ((-3, -2), (-3,)), attrs={"equation": "bij,ijk->kb"}),
    Row("LayerNormalization", ((2, 3, 4), (3, 4), (3, 4)), ((-3,), (-2, -1), (-2, -1)),
        attrs={"axis": 1}),
)  # fmt: skip


def patterns(row: Row, every: bool) -> Iterator[tuple[Shape, ...]]:
    """The shapes of the operands for every choice of the sizes that are 1.

    every: without it only the choices of no size, of one, and of all but one.
    """
    places = [(i, axis) for i, axes in enumerate(row.free) for axis in axes]
    counts = range(len(places) + 1) if every else (0, 1, len(places) - 1)
    for bits in itertools.product((False, True), repeat=len(places)):
        if sum(bits) not in counts:
            continue
        ones = {place for place, bit in zip(places, bits, strict=True) if bit}
        yield tuple(
            tuple(1 if (i, axis - len(shape)) in ones else d for axis, d in enumerate(shape))
            for i, shape in enumerate(row.shapes)
        )


def declared(row: Row, shapes: tuple[Shape, ...], style: str) -> list[tuple[int | str, ...]]:
    """Return the shapes of the model's inputs: symbols, or numbers for one operand."""
    out: list[tuple[int | str, ...]] = []
    for i, shape in enumerate(shapes):
        is_known = style == f"number {i}"
        free = row.free[i]
        symbols = [
            f"s{i}_{axis}" if axis - len(shape) in free else d for axis, d in enumerate(shape)
        ]
        out.append(shape if is_known else tuple(symbols))
    return out


def graph_of(row: Row, shapes: list[tuple[int | str, ...]]) -> Graph:
    """loss = sum(sin(op(x...)))."""
    names = [f"x{i}" for i in range(len(shapes))]
    kinds = ["b1" if i in row.conditions else "f64" for i in range(len(shapes))]
    constants = {f"c{i}": np.array(c, np.int64) for i, c in enumerate(row.constants)}
    nodes = [
        Node(row.op, (*names, *constants), ("y",), row.attrs, row.domain, name="op"),
        Node("Sin", ("y",), ("z",), name="sin"),
        Node("ReduceSum", ("z",), ("loss",), {"keepdims": 0}, name="sum"),
    ]
    types = {n: TensorType(k, s) for n, k, s in zip(names, kinds, shapes, strict=True)}
    return Graph("g", types, ["loss"], constants, nodes, {"": 17, MS: 1, "engine": 1})


def gradients(graph: Graph, wrt: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The gradients of the loss, from a graph that is differentiated as it is declared."""
    backward = graph.copy()
    names = differentiate(backward, "loss", wrt, infer(backward).types)
    backward.outputs = [names[n] for n in wrt]
    outcome = run(backward, inputs, closed=True)
    return [outcome[names[n]] for n in wrt]


def check_types(found: dict[str, TensorType], true: dict[str, TensorType]) -> None:
    """Check that types with symbols hold for true ones: a symbol has one size."""
    sizes: dict[str, int] = {}
    for name, t in found.items():
        assert t.dtype == true[name].dtype
        for d, size in zip(t.shape, true[name].dims, strict=True):
            assert (sizes.setdefault(d, size) if isinstance(d, str) else d) == size, (name, t)


def inputs_of(row: Row, shapes: tuple[Shape, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    drawn = [rng.uniform(0.5, 2.0, shape) for shape in shapes]
    return {f"x{i}": a > 1 if i in row.conditions else a for i, a in enumerate(drawn)}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.whole)])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_any_size_may_be_one(row: Row, every: bool) -> None:
    wrt = [f"x{i}" for i in range(len(row.shapes)) if i not in row.conditions]
    styles = ["symbols", *(f"number {i}" for i in range(len(row.shapes)) if len(row.shapes) > 1)]
    rng = np.random.default_rng(4)
    for shapes in patterns(row, every):
        inputs = inputs_of(row, shapes)
        concrete = graph_of(row, list(shapes))
        expected = gradients(concrete, wrt, inputs)
        direction = {n: rng.standard_normal(inputs[n].shape) for n in wrt}
        losses = [
            run(concrete, {n: a + e * direction[n] if n in wrt else a for n, a in inputs.items()},
                closed=True)["loss"]
            for e in (EPS, -EPS)
        ]  # fmt: skip
        assert [g.shape for g in expected] == [inputs[n].shape for n in wrt]
        slope = sum(np.sum(g * direction[n]) for n, g in zip(wrt, expected, strict=True))
        np.testing.assert_allclose((losses[0] - losses[1]) / (2 * EPS), slope, atol=TOL, rtol=TOL)
        true = infer(concrete.copy()).types
        for style in styles:
            open_graph = graph_of(row, declared(row, shapes, style))
            check_types(infer(open_graph.copy()).types, true)
            actual_gradients = gradients(open_graph, wrt, inputs)
            for g, e in zip(actual_gradients, expected, strict=True):
                np.testing.assert_allclose(g, e, atol=1e-12, rtol=1e-12, err_msg=f"{shapes}")


def test_every_broadcasting_formula_has_a_row() -> None:
    """Ops that a formula declares broadcast their operands."""
    listed = {(row.domain, row.op) for row in ROWS}
    missing = set()
    for case in list_cases():
        op = list_ops().get((case.domain, case.op))
        shapes = {given.shape for given in case.ins if isinstance(given, Tensor)}
        if case.grad and op and op.expr and op.grad and len(shapes) > 1:
            missing |= {(case.domain, case.op)} - listed
    assert not missing

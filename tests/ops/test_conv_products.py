"""Convolutions with factors of 16 bits, forward and both gradients, against float64 of the same
rounded factors.

On a CPU without an instruction for such products the portable variants of the register tile run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from engine.base.plan_options import PlanOptions
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.passes import storage
from engine.graphs.planner.planner import make_plan
from engine.kernels.binaries.load import get_object
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.conv import convolution, weight_gradient
from engine.kernels.vector_ir.tile import RUN
from engine.plan.plan import KernelSpec
from tests.support.halves import EPSILON, round_to_half
from tests.support.harness import execute, run
from tests.support.pairs import PAIRED, count_dots, with_factors

Half = Literal["bf16", "f16"]
UNIT = 2.0**-24  # rounding unit of float32
TINY = 2.0**-25  # half of the least f16
TERMS = 4  # additions of other terms than products: bias, parts of threads
OPSETS = {"": 17, "com.microsoft": 1}


@dataclass(frozen=True)
class Window:
    """A convolution: shapes of its filters and images, and its attributes."""

    w: tuple[int, ...]
    x: tuple[int, ...]
    attrs: dict[str, Any]
    bias: bool = False

    def make_arrays(self) -> dict[str, np.ndarray]:
        """Return its inputs and the gradient of its output."""
        rng = np.random.default_rng(0)
        shapes = {"x": self.x, "w": self.w}
        given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        if self.bias:
            given["b"] = rng.standard_normal(self.w[0]).astype(np.float32)
        y = run(self.make_graph(given, ["y"]), given)["y"]
        return given | {"dy": rng.standard_normal(y.shape).astype(np.float32)}

    def make_graph(
        self, given: dict[str, np.ndarray], outputs: list[str], x: str = "x", dy: str = "dy"
    ) -> Graph:
        """Return the graph of y, or of y and the gradients.

        x, dy: the names of what is read, stored as planned if it is not an input of the graph.
        """
        bias = ("b",) if self.bias else ()
        nodes = [Node("Conv", (x, "w", *bias), ("y",), self.attrs, name="conv")]
        if len(outputs) > 1:
            made = ("dx", "dw", "db")[: len(outputs) - 1]
            ms = "com.microsoft"
            nodes.append(Node("ConvGrad", (dy, x, "w"), made, self.attrs, ms, "gradient"))
        return Graph("g", {n: find_type(a) for n, a in given.items()}, outputs, {}, nodes, OPSETS)


PADS = {"pads": [1, 1, 1, 1]}
WINDOWS = {
    "plain": Window((40, 32, 1, 1), (2, 32, 9, 7), {}, bias=True),
    "two_channels": Window((37, 2, 1, 1), (3, 2, 5, 5), {}),
    "few_filters": Window((9, 34, 1, 1), (2, 34, 8, 9), {}),
    "odd": Window((21, 17, 1, 1), (2, 17, 9, 7), {}),
    "odd_taps": Window((22, 17, 3, 3), (2, 17, 9, 8), {**PADS, "strides": [2, 2]}, bias=True),
    "taps": Window((40, 18, 5, 3), (2, 18, 9, 7), PADS, bias=True),
    "deep": Window((72, 130, 3, 3), (1, 130, 6, 5), PADS),
    "strided": Window((34, 18, 3, 3), (2, 18, 9, 8), {**PADS, "strides": [2, 2]}),
    "spread": Window((34, 18, 3, 3), (2, 18, 9, 8), {"dilations": [2, 2]}),
    "grouped": Window((24, 6, 3, 3), (2, 24, 7, 7), {**PADS, "group": 4}),
    "line": Window((24, 18, 3), (2, 18, 40), {"pads": [2, 0]}),
    "block": Window((12, 10, 2, 3, 2), (1, 10, 4, 5, 6), {}),
}  # fmt: skip


# The images that are kept in bf16, and whether at the smallest level rather than on this CPU.
KEPT = [((), False), (("x", "y"), False), (("dy", "dx", "x"), False), (("x", "y"), True)]


@dataclass(frozen=True)
class Expected:
    """An output of a convolution in float64, and the bound of float32 sums of exact products.

    size: the sums of the products' absolute values; count: how many products a sum has.
    """

    exact: np.ndarray
    bound: np.ndarray
    size: np.ndarray
    count: int


def expect(window: Window, seen: dict[str, np.ndarray], name: str, outputs: list[str]) -> Expected:
    """Return an output of the convolution of rounded arrays."""
    wide = {n: a.astype(np.float64) for n, a in seen.items()}
    sizes = {n: np.abs(a) for n, a in wide.items()}
    exact, most = (run(window.make_graph(a, outputs), a)[name] for a in (wide, sizes))
    pixels = wide["dy"][:, 0].size
    counts = {"y": wide["w"][0].size, "dx": wide["w"][:, 0].size, "dw": pixels, "db": pixels}
    return Expected(exact, (counts[name] + TERMS) * UNIT * most, most, counts[name])


# Of f16, the portable variant is slow to compile for wide vectors.
RUNS = [("bf16", *kept) for kept in KEPT] + [("f16", kept, True) for kept, _ in KEPT[:3]]


@pytest.mark.parametrize(("half", "stored", "is_small"), RUNS)
@pytest.mark.parametrize("kind", WINDOWS)
def test_a_convolution_multiplies_factors_of_16_bits(
    monkeypatch: pytest.MonkeyPatch, kind: str, half: Half, stored: tuple[str, ...], is_small: bool
) -> None:
    target = list_levels()[-1].make_target() if is_small else detect_host()
    for module in (convolution, weight_gradient):
        monkeypatch.setattr(module, "choose_tiles", lambda *_: None)
    monkeypatch.setattr(storage, "SMALL", 0)
    window = WINDOWS[kind]
    outputs = ["y", "dx", "dw", *(["db"] if window.bias else [])]
    given = window.make_arrays()
    inner = {n: f"{n}_half" if n in stored else n for n in ("x", "dy")}
    graph = window.make_graph(given, outputs, **inner)
    for node in graph.nodes:
        node.outputs = tuple(f"{o}_half" if o in stored else o for o in node.outputs)
    before = [Node("Neg", (n,), (inner[n],), name=n) for n in inner if n in stored]
    after = [Node("Neg", (f"{n}_half",), (n,), name=n) for n in ("y", "dx") if n in stored]
    graph.nodes = [*before, *graph.nodes, *after]
    threads = 1 + len(stored)
    options = PlanOptions(precision=half)
    plan = make_plan(graph, {}, target=with_factors(target), threads=threads, options=options)
    made = execute(plan, given, target=target)

    # Of an odd number of channels, pairs are of neighbours in the sum, forward and of bf16; pixels
    # are always paired.
    groups = window.attrs.get("group", 1)
    pairs = half == "bf16" and groups == 1 and window.w[2:] != (1, 1)
    is_even = {"y": window.w[1] % 2 == 0 or pairs, "dx": window.w[0] // groups % 2 == 0}
    factors = {"y": {"x", "w"}, "dx": {"dy", "w"}, "dw": {"x", "dy"}, "db": set()}
    kernels = [(spec.template, spec.params) for spec in plan.specs]
    assert any(t == "conv_dw" and params[3:] == (half,) for t, params in kernels)
    paired = [t == "conv" and params[3:] == (half,) for t, params in kernels]
    assert any(paired) == any(is_even.values())
    for name in outputs:
        rounds = factors[name] if is_even.get(name, True) else set()
        seen = {
            n: round_to_half(a, half) if n in rounds or n in stored else a for n, a in given.items()
        }
        seen = {n: -a if n in stored else a for n, a in seen.items()}
        expected = expect(window, seen, name, outputs)
        want, bound = expected.exact, expected.bound
        if half == "f16" and rounds:
            roundings = min(RUN // 2 + 4, expected.count + 1)
            bound = bound + roundings * EPSILON[half] * expected.size + expected.count * TINY
        if name in stored:
            want, bound = -want, bound + (np.abs(want) + bound) * EPSILON[half]
        error = np.abs(made[name] - want)
        assert np.all(error <= bound), (name, (error / bound).max())


@pytest.mark.parametrize("target", PAIRED, ids=lambda target: target.cpu)
@pytest.mark.parametrize("template", ["conv", "conv_dw", "winograd", "winograd_dw"])
def test_tiles_are_of_dot_products_where_there_are_such(template: str, target: Target) -> None:
    spec = KernelSpec(template, ("f32", "bf16", "bf16", "bf16"))
    assert count_dots(get_object(spec, target), target.arch) >= target.mr * target.nv

"""Attention as one op: which graphs it is found in, that it computes the same, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

from bench.families.recorded import DATA
from engine.api import CheckpointState
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.plan_options import PlanOptions, Precision
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes import attention_match, storage
from engine.graphs.passes.infer import infer
from engine.graphs.planner.planner import Planner, make_plan
from engine.kernels.machine.levels import list_levels
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import Plan
from engine.tools.dev.cases.attention import attend
from engine.tools.dev.export_artifacts import list_batch, write_artifacts
from tests.support.halves import EPSILON, round_to_half
from tests.support.harness import execute, run

PASS = "fuse attention"
RNG = np.random.default_rng(7)
TARGETS = [
    detect_host(),
    *(level.make_target() for level in list_levels()[1:2]),
]  # and float32 factors


def values(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def fused(plan: Plan) -> tuple[int, int]:
    """Return how many kernels of attention a plan calls: forward, backward."""
    names = [step.kernel.rpartition("_f")[0] for step in plan.steps]
    return names.count("attention"), names.count("attention_grad")


# --- the kernels beside numpy

SIZES: dict[str, dict[str, Any]] = {
    "one block": {"q": (2, 3, 4, 6), "k": (2, 3, 5, 6)},
    "many blocks": {"q": (1, 2, 130, 64), "k": (1, 2, 200, 64)},
    "groups": {"q": (1, 4, 70, 20), "k": (1, 2, 130, 20), "width": 36},
    "one head for all": {"q": (2, 4, 33, 16), "k": (2, 1, 65, 16)},
    "causal": {"q": (2, 2, 100, 32), "k": (2, 2, 100, 32), "high": 0},
    "a window": {"q": (2, 2, 100, 32), "k": (2, 1, 150, 32), "high": 3, "low": -20},
    "a window without keys": {"q": (1, 1, 99, 8), "k": (1, 1, 20, 8), "low": -2, "guard": 1},
    "bias and cap": {"q": (2, 2, 99, 16), "k": (2, 2, 70, 16), "bias": (2, 2, 99, 70), "cap": 2.0},
    "bias of heads": {"q": (2, 2, 99, 16), "k": (2, 2, 70, 16), "bias": (1, 2, 99, 70),
                      "together": "batch"},
    "bias of all": {"q": (2, 4, 99, 16), "k": (2, 2, 70, 16), "bias": (99, 70),
                    "together": "batch head"},
    "bias of keys": {"q": (2, 2, 40, 16), "k": (2, 2, 70, 16), "bias": (2, 1, 1, 70)},
    "bias of queries": {"q": (2, 2, 40, 16), "k": (2, 2, 70, 16), "bias": (2, 1, 40, 1)},
    "padding": {"q": (2, 2, 100, 16), "k": (2, 2, 70, 16), "mask": (2, 1, 1, 70)},
    "a mask": {"q": (2, 2, 100, 16), "k": (2, 2, 70, 16), "mask": (2, 1, 100, 70), "fill": -1e4},
    "a mask of what is hidden": {"q": (2, 2, 9, 16), "k": (2, 2, 70, 16), "mask": (9, 70),
                                 "keep": 0},
    "queries without keys": {"q": (2, 2, 10, 16), "k": (2, 2, 3, 16), "mask": (2, 1, 10, 3),
                             "guard": 1},
    "all hidden, by a number": {"q": (2, 2, 10, 16), "k": (2, 2, 30, 16), "mask": (10, 1),
                                "fill": -3e38},
}  # fmt: skip
ROWS_LAST = {"heads": {}, "rows": {"by_rows": "q k v y dy dq dk dv"},
             "steps": {"rows_first": "q k v y dy dq dk dv"}}  # fmt: skip


def _placed(x: Array, layout: str) -> Array:
    """[batch, heads, rows, columns] as in a layout."""
    order = {"heads": (0, 1, 2, 3), "rows": (0, 2, 1, 3), "steps": (2, 0, 1, 3)}[layout]
    return np.ascontiguousarray(x.transpose(order))


def _unplaced(x: Array, layout: str) -> Array:
    """Return what a layout has as [batch, heads, rows, columns]."""
    order = {"heads": (0, 1, 2, 3), "rows": (0, 2, 1, 3), "steps": (1, 2, 0, 3)}[layout]
    return x.transpose(order)


class Row(NamedTuple):
    """A row of SIZES: a node, its gradient, and values for them."""

    ins: dict[str, Array]  # [batch, heads, rows, columns], with dy
    given: dict[str, Any]  # what the reference takes besides
    layout: str
    nodes: list[Node]
    outs: list[str]

    def wanted(self, **ins: Array) -> dict[str, Array]:
        """Return the results in float64 of these inputs, placed as the kernels place them."""
        names = ("q", "k", "v", "bias", "mask", "dy")
        results = attend(*(ins.get(n) for n in names), **self.given)
        return {n: a if n == "dbias" else _placed(a, self.layout) for n, a in results.items()
                if n.strip("|") in self.outs}  # fmt: skip


def _row(name: str) -> Row:
    given = dict(SIZES[name])
    q, k = given.pop("q"), given.pop("k")
    columns = given.pop("width", k[3])
    ins = {"q": values(*q), "k": values(*k), "v": values(*k[:3], columns)}
    ins["dy"] = values(*q[:3], columns)
    together = given.pop("together", "")
    if "bias" in given:
        ins["bias"] = values(*given.pop("bias"))
    if "mask" in given:
        ins["mask"] = RNG.random(given.pop("mask")) < 0.6
    given["scale"] = q[3] ** -0.5
    layout = list(ROWS_LAST)[len(name) % 3]
    attrs = {**ROWS_LAST[layout], **given}
    names = tuple(n if n in ins else "" for n in ("q", "k", "v", "bias", "mask"))
    outs = ["dq", "dk", "dv", *(["dbias"] if "bias" in ins and 1 not in ins["bias"].shape[-2:]
                                 else [])]  # fmt: skip
    nodes = [
        Node("Attention", names, ("y", "lse"), attrs, "engine", "attention"),
        Node("AttentionGrad", (*names, "y", "lse", "dy"), tuple(outs),
             attrs | {"together": together}, "engine", "gradient"),
    ]  # fmt: skip
    return Row(ins, given | {"together": together}, layout, nodes, ["y", *outs])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SIZES)
def test_kernels_compute_what_numpy_does(name: str, dtype: Any, threads: int) -> None:
    row = _row(name)
    fed = {n: a.astype(a.dtype if a.dtype == bool else dtype) for n, a in row.ins.items()}
    fed |= {n: _placed(fed[n], row.layout) for n in ("q", "k", "v", "dy")}
    types = {n: find_type(a) for n, a in fed.items()}
    graph = Graph("attention", types, row.outs, {}, row.nodes, {"": 17, "engine": 1})
    outcome = run(graph, fed, threads=threads)
    wanted = row.wanted(**row.ins)
    for out in row.outs:
        want = wanted[out]
        most = np.abs(np.nan_to_num(want)).max() + 1e-30
        tolerance = most * (2e-5 if dtype == np.float32 else 1e-12)
        np.testing.assert_allclose(outcome[out], want, rtol=0, atol=tolerance, err_msg=out)
    again = run(graph, fed, threads=threads)
    assert all(outcome[n].tobytes() == again[n].tobytes() for n in outcome)


@pytest.mark.parametrize(
    ("name", "target", "half"),
    [*((n, t, "bf16") for n in SIZES for t in TARGETS), (next(iter(SIZES)), TARGETS[0], "f16")],
    ids=lambda v: getattr(v, "cpu", v),
)
def test_halves_are_rounded_once(
    name: str, target: Target, half: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All matrices are stored as half floats between the kernels of attention and a Neg.

    Products of them are exact.  Where P and dS are rounded, too, each term of a sum has an error of
    EPSILON of its magnitude: that is how far Y, dQ, dK and dV are off, and the rounding of the
    results.  The sums of P, and dbias, are of P and dS before they are rounded.
    """
    monkeypatch.setattr(storage, "SMALL", 0)
    row = _row(name)
    halves, rounded = ("q", "k", "v", "dy"), ("y", "dq", "dk", "dv")
    ins = {n: a if a.dtype == bool else a.astype(np.float32) for n, a in row.ins.items()}
    fed = {n: a for n, a in ins.items() if n not in halves}
    fed |= {f"{n}_in": -_placed(ins[n], row.layout) for n in halves}
    nodes = [
        *(Node("Neg", (f"{n}_in",), (n,), name=f"{n} of halves") for n in halves),
        *row.nodes,
        *(Node("Neg", (n,), (f"{n}_out",), name=f"{n} of halves") for n in rounded),
    ]
    outs = [f"{n}_out" if n in rounded else n for n in row.outs]
    types = {n: find_type(a) for n, a in fed.items()}
    graph = Graph("halves", types, outs, {}, nodes, {"": 17, "engine": 1})
    shapes = {n: a.shape for n, a in fed.items()}
    made = []
    for threads in (1, 2):
        options = PlanOptions(precision=half)
        plan = make_plan(graph, shapes, target=target, threads=threads, options=options)
        specs = [k.spec for k in plan.kernels if k.spec.template.startswith("attention")]
        assert {spec.params[1] for spec in specs} == {half}
        results = execute(plan, fed, target=target)
        actual = {n: -results[f"{n}_out"] if n in rounded else results[n] for n in row.outs}
        made.append(actual)
        assert all((actual[n] == round_to_half(actual[n], half)).all() for n in rounded)
        exact = {n: round_to_half(a, half) if n in halves else a for n, a in ins.items()}
        exact = {n: a if a.dtype == bool else a.astype(float) for n, a in exact.items()}
        kept = _unplaced(actual["y"], row.layout)
        wanted = row._replace(given=row.given | {"kept": kept}).wanted(**exact)
        for out in row.outs:
            want, near = np.nan_to_num(wanted[out]), EPSILON[half]
            bound = 2e-5 * np.abs(want).max() + 1e-30 + near * np.abs(want) * (out in rounded)
            if half in target.products and out in rounded:
                bound = bound + near * (1 + near) * wanted[f"|{out}|"]
            assert (np.isnan(actual[out]) == np.isnan(wanted[out])).all()
            off = np.abs(np.nan_to_num(actual[out]) - want)
            assert (off <= bound).all(), (out, (off / bound).max())
    # dK and dV are of parts, whose number depends on the threads.
    assert all(made[0][n].tobytes() == made[1][n].tobytes() for n in ("y", "dq"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
def test_halves_are_dropped_by_the_same_mask(target: Target) -> None:
    row = _row("many blocks")
    fed = {n: _placed(a, row.layout).astype(np.float32) for n, a in row.ins.items()}
    types = {n: find_type(a) for n, a in fed.items()}
    nodes = [replace(n, attrs=n.attrs | {"ratio": 0.5, "seed": 3.0}) for n in row.nodes]
    graph = Graph("dropped", types, row.outs, {}, nodes, {"": 17, "engine": 1})
    single, half = (run(graph, fed, target=target, precision=p) for p in ("f32", "bf16"))
    for out, want in single.items():
        assert np.linalg.norm(half[out] - want) < 0.01 * np.linalg.norm(want), out


# --- graphs as exporters write them

Q = (2, 4, 6, 8)


class Writer:
    """A graph that is being built: nodes by call, f64 initializers, inputs that are trained."""

    def __init__(self, opset: int = 18) -> None:
        self.graph = Graph("written", {}, [], {}, [], {"": opset, "com.microsoft": 1})
        self.fed: dict[str, Array] = {}

    def feed(self, name: str, value: Array) -> str:
        self.graph.inputs[name] = find_type(value)
        self.fed[name] = value
        return name

    def const(self, value: Any, dtype: Any = np.float64) -> str:
        name = f"c{len(self.graph.initializers)}"
        self.graph.initializers[name] = np.array(value, dtype)
        return name

    def op(self, op: str, *ins: str, **attrs: Any) -> str:
        at = len(self.graph.nodes)
        self.graph.nodes.append(Node(op, ins, (f"v{at}",), attrs, "", f"n{at}"))
        return f"v{at}"

    def heads(self, name: str, shape: tuple[int, ...], perm: tuple[int, ...]) -> str:
        """[batch, rows, hidden] as heads."""
        batch, heads, rows, width = shape
        x = self.feed(name, values(batch, rows, heads * width))
        wanted = self.const([batch, rows, heads, width], np.int64)
        return self.op("Transpose", self.op("Reshape", x, wanted), perm=list(perm))

    def finish(self, p: str, v: str, shape: tuple[int, ...] = Q) -> None:
        """The product with V, and heads joined."""
        rows = self.op("Transpose", self.op("MatMul", p, v), perm=[0, 2, 1, 3])
        wanted = self.const([shape[0], shape[2], -1], np.int64)
        self.graph.outputs = [self.op("Reshape", rows, wanted)]


def _plain(w: Writer, between: Callable[[Writer, str], str] = lambda w, s: s) -> None:
    """Old exporters: Q scaled, K transposed at once."""
    orders = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}
    q, k, v = (w.heads(n, Q, order) for n, order in orders.items())
    s = between(w, w.op("MatMul", w.op("Mul", q, w.const(0.35)), k))
    w.finish(w.op("Softmax", s, axis=-1), v)


def _both_scaled(w: Writer) -> None:
    """scaled_dot_product_attention of the old exporter, which guards against rows of nothing."""
    q, k, v = (w.heads(n, Q, (0, 2, 1, 3)) for n in "qkv")
    root = w.const(0.6)
    kt = w.op("Transpose", k, perm=[0, 1, 3, 2])
    s = w.op("MatMul", w.op("Mul", q, root), w.op("Mul", kt, root))
    s = w.op("Add", s, w.feed("mask", np.where(RNG.random((2, 1, 6, 6)) < 0.7, 0, -np.inf)))
    p = w.op("Softmax", s, axis=-1)
    w.finish(w.op("Where", w.op("IsNaN", p), w.const(0.0), p), v)


def _divided(w: Writer, s: str) -> str:
    """Eager attention: scores divided, an additive mask of padding."""
    padding = w.feed("padding", np.where(RNG.random((2, 1, 1, 6)) < 0.7, 0, -3e38))
    return w.op("Add", w.op("Div", s, w.const(2.0)), padding)


def _causal(w: Writer, s: str) -> str:
    seen = w.const(np.tril(np.ones((1, 1, 6, 6))), bool)
    return w.op("Where", seen, s, w.const(-3.4e38))


def _bias(w: Writer, s: str) -> str:
    """T5: a bias of heads that is trained."""
    return w.op("Add", s, w.feed("bias", values(1, 4, 6, 6)))


def _capped(w: Writer, s: str) -> str:
    limit = w.const(2.0)
    return _causal(w, w.op("Mul", w.op("Tanh", w.op("Div", s, limit)), limit))


def _joined(w: Writer, s: str) -> str:
    """Bloom: a bias of batch and heads in one dimension."""
    three, four = w.const([8, 6, 6], np.int64), w.const((*Q[:3], 6), np.int64)
    s = w.op("Add", w.op("Reshape", s, three), w.feed("alibi", values(8, 1, 6)))
    return w.op("Reshape", s, four)


def _two(w: Writer, s: str) -> str:
    return w.op("Add", _bias(w, s), w.feed("mask", values(2, 1, 1, 6)))


def _repeated(w: Writer) -> None:
    """Llama: two heads of K and V repeated for four of Q."""
    few = (2, 2, 6, 8)
    q, k, v = (w.heads(n, Q if n == "q" else few, (0, 2, 1, 3)) for n in "qkv")

    def repeat(x: str) -> str:
        x = w.op("Unsqueeze", x, w.const([2], np.int64))
        x = w.op("Expand", x, w.const([2, 2, 2, 6, 8], np.int64))
        return w.op("Reshape", x, w.const(Q, np.int64))

    k, v = repeat(k), repeat(v)
    s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    w.finish(w.op("Softmax", _causal(w, w.op("Mul", s, w.const(0.35))), axis=-1), v)


def _dropped(w: Writer) -> None:
    q, k, v = (w.heads(n, Q, (0, 2, 1, 3)) for n in "qkv")
    s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    p = w.op("Softmax", s, axis=-1)
    p = w.op("Dropout", p, w.const(0.3, np.float32), w.const(True, bool))
    w.finish(p, v)


def _three_dimensions(w: Writer) -> None:
    """Batch and heads in one dimension, as torch.bmm takes them."""
    q, k, v = (w.feed(n, values(8, 6, 5)) for n in "qkv")
    s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 2, 1]))
    w.graph.outputs = [w.op("MatMul", w.op("Softmax", w.op("Mul", s, w.const(0.4)), axis=-1), v)]


def _steps(w: Writer) -> None:
    """torch.nn.MultiheadAttention: [rows, batch, heads, columns]."""
    q, k, v = (w.op("Transpose", w.feed(n, values(6, 2, 4, 8)), perm=[1, 2, 0, 3]) for n in "qkv")
    s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    y = w.op("MatMul", w.op("Softmax", s, axis=-1), v)
    w.graph.outputs = [w.op("Transpose", y, perm=[2, 0, 1, 3])]


def _onnx(opset: int = 23, shapes: Any = (Q, Q, Q), mask: Array | None = None,
          **attrs: Any) -> Callable[[Writer], None]:  # fmt: skip
    def write(w: Writer) -> None:
        w.graph.opsets[""] = opset
        ins = [w.feed(n, values(*shape)) for n, shape in zip("qkv", shapes, strict=True)]
        if mask is not None:
            ins.append(w.feed("mask", mask) if mask.dtype != bool else w.const(mask, bool))
        w.graph.outputs = [w.op("Attention", *ins, **attrs)]

    return write


def _between(change: Callable[[Writer, str], str]) -> Callable[[Writer], None]:
    return lambda w: _plain(w, change)


_HIDES = np.arange(36).reshape(6, 6) % 5 != 0
_EMPTY = _HIDES & (np.arange(6)[:, None] != 2)
WRITTEN: dict[str, Callable[[Writer], None]] = {
    "plain": _plain,
    "both scaled": _both_scaled,
    "divided": _between(_divided),
    "causal": _between(_causal),
    "bias": _between(_bias),
    "capped": _between(_capped),
    "joined": _between(_joined),
    "two biases": _between(_two),
    "repeated": _repeated,
    "dropped": _dropped,
    "three dimensions": _three_dimensions,
    "steps": _steps,
    "Attention-23": _onnx(),
    "Attention-23 causal": _onnx(is_causal=1),
    "Attention-23 groups": _onnx(shapes=(Q, (2, 2, 6, 8), (2, 2, 6, 5)), is_causal=1, softcap=2.0),
    "Attention-23 mask": _onnx(mask=_HIDES),
    "Attention-23 a query without keys": _onnx(mask=_EMPTY),
    "Attention-23 bias": _onnx(mask=values(2, 4, 6, 6)),
    "Attention-23 of rows": _onnx(shapes=((2, 6, 32),) * 3, q_num_heads=4, kv_num_heads=4),
    "Attention-25 window": _onnx(25, left_window_size=2, right_window_size=1),
}


def _model(name: str, *, backward: bool) -> Writer:
    """A written graph; with its gradients by all inputs but masks, of sum(y weights)."""
    w = Writer()
    WRITTEN[name](w)
    if not backward:
        return w
    (y,) = w.graph.outputs
    weights = w.feed("weights", values(*infer(w.graph.copy()).types[y].dims))
    axes = w.const(list(range(w.fed["weights"].ndim)), np.int64)
    loss = w.op("ReduceSum", w.op("Mul", y, weights), axes, keepdims=0)
    wanted = [n for n in w.fed if n in ("q", "k", "v", "bias") or (n == "mask" and "bias" in name)]
    types = infer(w.graph.copy()).types
    grads = differentiate(w.graph, loss, wanted, types)
    w.graph.outputs = [y, *(grads[n] for n in wanted)]
    return w


def plans(graph: Graph, fed: dict[str, Array], threads: int = 2) -> tuple[Plan, Plan]:
    """The plan of a graph, and the one that leaves attention as it is."""
    shapes = {n: a.shape for n, a in fed.items()}
    made = [
        make_plan(graph.copy(), shapes, target=detect_host(), threads=threads, without=without)
        for without in ((), (PASS,))
    ]
    return made[0], made[1]


@pytest.fixture
def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is one op also where separate products are faster."""
    monkeypatch.setattr(attention_match, "FEW", 0)


@pytest.mark.usefixtures("however_few")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_found_and_computes_the_same(name: str, backward: bool) -> None:
    w = _model(name, backward=backward)
    plan, plain = plans(w.graph, w.fed)
    assert fused(plan) == (1, int(backward))
    assert fused(plain) == (0, 0)
    outcome = run(w.graph, w.fed, threads=2)
    wanted = run(w.graph, w.fed, threads=2, without=(PASS,))
    for output, want in wanted.items():
        most = np.abs(np.nan_to_num(want)).max()
        np.testing.assert_allclose(outcome[output], want, rtol=0, atol=1e-12 * most, err_msg=output)


@pytest.mark.usefixtures("however_few")
def test_queries_without_keys_give_zeros_and_zero_gradients() -> None:
    w = _model("Attention-23 a query without keys", backward=True)
    y, dq, _, _ = run(w.graph, w.fed).values()
    assert (y[:, :, 2] == 0).all()
    assert (dq[:, :, 2] == 0).all()
    assert (y[:, :, :2] != 0).any()


@pytest.mark.usefixtures("however_few")
def test_a_mask_by_nan_gives_zero_gradients() -> None:
    w = _model("both scaled", backward=True)
    w.fed["mask"] = np.where(np.arange(6)[:, None] == 1, -np.inf, np.zeros((2, 1, 6, 6)))
    y, dq, dk, dv = run(w.graph, w.fed).values()
    assert (y[:, 1] == 0).all()
    assert (dq[:, 1] == 0).all()
    assert np.isfinite(dk).all()
    assert np.isfinite(dv).all()


def _read_scores(w: Writer) -> None:
    """The probabilities are an output too."""
    _plain(w)
    w.graph.outputs.append(next(n.outputs[0] for n in w.graph.nodes if n.op == "Softmax"))


def _scaled_behind(w: Writer) -> None:
    _plain(w, lambda w, s: w.op("Mul", _causal(w, s), w.const(2.0)))


def _a_vector(w: Writer) -> None:
    """Each query takes a number, not a row, of each key."""
    q, k, v = w.feed("q", values(6, 5)), w.feed("k", values(5, 7)), w.feed("v", values(7))
    w.graph.outputs = [w.op("MatMul", w.op("Softmax", w.op("MatMul", q, k), axis=-1), v)]


def _vectors(w: Writer) -> None:
    q, k, v = w.feed("q", values(5)), w.feed("k", values(3, 5, 7)), w.feed("v", values(7, 2))
    w.graph.outputs = [w.op("MatMul", w.op("Softmax", w.op("MatMul", q, k), axis=-1), v)]


def _no_product(w: Writer) -> None:
    w.graph.outputs = [w.op("Softmax", w.feed("x", values(2, 3, 4, 4)), axis=-1)]


def _other_axis(w: Writer) -> None:
    _plain(w)
    next(n for n in w.graph.nodes if n.op == "Softmax").attrs["axis"] = 2


@pytest.mark.usefixtures("however_few")
@pytest.mark.parametrize(
    "write", [_read_scores, _scaled_behind, _a_vector, _vectors, _no_product, _other_axis]
)
def test_what_is_read_elsewhere_or_not_understood_stays(write: Callable[[Writer], None]) -> None:
    w = Writer()
    write(w)
    plan, _ = plans(w.graph, w.fed)
    assert fused(plan) == (0, 0)


@pytest.mark.usefixtures("however_few")
def test_a_gradient_that_is_read_elsewhere_stays_with_its_forward() -> None:
    w = _model("plain", backward=True)
    inside = next(n.outputs[0] for n in w.graph.nodes if n.op == "SoftmaxGrad_13")
    w.graph.outputs.append(inside)
    plan, _ = plans(w.graph, w.fed)
    assert fused(plan) == (0, 0)


@pytest.mark.parametrize(("rows", "is_one"), [(96, False), (128, True)])
def test_few_scores_are_left_as_products(rows: int, is_one: bool) -> None:
    w = Writer()
    q, k, v = (w.feed(n, values(1, 2, rows, 8)) for n in "qkv")
    s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
    w.graph.outputs = [w.op("MatMul", w.op("Softmax", s, axis=-1), v)]
    plan, _ = plans(w.graph, w.fed)
    assert fused(plan) == (int(is_one), 0)


# --- models as exporters wrote them

MODELS = {
    "bert-old-14-train": 2,
    "gpt2-new-18-train": 2,
    "falcon-old-17-eval-folded": 2,
    "vit-old-17-eval-folded": 2,
    "t5-old-14-train": 3,
    "llama-new-18-train": 2,
}


@pytest.mark.usefixtures("however_few")
@pytest.mark.parametrize("tag", MODELS)
def test_models_of_exporters(tag: str, tmp_path: Path) -> None:
    with np.load(DATA / f"{tag}.npz") as file:
        data = dict(file)
    write_artifacts(onnx.load(DATA / f"{tag}.onnx"), data, tmp_path, is_training="train" in tag)
    graph = onnx_io.load(str(tmp_path / "training_model.onnx"))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    fed = dict(zip(graph.inputs, list_batch(data), strict=False))
    for name, t in graph.inputs.items():
        if name not in fed:
            given = state.parameters[name].data if name in state.parameters else None
            fed[name] = np.zeros(t.dims, NUMPY[t.dtype]) if given is None else np.asarray(given)
    plan, _ = plans(graph, fed)
    assert fused(plan) == (MODELS[tag], MODELS[tag])
    outcome = run(graph, fed, threads=2, changes=True)
    wanted = run(graph, fed, threads=2, changes=True, without=(PASS,))
    largest = max(np.abs(a).max() for n, a in wanted.items() if "accumulation" in n)
    for name, want in wanted.items():
        most = max(np.abs(want).max(), 1e-3 * largest)
        np.testing.assert_allclose(outcome[name], want, rtol=0, atol=1e-4 * most, err_msg=name)


# --- memory


@pytest.mark.parametrize("kind", ["plain", "causal", "dropped"])
def test_memory_is_linear_in_length(kind: str) -> None:
    """The arena of forward and backward, beside the inputs' own bytes."""

    def arena(rows: int) -> int:
        w = Writer()
        w.graph.inputs = {n: TensorType("f32", (1, 2, rows, 16)) for n in "qkv"}
        q, k, v = "qkv"
        s = w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2]))
        if kind == "causal":
            seen = w.const(np.tril(np.ones((1, 1, rows, rows))), bool)
            s = w.op("Where", seen, s, w.const(-np.inf, np.float32))
        p = w.op("Softmax", s, axis=-1)
        if kind == "dropped":
            p = w.op("Dropout", p, w.const(0.1, np.float32), w.const(True, bool))
        y = w.op("MatMul", p, v)
        loss = w.op("ReduceMean", y, keepdims=0)
        types = infer(w.graph.copy()).types
        grads = differentiate(w.graph, loss, list("qkv"), types)
        w.graph.outputs = [y, *(grads[n] for n in "qkv")]
        plan = make_plan(w.graph, {}, target=detect_host(), threads=2)
        assert fused(plan) == (1, 1)
        return plan.compute_region_bytes("work")

    assert arena(2048) < 2.05 * arena(1024)
    assert arena(2048) < 2048 * 2048


def test_lengths_share_what_passes_have_made() -> None:
    """A further length takes the recipe of the first, with its own numbers."""
    w = Writer()
    shape = ("batch", 2, "rows", 16)
    w.graph.inputs = {n: TensorType("f32", shape) for n in "qkv"}
    s = w.op("MatMul", "q", w.op("Transpose", "k", perm=[0, 1, 3, 2]))
    w.graph.outputs = [w.op("MatMul", w.op("Softmax", s, axis=-1), "v")]
    planner = Planner(w.graph, target=detect_host(), threads=2)
    for rows in (300, 400, 555):
        plan = planner.plan({n: (2, 2, rows, 16) for n in "qkv"})
        assert fused(plan) == (1, 0)
    assert planner.passed == 1

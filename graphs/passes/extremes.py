"""Gradients of ReduceMax and ReduceMin as one op, for plans that store values in 16 bits.

The nodes of such a gradient compare x with y.  If x is stored rounded, they may compute it a second
time, not rounded, so that no element equals y and the gradient is 0 / 0.  The op reads one x.
"""

from __future__ import annotations

from engine.graphs.ir.graph import Graph
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.rewrite import Match, Rule, list_added, rewrite
from engine.kernels.vocabulary.op import OURS


def _match(m: Match) -> bool:
    axes, extreme = m.list_axes("s"), m.get_node("y")
    if not m.get_node("s").attrs.get("keepdims", 1) or axes != m.list_axes("y"):
        return m.refuse("ExtremeGrad", "equal elements are counted along other axes")
    y = m.add_op(extreme.op, *extreme.inputs, **extreme.attrs)  # one with the forward pass's
    if "top" in m.values:
        view = m.get_node("top")
        y = m.add_op(view.op, y, *view.inputs[1:], **view.attrs)
    inputs = (m.values["dy"], m.values["x"], y)
    largest = int(extreme.op == "ReduceMax")
    m.add_op("ExtremeGrad", *inputs, domain=OURS, axes=axes, largest=largest)
    return True


RULES = tuple(
    Rule(
        f"{op}{more} {OURS}::ExtremeGrad",
        f"Mul(Div(dy, s := ReduceSum(h := Cast(Equal(x, {top.format(f'y := {op}(x)')})))), h)",
        _match,
        shares=True,
    )
    for op in ("ReduceMax", "ReduceMin")
    for top, more in (("{}", ""), ("top := Unsqueeze({}, front)", " Unsqueeze"))
)
MAY_ADD = list_added(RULES)


def join_extreme_grads(graph: Graph, found: Inferred) -> bool:
    """Replace the nodes of gradients of ReduceMax and ReduceMin; return whether there were any.

    Before   y = ReduceMax(x); h = Cast(Equal(x, y)); dx = Mul(Div(dy, ReduceSum(h)), h)
    After    y = ReduceMax(x); dx = engine::ExtremeGrad(dy, x, y)
    """
    return rewrite(graph, found, RULES)

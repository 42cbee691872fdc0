"""Ops without a gradient, with advice derived from the declarations of the ops."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kernels.ops.registry import list_ops
from engine.kernels.vocabulary.op import OURS, Op

CONSTANT = "its result is piecewise constant, so its gradient is zero"
INTEGERS = "it computes with integers"
NO_RULE = "it has no gradient rule"
DO = {
    CONSTANT: "train only the layers after it, or let gradients pass with a straight-through "
    "estimator: y = x + PassThrough(f(x) - x)",
    INTEGERS: "train the last layer as floats (train='head'), give its layers adapters (lora='.'), "
    "or train the float model and quantise it again",
    NO_RULE: "train only the layers after it, by patterns of names (train=), or write a gradient "
    "rule: docs/custom-ops.md",
}


def explain(op: Op) -> str:
    """Return why no gradient flows through an op; "" if one does, or if no forward model has it."""
    is_inner = op.internal or op.domain == OURS or op.is_for_training
    if op.differentiable or is_inner:
        return ""
    if op.is_of_integers:
        return INTEGERS
    return CONSTANT if op.expr is not None or op.fold is not None else NO_RULE


ONE_CASE = "make the model for one case of its inputs, with `edgegrad specialize`"
_CONTROL_FLOW = {("", name) for name in ("If", "Loop", "Scan")}


def advise(domain: str, name: str) -> str:
    """Return advice for an op through which no gradient flows; "" if none is needed."""
    if (domain, name) in _CONTROL_FLOW:
        return ONE_CASE
    op = list_ops().get((domain, name))
    return DO[NO_RULE] if op is None else DO.get(explain(op), "")


def list_rows() -> Iterable[tuple[str, str, str]]:
    """Yield each reason, its ops, and the advice."""
    for reason, what in DO.items():
        names = sorted({op.title for op in list_ops().values() if explain(op) == reason})
        if names:
            yield reason, " ".join(names), what


def make_table() -> str:
    """Return the rows as a Markdown table."""
    lines = [f"| {reason} | {names} | {what} |\n" for reason, names, what in list_rows()]
    return "".join(["| why | operators | what to do |\n|---|---|---|\n", *lines])

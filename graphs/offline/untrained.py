"""What no gradient flows through, and what to do: derived from the declarations of the ops."""

from __future__ import annotations

from collections.abc import Iterable

from engine.kernels.registry import ops
from engine.kernels.vocabulary.op import OURS, Op

CONSTANT = "its result is constant in pieces, so its gradient is zero"
INTEGERS = "it computes with integers"
NO_RULE = "it has no gradient rule"
DO = {
    CONSTANT: "train what is behind it, or let gradients pass by with a straight-through "
    "estimator: y = x + PassThrough(f(x) - x)",
    INTEGERS: "train the float model and quantise that again; integer weights behind "
    "DequantizeLinear or in MatMulNBits take adapters (lora='.')",
    NO_RULE: "train what is behind it, with train= and patterns of names, or give it a rule: "
    "docs/custom-ops.md",
}
_QUANTISED = ("Integer", "QLinear", "Quantize", "QGemm", "QAttention")


def why(op: Op) -> str:
    """Why no gradient flows through an op; "" if one does, or nothing of a forward model is one."""
    is_inner = op.internal or op.domain == OURS or op.is_for_training
    if op.differentiable or is_inner:
        return ""
    if any(word in op.name for word in _QUANTISED):
        return INTEGERS
    return CONSTANT if op.expr is not None or op.fold is not None else NO_RULE


def advice(domain: str, name: str) -> str:
    """What to do about an op through which no gradient flows; "" where nothing is to be done."""
    op = ops().get((domain, name))
    return DO[NO_RULE] if op is None else DO.get(why(op), "")


def rows() -> Iterable[tuple[str, str, str]]:
    """The reasons, the ops of each, and what to do."""
    for reason, what in DO.items():
        names = sorted({op.title for op in ops().values() if why(op) == reason})
        if names:
            yield reason, " ".join(names), what


def table() -> str:
    """The rows as a table of Markdown."""
    lines = [f"| {reason} | {names} | {what} |\n" for reason, names, what in rows()]
    return "".join(["| why | operators | what to do |\n|---|---|---|\n", *lines])

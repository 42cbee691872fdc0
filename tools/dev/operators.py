"""Operators: the table of all ops, by domain and family, for docs/operators.md."""

from __future__ import annotations

from engine.graphs.offline import untrained
from engine.kernels.ops.registry import list_families
from engine.kernels.vocabulary.op import Op

_HEAD = """\
# Operators

This page lists every operator that has kernels, by domain and by the module of `kernels/ops/` that
declares it. For a model, `edgegrad ops model.onnx` reports whether each node runs and trains.
[One short file](custom-ops.md) adds an operator. Operators that ONNX defines as functions need no
kernels, because their bodies are used.

An asterisk marks operators that pass no gradient on, because it is zero, or because they belong to
a backward pass or an optimizer.

`python -m engine.tools.dev.tables` writes this page from the declarations in `kernels/`.
"""

_LACKS = """
## What does not train, and what to do

No gradient flows through these operators. `edgegrad ops` prints this table, and `edgegrad ops
model.onnx` reports for each node of a model whether it trains, and if not, why and what to do.

"""

_DOMAINS = {
    "": "ONNX",
    "com.microsoft": "com.microsoft (of onnxruntime and onnxruntime-training)",
    "engine": "engine (of edgegrad's planner, optimizers and losses)",
}


def make_table() -> str:
    """Return the table as Markdown."""
    parts = [_HEAD]
    every = [
        (f.__name__.rpartition(".")[2], op) for f in list_families() for op in getattr(f, "OPS", ())
    ]
    for domain, title in _DOMAINS.items():
        rows: dict[str, list[Op]] = {}
        for family, op in every:
            if op.domain == domain:
                rows.setdefault(family, []).append(op)
        parts.append(f"\n## {title}\n\n| family | operators |\n|---|---|\n")
        for family, ops in sorted(rows.items()):
            names = sorted(op.name + ("" if op.differentiable else "*") for op in ops)
            parts.append(f"| {family} | {' '.join(names)} |\n")
    return "".join([*parts, _LACKS, untrained.make_table()])

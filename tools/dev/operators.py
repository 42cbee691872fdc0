"""Operators: the table of all ops, by domain and family, for docs/operators.md."""

from __future__ import annotations

from engine.graphs.offline import untrained
from engine.kernels.ops.registry import list_families
from engine.kernels.vocabulary.op import Op

_HEAD = """\
# Operators

Made by `python -m engine.tools.dev.tables` from the declarations in kernels/.

An asterisk: no gradient flows through the op, or it is zero, or the op is part of a backward pass.
"""

_LACKS = """
## What does not train, and what to do

No gradient flows through these, in any model. `edgegrad ops` prints this table, and
`edgegrad ops MODEL` reports for each node of a model whether it trains, and if not, why and what
to do.

"""

_DOMAINS = {
    "": "ONNX",
    "com.microsoft": "com.microsoft (onnxruntime, and what onnxruntime-training writes)",
    "engine": "engine (what the planner and the optimizers use)",
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

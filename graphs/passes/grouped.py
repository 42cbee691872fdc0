"""Grouped matrix products: rows times the matrix of their group, without a copy of it for each row.

    Before   m = Gather(w, group); y = MatMul(x, m)                  a matrix for each row of x
    After    order, back, starts = GroupRows(group)
             y = Gather(SegmentMatMul(Gather(x, order), w, starts), back)

Mixtures of experts compute such products, because each token chooses a few matrices.  As exporters
write them, the copies and their gradients would take the memory of one matrix for each row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.graphs.passes.rewrite import Match, Rule
from engine.kernels.vocabulary.op import OURS, Dim

_RULE = "SegmentMatMul"


def _find_swap(m: Match) -> bool | None:
    """Return whether the transposes of a match swap the axes of the matrices; None if any other."""
    swaps = False
    for name in ("before", "after"):
        if name not in m.values:
            continue
        rank = m.get_type(name).rank
        perm = [int(axis) for axis in m.get_node(name).attrs.get("perm", range(rank)[::-1])]
        same = list(range(rank))
        if perm == [*same[:-2], rank - 1, rank - 2]:
            swaps = not swaps
        elif perm != same:
            return None
    return swaps


def _find_groups(m: Match) -> tuple[Dim, ...] | None:
    """Return the shape of the groups if each selects a matrix; None for other selections."""
    node, shape = m.get_node("chosen"), m.get_type("group").shape
    if node.op == "Gather":
        return shape if node.attrs.get("axis", 0) == 0 else None
    is_plain = not node.attrs.get("batch_dims", 0) and shape[-1:] == (1,)
    return shape[:-1] if is_plain else None


def _match(m: Match) -> bool:
    w, x, y = m.get_type("w"), m.get_type("x"), m.found.types[m.root.outputs[0]]
    swaps, groups = _find_swap(m), _find_groups(m)
    if swaps is None or not groups or w.rank != 3 or not isinstance(w.shape[0], int):
        return m.refuse(_RULE, f"{m.get_type('group')} selects other parts than matrices of {w}")
    if m.get_value("group") is not None:
        return m.refuse(_RULE, "the groups are constant")
    is_left = m.root.inputs[0] != m.values["x"]
    rows = 1 if is_left else x.shape[-2] if x.rank > 1 else 0
    if x.shape[:-2] != groups or not isinstance(rows, int) or not rows:
        return m.refuse(_RULE, f"x is {x}; expected rows for each group of {groups}")
    if is_left and x.shape[-1] != 1:
        return m.refuse(_RULE, f"x is {x}; expected one column on the right of a matrix")
    inner = x.shape[-2] if is_left else x.shape[-1]
    sizes = [d for d in (inner, *y.shape) if isinstance(d, int)]
    if len(sizes) < len(y.shape) or not isinstance(inner, int) or 0 in sizes:
        return m.refuse(
            _RULE, f"x is {x} and y is {y}; expected one axis of any size at most, and none of 0"
        )

    def reshape(value: str, *shape: Dim) -> str:
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        return m.add_op("Reshape", value, m.add_constant(np.array(sizes, np.int64)))

    flat = reshape(m.values["group"], -1)
    if rows > 1:
        each = m.add_constant(np.array([1, rows], np.int64))
        flat = reshape(m.add_op("Expand", reshape(flat, -1, 1), each), -1)
    order, back, starts = m.add_node("GroupRows", flat, domain=OURS, outputs=3, groups=w.shape[0])
    matrix = m.add_op("Gather", reshape(m.values["x"], -1, inner), order, axis=0)
    product = m.add_op(
        _RULE, matrix, m.values["w"], starts, domain=OURS, transB=int(is_left != swaps)
    )
    reshape(m.add_op("Gather", product, back, axis=0), *y.shape)
    return True


def _list_patterns() -> Iterator[str]:
    for select in ("Gather", "GatherND"):
        for table in ("w", "before := Transpose(w)"):
            chosen = f"chosen := {select}({table}, group)"
            for matrices in (chosen, f"after := Transpose({chosen})"):
                yield f"MatMul({matrices}, x)"
                yield f"MatMul(x, {matrices})"


RULES = tuple(
    Rule(f"Reshape Expand Gather {OURS}::GroupRows {OURS}::{_RULE}", pattern, _match)
    for pattern in _list_patterns()
)

"""Inputs and outputs that a run may have in memory of the caller, instead of a copy in region io.

Copying a large array costs its bytes once more.  A run that is given the address of the caller's
array needs no copy, if nothing else of the plan has the bytes of the buffer.
"""

from __future__ import annotations

import itertools
import sys

from engine.base.element_types import REALS
from engine.plan.plan import Plan, Port

LEAST_LENT = 1 << 16  # bytes of an array from which on its own place beats a copy
_LENT_TYPES = (*REALS, "u8", "i8")  # of inputs: what no kernel takes for an index


def _find_alone(plan: Plan) -> set[int]:
    """Return the offsets in region io of buffers whose bytes no other buffer has."""
    spans = [(b.offset, b.offset + b.nbytes) for b in plan.buffers if b.region == "io" and b.nbytes]
    alone, reached = set[int](), 0
    spans.sort()
    for (begin, end), (following, _) in itertools.pairwise([*spans, (sys.maxsize, 0)]):
        if reached <= begin and end <= following:
            alone.add(begin)
        reached = max(reached, end)
    return alone


def _is_large(plan: Plan, port: Port, alone: set[int]) -> bool:
    b = plan.buffers[port.buffer]
    return b.region == "io" and b.offset in alone and b.nbytes >= LEAST_LENT


def list_lent_outputs(plan: Plan) -> list[Port]:
    """Return the large outputs that a run may write to memory of the caller."""
    alone = _find_alone(plan)
    return [port for port in plan.outputs if _is_large(plan, port, alone)]


def list_lent_inputs(plan: Plan) -> list[Port]:
    """Return the large inputs that a run may read from memory of the caller.

    The steps only read them.  Labels, indices and lengths are not among them: a kernel checks them
    before it uses them, and another thread of the caller might change them in between.
    """
    alone = _find_alone(plan)
    written = {a.buffer for step in plan.steps for a in step.args if a.mode != "r"}
    written |= {port.buffer for port in plan.outputs}
    return [
        port
        for port in plan.inputs
        if _is_large(plan, port, alone)
        and port.buffer not in written
        and plan.buffers[port.buffer].dtype in _LENT_TYPES
    ]

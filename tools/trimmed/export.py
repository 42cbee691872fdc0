"""The inference model that a library exports: the graph without the values of the parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.base.element_types import ITEMSIZE
from engine.base.errors import ModelError
from engine.tools.trimmed.bundle import describe_inference
from engine.tools.trimmed.plans import Planned


@dataclass(frozen=True, slots=True)
class Hole:
    """The place of one tensor's values.

    at: the bytes of the graph before it.
    rows: how often a run of each parameter comes; parts of a weight along a later axis alternate.
    runs: the number of a parameter and the bytes of its runs, of one or two parameters.
    """

    at: int
    rows: int
    runs: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class GraphTemplate:
    """A serialised ONNX model without the values of the parameters.

    content: the bytes of the file that are not values, one piece after another.
    """

    content: bytes
    holes: Sequence[Hole]

    def write_holes(self) -> str:
        """Return the rows of the C array `holes` of runtime/export.c."""
        rows = []
        for hole in self.holes:
            runs = [*hole.runs, (0, 0)][:2]
            listed = ", ".join(f"{{{parameter}, {nbytes}}}" for parameter, nbytes in runs)
            rows.append(f"{{{hole.at}, {hole.rows}, {{{listed}}}}}")
        return ", ".join(rows)


def make_graph(planned: Planned) -> GraphTemplate:
    """Return the inference model of a build without the parameters.

    Raises:
        ModelError: there is none, or it reads no parameter.
    """
    facts = describe_inference(planned)
    if planned.inference is None or facts is None or not (facts["places"] or facts["parts"]):
        raise ModelError(
            "--export: there is no inference model with parameters: the artifacts have no eval "
            "model, or no forward output was found in it, or weights are rounded in training: load "
            "the checkpoint of the device into a Trainer, which exports integers"
        )
    numbers = {name: i for i, name in enumerate(planned.parameters)}
    slots = planned.state.slots

    def list_runs(names: Sequence[str], rows: int) -> list[tuple[int, int]]:
        each = [(numbers[name], slots[name]) for name in names]
        return [(n, math.prod(s.shape) * ITEMSIZE[s.dtype] // rows) for n, s in each]

    places = [(at, 1, list_runs([name], 1)) for name, at in facts["places"].items()]
    for pair, _ in planned.joined.values():
        if pair[0] in facts["parts"]:
            at, rows, _ = facts["parts"][pair[0]]
            places.append((at, rows, list_runs(pair, rows)))
    pieces, holes, end, kept = list[bytes](), list[Hole](), 0, 0
    for at, rows, runs in sorted(places):
        pieces.append(planned.inference[end:at])
        kept += at - end
        holes.append(Hole(kept, rows, runs))
        end = at + rows * sum(nbytes for _, nbytes in runs)
    return GraphTemplate(b"".join([*pieces, planned.inference[end:]]), holes)

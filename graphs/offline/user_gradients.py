"""Gradients of users: where the backward pass of a training graph does what a user has written.

A gradient of ours keeps samples apart wherever the forward pass does.  One that a user has written,
as the `backward` of an `autograd.Function` or the rule of an op from outside of this package, may
do anything with the samples of a batch.  So the metadata of a training graph say which they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from engine.base.errors import ModelError
from engine.graphs.ir.graph import Graph
from engine.system.files import NOTE

METADATA = f"{NOTE}told_gradients"


@dataclass(frozen=True, slots=True)
class ToldGradient:
    """The part of a backward pass that one node tells.

    node: its name in the forward pass.
    given: the gradients that it is given, each with the output whose gradient it is.
    made: the gradients that it makes, each with the input whose gradient it is part of.
    """

    node: str
    given: Mapping[str, str]
    made: Mapping[str, str]

    def rename_gradients(self, names: Mapping[str, str]) -> ToldGradient:
        """Return it with other names of the gradients."""
        given, made = (
            {names.get(dx, dx): x for dx, x in each.items()} for each in (self.given, self.made)
        )
        return ToldGradient(self.node, given, made)


def note(graph: Graph, told: Iterable[ToldGradient]) -> None:
    """Note the told gradients of a training graph in its metadata."""
    made = {o for node in graph.nodes for o in node.outputs}
    rows = [asdict(each) for each in told if not made.isdisjoint(each.made)]
    if rows:
        graph.metadata[METADATA] = json.dumps(rows, separators=(",", ":"))


def read(graph: Graph) -> list[ToldGradient]:
    """Return the gradients that the metadata of a graph list.

    Raises:
        ModelError: they are damaged.
    """
    text = graph.metadata.get(METADATA)
    if text is None:
        return []
    try:
        gradients = [
            ToldGradient(row["node"], row["given"], row["made"]) for row in json.loads(text)
        ]
        names = {n for each in gradients for n in (*each.given.items(), *each.made.items())}
        if all(isinstance(n, str) for n in (*sum(names, ()), *(each.node for each in gradients))):
            return gradients
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ModelError(
        f"{graph.name}: the metadata {METADATA!r} is damaged; generate the artifacts again"
    )

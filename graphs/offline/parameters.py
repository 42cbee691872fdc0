"""Parameters: which initializers of a forward model are trained where nobody names them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from engine import arguments
from engine.element_types import FLOATS, OF_NUMPY
from engine.errors import NameNotFoundError, nearest
from engine.graphs.ir.graph import Graph
from engine.graphs.ir.sites import declaration
from engine.graphs.passes.batchnorm import STATISTICS


def parameters(graph: Graph) -> list[str]:
    """The initializers of a forward model that are its parameters.

    Where the exporter has written down the parameters of the module, it is these.  Elsewhere it is
    those of float32 or float64 that are no scalars, and from which a gradient can flow to an output
    of the model: running statistics of a batch normalisation are none, nor are sizes and bounds.
    """
    floats = {n for n, a in graph.initializers.items() if OF_NUMPY.get(a.dtype) in FLOATS}
    if graph.parameters:
        return [name for name in graph.initializers if name in floats and name in graph.parameters]
    reached = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not reached.isdisjoint(node.outputs):
            stop = {*declaration(graph, node).stop}
            if (node.domain, node.op) == ("", "BatchNormalization"):
                stop |= {*STATISTICS}
            reached.update(i for k, i in enumerate(node.inputs) if i and k not in stop)
    return [n for n, a in graph.initializers.items() if n in floats & reached and a.ndim]


def matching(graph: Graph, patterns: Sequence[str]) -> list[str]:
    """The parameters that patterns name, in the order of the model.

    patterns: names, or patterns of names with `*`, `?` and `[...]`, upper and lower case apart.  A
        name stands for the initializer of that name, whatever it is; one that begins with `!`
        takes away what it matches from those before it.

    Raises:
        NameNotFoundError: a pattern matches nothing.
    """
    known, chosen = parameters(graph), set[str]()
    for pattern in arguments.names("parameters to train", patterns):
        wanted = pattern.removeprefix("!")
        found = {name for name in known if fnmatchcase(name, wanted)}
        if wanted in graph.initializers:
            found.add(wanted)
        if not found:
            raise NameNotFoundError(
                f"parameters to train: {pattern!r} matches none of {len(known)} parameters"
                f"{nearest(wanted, known)}"
            )
        chosen = chosen - found if pattern != wanted else chosen | found
    return [name for name in graph.initializers if name in chosen]

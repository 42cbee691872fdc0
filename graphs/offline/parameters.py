"""Parameters: the initializers of a forward model that are trained by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.base import arguments
from engine.base.element_types import FLOATS, OF_NUMPY
from engine.base.errors import NameNotFoundError
from engine.graphs.ir.graph import Graph, Node, Subgraph
from engine.graphs.ir.sites import find_units, is_dequantiser
from engine.graphs.ir.units import list_scales_of_sums
from engine.graphs.offline.integer_layers import write_layers
from engine.graphs.offline.integer_training import list_resident, list_units
from engine.graphs.offline.integer_weights import is_rounded
from engine.graphs.offline.lora import note_of
from engine.graphs.offline.precision import tell
from engine.graphs.offline.untrained import ONE_CASE
from engine.graphs.passes.batchnorm import STATISTICS
from engine.kernels.ops.registry import list_ops
from engine.system.paths import Paths

ALL = "*"  # what is trained by default, among patterns of parameters


def list_parameters(graph: Graph) -> list[str]:
    """Return the initializers of a forward model that are its parameters.

    If the exporter has recorded the parameters of the module, and has folded none of them, these
    are returned.  Otherwise they are the initializers of float32 or float64, other than scalars,
    from which a gradient can flow to an output of the model: this excludes running statistics of
    batch normalisations, scales of weights that are stored as integers, sizes, bounds and whatever
    the exporter calls a buffer.  Integers stop gradients here: what lies in front of layers of
    integers is trained where it is asked for, see `match_parameters`.

    If a model has adapters (lora.py), only their parameters are returned; everything else stays a
    constant.
    """
    note = note_of(graph)
    if note is not None:
        return note.list_parameters()
    floats = {n for n, a in graph.initializers.items() if OF_NUMPY.get(a.dtype) in FLOATS}
    known = floats.intersection(graph.parameters)
    if not known or graph.gone:
        vectors = {name for name in floats if graph.initializers[name].ndim}
        # In a model of integer weights, nothing before a quantiser is trained by default.
        reached = _find_differentiable(graph, trains_rounded=is_rounded(graph))
        known |= vectors.intersection(reached).difference(graph.buffers)
    return [name for name in graph.initializers if name in known]


def _list_in_front(graph: Graph) -> list[str]:
    """Return the initializers of floats from which gradients flow through layers of integers."""
    whole = graph.copy()
    write_layers(whole)
    reached = _find_differentiable(whole, trains_rounded=True).difference(graph.buffers)
    floats = {n: a for n, a in graph.initializers.items() if OF_NUMPY.get(a.dtype) in FLOATS}
    return [name for name, array in floats.items() if array.ndim and name in reached]


def _find_differentiable(graph: Graph, *, trains_rounded: bool) -> set[str]:
    """Return the values from which a gradient can flow to an output.

    trains_rounded: whether it flows through integers that quantisers make of numbers.
    """
    reached, readers = set(graph.outputs), graph.find_consumers()
    scales = {node.inputs[i] for node, i in list_scales_of_sums(graph, graph.initializers)}
    for node in reversed(graph.nodes):
        if reached.isdisjoint(node.outputs):
            continue
        op = list_ops().get((node.domain, node.op))  # a missing one is refused when it matters
        stop = set[int]() if op is None else {*op.no_gradient}
        if (node.domain, node.op) == ("", "BatchNormalization"):
            stop |= {*STATISTICS}
        if is_dequantiser(node) and node.inputs[0] in graph.initializers:
            stop.add(1)
        if trains_rounded and find_units(node) is not None and _is_undone(node, readers):
            stop.discard(0)
        reached.update(i for k, i in enumerate(node.inputs) if i and k not in stop)
        for body in node.attrs.values():
            if isinstance(body, Subgraph):
                inside = _find_differentiable(body.graph, trains_rounded=trains_rounded)
                pairs = zip(body.inner, body.captured, strict=True)
                reached.update(outer for inner, outer in pairs if inner in inside)
    return reached - scales


def _is_undone(node: Node, readers: Mapping[str, Sequence[Node]]) -> bool:
    """Return whether only dequantisers read what a quantiser makes: gradients pass both."""
    after = readers.get(node.outputs[0], ())
    return bool(after) and all(map(is_dequantiser, after))


def match_parameters(graph: Graph, patterns: Sequence[str], *, integers: bool = False) -> list[str]:
    """Return the parameters that patterns name, in the order of the model.

    patterns: names, or patterns of names with `*`, `?` and `[...]`, with upper and lower case
        distinct, of the initializers themselves or of their paths in the module, see
        engine/system/paths.py.  A name stands for the initializer of that name, whatever it is.  A
        pattern that begins with `!` removes its matches from the earlier ones.  `*` stands for
        what is trained by default; others also match floats in front of layers of integers.
    integers: whether patterns match quantised weights and biases, too.

    Raises:
        NameNotFoundError: a pattern matches nothing.
    """
    known, chosen, paths = list_parameters(graph), set[str](), Paths.of(graph.metadata)
    if integers:
        trained = list_resident(graph)
        units = list_units(graph, trained)  # constant while their integers move
        known = [*(name for name in known if name not in units), *trained]
    in_front = [] if note_of(graph) is not None else _list_in_front(graph)
    for pattern in arguments.check_names("parameters to train", patterns):
        wanted = pattern.removeprefix("!")
        among = known if wanted == ALL else {*known, *in_front}
        names = {name for name in among if paths.matches(name, wanted)}
        names.update(n for n in paths.resolve([wanted], graph.initializers)
                     if n in graph.initializers)  # fmt: skip
        if not names:
            why = tell(graph, known) or ("" if known else _locate_weights(graph))
            raise NameNotFoundError(
                f"parameters to train: {pattern!r} matches none of {len(known)} parameters"
                f"{paths.suggest_nearest(wanted, known)}{f'; {why}' if why else ''}"
            )
        chosen = chosen - names if pattern != wanted else chosen | names
    return [name for name in graph.initializers if name in chosen]


def _locate_weights(graph: Graph) -> str:
    """Return where a graph without parameters has float arrays: within its control flow."""
    for node in graph.nodes:
        bodies = [a.graph for a in node.attrs.values() if isinstance(a, Subgraph)]
        count = 0
        while bodies:
            body = bodies.pop()
            inner = [value for n in body.nodes for value in n.attrs.values()]
            arrays = [*body.initializers.values(), *inner]
            count += sum(
                a.size for a in arrays
                if isinstance(a, np.ndarray) and a.size > 1 and a.dtype.kind == "f"
            )  # fmt: skip
            bodies += [value.graph for value in inner if isinstance(value, Subgraph)]
        if count:
            todo = ONE_CASE if node.op == "If" else "export the model with its loops unrolled"
            return (
                f"{count:,} float values are in the body of {node.op} {node.name!r}, where nothing "
                f"is trained: {todo}"
            )
    return ""

"""Unrolling of control flow, sequences and optional values into plain nodes.

    If      If the condition is a known constant, the nodes of that branch.  Otherwise the nodes of
            both branches, and a Where that selects one of their results.
    Loop    The nodes of its body, once for each trip.  The number of trips must be known.
    Scan    The nodes of its body, once for each element of its sequences.
    Sequence*, Optional*    Removed: readers get the names of the elements.

If both branches of an If remain, every run computes both.  So indices in the branch that is not
taken must be in range, too, and if its derivatives are infinite, the gradient is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.base.aliases import Array
from engine.base.errors import ShapeError, UnknownValueError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Subgraph
from engine.graphs.passes.may_add import add_by_table
from engine.graphs.passes.sequences import SEQUENCES
from engine.graphs.passes.unrolling import UnrolledForm, Unrolling, read_constant


def has_control_flow(graph: Graph) -> bool:
    """Return whether a graph holds a node that `unroll` replaces."""
    return any(not n.domain and n.op in FORMS for n in graph.nodes)


def unroll(graph: Graph) -> Graph:
    """Replace the nodes of control flow, sequences and optional values by plain nodes, in place.

    Before   s = Loop(3, true, x) {y = Add(s, x)};  z = If(c) {Neg(s)} {Abs(s)}
    After    s1 = Add(x, x); s2 = Add(s1, x); s = Add(s2, x); a = Neg(s); b = Abs(s);
             z = Where(c, a, b)

    Raises:
        UnknownValueError: a trip count, condition or position depends on the value of an input.
        UnsupportedOpError: a length is not known, or branches make different types.
        LimitError: the graph would have more nodes than are allowed.  Where trips and lengths are
            known, this is found before any node is made.
    """
    if has_control_flow(graph):
        job = Unrolling(graph, FORMS)
        for node in graph.nodes:
            job.add(node)
        graph.nodes = job.nodes
        for name in graph.outputs:
            if name in job.lists:
                raise UnsupportedOpError(
                    f"{graph.name}: the output {name!r} is a sequence; supported: tensors"
                )
    return graph


def take_known_branches(graph: Graph) -> Graph:
    """Replace each If whose condition is known by the branch that it takes, in place.

    Before   c = true; y = If(c) {Neg(x)} {Abs(x)};  z = If(d) {Neg(x)} {Abs(x)}
    After    y = Neg(x);                             z = If(d) {Neg(x)} {Abs(x)}
    """
    job = Unrolling(graph, {"If": UnrolledForm(_take_branch)})
    for node in graph.nodes:
        job.add(node)
    graph.nodes = job.nodes
    return graph


Find = Callable[[str], Array | None]  # the value of a tensor by its name in a body, if it is known


def _count_nodes_of_loop(body: Subgraph, count: int, find: Find) -> int:
    """Return the least number of nodes that a Loop of `count` trips becomes, without unrolling it.

    Unless the body passes the condition on unchanged, the loop may end early, so only one trip is
    certain.
    """
    trips = max(count, 0) if _passes_condition(body) else min(max(count, 0), 1)
    return trips * max(1, _count_nodes(body, find)) if trips else 0


def _count_nodes(body: Subgraph, find: Find) -> int:
    """Return the least number of nodes that one run of a body becomes.

    find: returns values of the enclosing graph.
    """
    captured = dict(zip(body.inner, body.captured, strict=True))
    makers = body.graph.find_producers()

    def find_inside(name: str) -> Array | None:
        if name in body.graph.initializers:
            return body.graph.initializers[name]
        return read_constant(makers[name]) if name in makers else find(captured.get(name, name))

    total = 0
    for node in body.graph.nodes:
        if node.domain or node.op not in FORMS:
            total += 1
        elif node.op == "Loop" and node.inputs[0]:
            count = find_inside(node.inputs[0])
            if count is not None and count.size == 1:
                trips = int(count.reshape(()).item())
                total += _count_nodes_of_loop(node.attrs["body"], trips, find_inside)
    return total


def _passes_condition(body: Subgraph) -> bool:
    """Return whether the body of a Loop passes the condition on unchanged."""
    makers = body.graph.find_producers()
    name = body.graph.outputs[0]
    while name in makers and makers[name].op == "Identity" and not makers[name].domain:
        name = makers[name].inputs[0]
    return len(body.graph.inputs) > 1 and name == [*body.graph.inputs][1]


# --- rules: each appends nodes for `to.node` and returns the names of its outputs


def _take_branch(to: Unrolling) -> list[str] | None:
    """Append the branch of an If whose condition is known; None if it is not."""
    (condition,), branches = to.node.inputs, _list_branches(to)
    if to.find_value(condition) is None:
        return None
    chosen = branches[0 if to.require_scalar(condition, "the condition") else 1]
    return to.append_body(chosen, to.add_weights(chosen))


def _list_branches(to: Unrolling) -> tuple[Subgraph, Subgraph]:
    node = to.node
    for branch in (branches := (node.attrs["then_branch"], node.attrs["else_branch"])):
        to.check_outputs(branch, len(node.outputs), len(node.outputs))
    return branches


def _inline_if(to: Unrolling) -> list[str]:
    taken = _take_branch(to)
    if taken is not None:
        return taken
    node, branches = to.node, _list_branches(to)
    (condition,) = node.inputs
    try:
        made = [to.append_body(branch, to.add_weights(branch)) for branch in branches]
    except UnknownValueError:
        raise
    except (ShapeError, UnsupportedOpError) as error:  # of a branch that is never taken
        to.refuse_unknown(
            condition,
            f"needs two branches that fit, or a condition known before lowering: {error}",
        )
    flag = to.op("Reshape", condition, to.add_constant(np.zeros(0)))[0]
    outputs = []
    for output, a, b in zip(node.outputs, *made, strict=True):
        if a in to.lists or b in to.lists:
            to.fail(
                f"output {output!r} is a sequence, and the condition {condition!r} is not known",
                "sequences where the condition is constant",
            )
        try:
            fits = to.find_type(a) == to.find_type(b)
            difference = f"it is {to.find_type(a)} of one branch and {to.find_type(b)} of the other"
        except (ShapeError, UnsupportedOpError) as error:  # of a branch that is never taken
            fits, difference = False, str(error)
        if not fits:
            to.refuse_unknown(
                condition,
                f"output {output!r} needs branches of equal types, or a condition known before "
                f"lowering: {difference}",
            )
        outputs.append(to.op("Where", flag, a, b)[0])
    return outputs


def _unroll_loop(to: Unrolling) -> list[str]:
    node, body = to.node, to.node.attrs["body"]
    trips, condition, *carried = (*node.inputs, "", "")[: max(len(node.inputs), 2)]
    count = int(to.require_scalar(trips, "the trip count")) if trips else None
    to.check_outputs(body, 1 + len(carried))
    weights, passed = to.add_weights(body), condition or to.add_constant(True, "b1")
    if not condition or to.require_scalar(condition, "the condition"):
        if count is None and _passes_condition(body):
            to.fail(
                "the loop never ends: it has no trip count, and its condition never changes",
                "loops that end",
            )
        to.check_room(_count_nodes_of_loop(body, 1 if count is None else count, to.get_value))
    first = 1 + len(carried)
    scans: list[list[str]] = [[] for _ in body.graph.outputs[first:]]
    trip = 0
    while count is None or trip < count:
        if condition and not to.require_scalar(condition, "the condition"):
            break
        to.check_room(0 if body.graph.nodes else trip)
        made = to.append_body(body, weights, to.add_constant(trip), passed, *carried)
        condition = passed = made[0]
        carried = made[1:first]
        for parts, part in zip(scans, made[first:], strict=True):
            parts.append(part)
        trip += 1
    ends = [to.join_outputs(body, first + k, parts, 0) for k, parts in enumerate(scans)]
    return [*carried, *ends]


def _scan(to: Unrolling) -> list[str]:
    node, body = to.node, to.node.attrs["body"]
    count = int(node.attrs["num_scan_inputs"])
    if not 1 <= count <= len(node.inputs):
        to.fail(f"num_scan_inputs is {count}", f"1 to {len(node.inputs)}, the number of inputs")
    to.check_outputs(body, len(node.inputs) - count)
    states, sequences = list(node.inputs[:-count]), node.inputs[-count:]
    n = len(states)
    ends = body.graph.outputs[n:]

    def list_settings(name: str, count: int) -> list[int]:
        values = list(node.attrs.get(name) or [0] * count)
        if len(values) != count:
            to.fail(f"{name} is {values}", f"{count} numbers")
        return values

    lengths = [
        t.shape[axis]
        for t, axis in zip(
            map(to.find_type, sequences), list_settings("scan_input_axes", count), strict=True
        )
        if -t.rank <= axis < t.rank
    ]
    trips = min((n for n in lengths if isinstance(n, int)), default=0)
    to.check_room(trips * (count + _count_nodes(body, to.get_value)))
    parts = [
        to.split(x, axis)[:: -1 if backward else 1]
        for x, axis, backward in zip(
            sequences,
            list_settings("scan_input_axes", count),
            list_settings("scan_input_directions", count),
            strict=True,
        )
    ]
    if len({len(p) for p in parts}) > 1:
        to.fail(f"the scanned inputs have the lengths {[len(p) for p in parts]}", "equal lengths")
    weights = to.add_weights(body)
    ended: list[list[str]] = [[] for _ in ends]
    for elements in zip(*parts, strict=True):
        made = to.append_body(body, weights, *states, *elements)
        states = made[:n]
        for k, end in enumerate(made[n:]):
            ended[k].append(end)
    axes = list_settings("scan_output_axes", len(ends))
    backward = list_settings("scan_output_directions", len(ends))
    return [
        *states,
        *(
            to.join_outputs(body, n + k, ended[k][:: -1 if backward[k] else 1], axes[k])
            for k in range(len(ends))
        ),
    ]


# All are of ONNX's domain.  `makes` does not count the ops of bodies: `kinds` has counted them.
FORMS = {
    "If": UnrolledForm(_inline_if, "Reshape Where"),
    "Loop": UnrolledForm(_unroll_loop, "Concat Unsqueeze"),
    "Scan": UnrolledForm(_scan, "Concat Split Squeeze Unsqueeze"),
    **SEQUENCES,
}
MAY_ADD = add_by_table({name: f"{form.makes} Identity" for name, form in FORMS.items()})

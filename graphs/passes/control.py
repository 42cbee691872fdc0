"""Unrolling of control flow, sequences and optional values into plain nodes, before lowering.

    If      If the condition is a known constant, the nodes of that branch.  Otherwise the nodes of
            both branches, and a Where that chooses between their results.
    Loop    The nodes of its body, once for each trip.  The number of trips must be known.
    Scan    The nodes of its body, once for each element of its sequences.
    Sequence*, Optional*    Removed: a reader gets the names of the elements themselves.

Where both branches of an If stay, both are computed in every run.  Indices in the branch that is
not taken must therefore be in range, too, and where its derivatives are infinite the gradient is
NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from engine.base import limits
from engine.base.element_types import NUMPY
from engine.base.errors import ShapeError, UnknownValueError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node, Subgraph
from engine.graphs.ir.symbols import Inferred
from engine.graphs.passes.infer import infer, sources
from engine.graphs.passes.may_add import where
from engine.kernels.vocabulary.op import Array, TensorType

COPIED = 64  # names of tensors in copies of sequences that count as a node


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
        job = _Unroll(graph)
        for node in graph.nodes:
            job.add(node)
        graph.nodes = job.nodes
        for name in graph.outputs:
            if name in job.lists:
                raise UnsupportedOpError(
                    f"{graph.name}: the output {name!r} is a sequence; supported: tensors"
                )
    return graph


class _Unroll:
    """Builder of the new list of nodes of one graph.

    nodes: the new list.  makers: for each value, the position in `nodes` of the node that makes it.
    same: for the output of each Identity, its input.
    settled: the values of tensors found so far; kinds: the types without symbols of values that do
        not depend on sizes.
    lists: for each value that is a sequence, the names of its tensors.
    copied: how many names are in copies of sequences.
    limit: the maximum number of nodes.
    node: the node that is being replaced.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.names = graph, Names(graph, inlines=True)
        self.nodes: list[Node] = []
        self.makers: dict[str, int] = {}
        self.same: dict[str, str] = {}
        self.settled: dict[str, Array] = {}
        self.kinds: dict[str, TensorType] = {}
        self.lists: dict[str, Elements] = {}
        self.copied = 0
        self.limit = limits.limit("NODES")
        self.node = Node("", (), ())

    # --- building

    def add(self, node: Node) -> None:
        """Append a node, or the nodes that replace it."""
        form = None if node.domain else FORMS.get(node.op)
        if form is not None:
            outer, self.node = self.node, node
            made = form.rule(self)
            if len(made) < len(node.outputs):
                self.fail(f"{len(node.outputs)} outputs", f"{len(made)}, as its body makes")
            for name, output in zip(made, node.outputs, strict=False):
                if output and name in self.lists:
                    self.lists[output] = self.lists[name]
                elif output:
                    self.append(Node("Identity", (name,), (output,), {}, "", output))
            self.node = outer
            return
        sequences = [i for i in node.inputs if i in self.lists]
        if sequences:
            self.fail(f"input {sequences[0]!r} is a sequence", "tensors", node)
        self.append(node)

    def append(self, node: Node) -> None:
        """Append a node as it is."""
        if len(self.nodes) >= self.limit:
            self.check_room(1, node)
        self.makers.update((o, len(self.nodes)) for o in node.outputs if o)
        if node.op == "Identity" and not node.domain:
            self.same[node.outputs[0]] = self.same.get(node.inputs[0], node.inputs[0])
        self.nodes.append(node)

    def check_room(self, more: int, node: Node | None = None) -> None:
        """Refuse the current node if the nodes it adds would exceed the limit.

        Raises:
            LimitError: they would.
        """
        if len(self.nodes) + more > self.limit:
            least = len(self.nodes) + more
            limits.check("NODES", least, self.where(node), "unrolled the graph has at least")

    def op(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> list[str]:
        """Append a new node of ONNX's domain; return the names of its outputs."""
        title = self.names.fresh(f"{self.title()}/{op}")
        made = tuple(self.names.fresh(f"{title}_output_{k}") for k in range(outputs))
        self.append(Node(op, inputs, made, attrs, "", title))
        return list(made)

    def constant(self, value: Any, dtype: str = "i64") -> str:
        """Add an initializer; return its name."""
        name = self.names.fresh(f"{self.title()}/{dtype}")
        self.graph.initializers[name] = np.array(value, NUMPY[dtype])
        return name

    def title(self) -> str:
        """Return the name of the replaced node in messages and in names of new nodes."""
        return self.node.name or next((o for o in self.node.outputs if o), self.node.op)

    def add_weights(self, body: Subgraph) -> dict[str, str]:
        """Add the initializers of a body to the graph; return the new name of each."""
        names = {name: self.names.fresh(name) for name in body.graph.initializers}
        for name, array in body.graph.initializers.items():
            self.graph.initializers[names[name]] = array
        return names

    def append_body(self, body: Subgraph, weights: Mapping[str, str], *inputs: str) -> list[str]:
        """Append a copy of the nodes of a body; return the names of its outputs.

        weights: names in the graph of the initializers of the body, see `weights`.
        inputs: names in the graph of the values that the body reads as its inputs.
        """
        if len(inputs) != len(body.graph.inputs):
            self.fail(f"a body of {len(body.graph.inputs)} inputs", f"{len(inputs)} of them")
        known = dict(zip(body.inner, body.captured, strict=True)) | dict(weights)
        known |= zip(body.graph.inputs, inputs, strict=True)
        title = self.title()
        for node in body.graph.nodes:
            ins = tuple(known.get(i, i) for i in node.inputs)
            attrs = {
                k: a.renamed(known) if isinstance(a, Subgraph) else a for k, a in node.attrs.items()
            }
            known |= {o: self.names.fresh(f"{title}/{o}") for o in node.outputs if o}
            outs = tuple(known[o] if o else "" for o in node.outputs)
            name = self.names.fresh(f"{title}/{node.name or node.op}")
            self.add(Node(node.op, ins, outs, attrs, node.domain, name))
        return [known.get(o, o) for o in body.graph.outputs]

    # --- known values

    def known(self, name: str, what: str) -> Array:
        """Return the value of a constant tensor, which messages call `what`.

        Raises:
            UnknownValueError: it depends on the value of an input of the graph.
        """
        array = self.value(name)
        if array is None:
            self.refuse_unknown(name, f"{what} {name!r} must be a constant known before lowering")
        return array

    def scalar(self, name: str, what: str) -> Any:
        """Return the value of a constant tensor of one element, as a Python number.

        Raises:
            UnknownValueError: it depends on the value of an input of the graph.
            UnsupportedOpError: it has more elements, or none.
        """
        array = self.known(name, what)
        if array.size != 1:
            self.fail(f"{what} {name!r} of shape {list(array.shape)}", "one element")
        return array.reshape(()).item()

    def refuse_unknown(self, name: str, text: str) -> NoReturn:
        """Refuse the node, and name the graph inputs on whose values `name` depends."""
        part = self.part(name)
        raise UnknownValueError(
            f"{self.where()}: {text}", inputs=sources(part, name, part.initializers)
        )

    def value(self, name: str) -> Array | None:
        """Return the value of a tensor; None if it depends on the value of an input of the
        graph.
        """
        name = self.same.get(name, name)
        if name not in self.makers:
            return self.graph.initializers.get(name)
        if name not in self.settled:
            self.inferred(name)
        return self.settled.get(name)

    def written(self, name: str) -> Array | None:
        """Return the value of a tensor if it is at hand, without computing anything."""
        name = self.same.get(name, name)
        if name in self.makers and name not in self.settled:
            return _written(self.nodes[self.makers[name]])
        return self.settled.get(name, self.graph.initializers.get(name))

    def type(self, name: str) -> TensorType:
        """Return the type of a value; refuse a sequence."""
        if name in self.lists:
            self.fail(f"{name!r} is a sequence", "tensors")
        if not name:
            self.fail("an input that is left out", "tensors")
        name = self.same.get(name, name)
        return self.kinds[name] if name in self.kinds else self.inferred(name).types[name]

    def inferred(self, name: str) -> Inferred:
        """Return the types and values that inference finds for the nodes that compute a value.

        Values and types without symbols are kept, except the type of a value that depends on sizes,
        because a shape may be computed from it.  Without this, each trip of a loop would walk over
        the nodes of all trips before it.
        """
        result = infer(self.part(name, is_short=True))
        self.settled.update(result.constants)
        known = (self.makers.keys() & result.types.keys()) - result.varying
        kinds = ((n, result.types[n]) for n in known)
        self.kinds.update((n, t) for n, t in kinds if all(isinstance(d, int) for d in t.shape))
        return result

    def part(self, name: str, is_short: bool = False) -> Graph:
        """Return a graph of the nodes appended so far that compute a value.

        is_short: known values become constants of the graph, and values with known types become
            inputs.
        """
        waiting, seen, places = [name], set[str](), set[int]()
        inputs, constants = dict[str, TensorType](), dict[str, Array]()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.graph.initializers:
                constants[value] = self.graph.initializers[value]
            elif value in self.graph.inputs:
                inputs[value] = self.graph.inputs[value]
            elif is_short and value in self.settled:
                constants[value] = self.settled[value]
            elif is_short and value in self.kinds:
                inputs[value] = self.kinds[value]
            elif value in self.makers:
                places.add(self.makers[value])
                waiting += self.nodes[self.makers[value]].reads()
        nodes = [self.nodes[i] for i in sorted(places)]
        return Graph(self.graph.name, inputs, [name], constants, nodes, self.graph.opsets)

    def check_outputs(self, body: Subgraph, least: int, most: int | None = None) -> None:
        """Refuse a body with fewer than `least` outputs, or more than `most` if that is given."""
        made = len(body.graph.outputs)
        if made < least or (most is not None and made > most):
            expected = f"{least}" if least == most else f"{least} or more"
            self.fail(f"a body of {made} outputs", expected)

    def where(self, node: Node | None = None) -> str:
        """Return the name of a node in messages, by default of the node that is being replaced."""
        node = node or self.node
        return f"{node.op} {self.title()!r} (opset {self.graph.opsets.get('', 1)})"

    def fail(self, found: str, supported: str = "", node: Node | None = None) -> NoReturn:
        tail = f"; supported: {supported}" if supported else ""
        raise UnsupportedOpError(f"{self.where(node)}: {found}{tail}")

    # --- splitting and joining

    def split(self, x: str, axis: int) -> list[str]:
        """Split a tensor into its slices along an axis; the slices do not have that axis."""
        t = self.type(x)
        if not -t.rank <= axis < t.rank:
            self.fail(f"axis {axis} of {x!r}, {t}")
        length, at = t.shape[axis], self.constant([axis])
        if not isinstance(length, int):
            self.fail(f"axis {axis} of {x!r}, {t}, is unrolled", "sizes known before lowering")
        self.check_room(length)
        if length < 2:
            return self.op("Squeeze", x, at) if length else []
        sizes = self.constant([1] * length)
        parts = self.op("Split", x, sizes, axis=axis, outputs=length)
        return [self.op("Squeeze", part, at)[0] for part in parts]

    def stack(self, parts: Sequence[str], axis: int) -> str:
        """Join tensors of one shape along a new axis."""
        at = self.constant([axis])
        return self.op("Concat", *(self.op("Unsqueeze", p, at)[0] for p in parts), axis=axis)[0]

    def join_outputs(self, body: Subgraph, k: int, parts: Sequence[str], axis: int) -> str:
        """Join the results of the runs of a body for its output k, along a new axis.

        If there were no runs, the result is empty, and its shape comes from the type of the output.
        """
        if parts:
            return self.stack(parts, axis)
        name = body.graph.outputs[k]
        t = body.graph.types.get(name)
        if t is None or not all(isinstance(d, int) for d in t.shape):
            self.fail(f"no trip, and {name!r} has no shape in its body")
        shape = list(t.dims)
        shape.insert(axis % (t.rank + 1), 0)
        return self.constant(np.zeros(shape), t.dtype)


Find = Callable[[str], Array | None]  # the value of a tensor by its name in a body, if it is known


def _amount_of_loop(body: Subgraph, count: int, find: Find) -> int:
    """Return the least number of nodes that a Loop of `count` trips becomes, without unrolling it.

    Unless the body passes the condition on unchanged, the loop may end early, so only one trip is
    certain.
    """
    trips = max(count, 0) if _passes_condition(body) else min(max(count, 0), 1)
    return trips * max(1, _amount(body, find)) if trips else 0


def _amount(body: Subgraph, find: Find) -> int:
    """Return the least number of nodes that one run of a body becomes.

    find: returns values of the enclosing graph.
    """
    captured = dict(zip(body.inner, body.captured, strict=True))
    makers = body.graph.producers()

    def find_inside(name: str) -> Array | None:
        if name in body.graph.initializers:
            return body.graph.initializers[name]
        return _written(makers[name]) if name in makers else find(captured.get(name, name))

    total = 0
    for node in body.graph.nodes:
        if node.domain or node.op not in FORMS:
            total += 1
        elif node.op == "Loop" and node.inputs[0]:
            count = find_inside(node.inputs[0])
            if count is not None and count.size == 1:
                trips = int(count.reshape(()).item())
                total += _amount_of_loop(node.attrs["body"], trips, find_inside)
    return total


def _written(node: Node) -> Array | None:
    """Return the value of a Constant, or None for any other node."""
    is_constant = node.op == "Constant" and not node.domain
    value = node.attrs.get("value", node.attrs.get("value_int")) if is_constant else None
    return None if value is None else np.asarray(value)


def _passes_condition(body: Subgraph) -> bool:
    """Return whether the body of a Loop passes the condition on unchanged."""
    makers = body.graph.producers()
    name = body.graph.outputs[0]
    while name in makers and makers[name].op == "Identity" and not makers[name].domain:
        name = makers[name].inputs[0]
    return len(body.graph.inputs) > 1 and name == [*body.graph.inputs][1]


# --- rules: each appends nodes for `to.node` and returns the names of its outputs


def _if(to: _Unroll) -> list[str]:
    node = to.node
    (condition,) = node.inputs
    branches: list[Subgraph] = [node.attrs["then_branch"], node.attrs["else_branch"]]
    for branch in branches:
        to.check_outputs(branch, len(node.outputs), len(node.outputs))
    if to.value(condition) is not None:
        chosen = branches[0 if to.scalar(condition, "the condition") else 1]
        return to.append_body(chosen, to.add_weights(chosen))
    made = [to.append_body(branch, to.add_weights(branch)) for branch in branches]
    flag = to.op("Reshape", condition, to.constant(np.zeros(0)))[0]
    outputs = []
    for output, a, b in zip(node.outputs, *made, strict=True):
        if a in to.lists or b in to.lists:
            to.fail(f"output {output!r} is a sequence, the condition {condition!r} not known")
        try:
            fits = to.type(a) == to.type(b)
            difference = f"it is {to.type(a)} of one branch and {to.type(b)} of the other"
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


def _loop(to: _Unroll) -> list[str]:
    node, body = to.node, to.node.attrs["body"]
    trips, condition, *carried = (*node.inputs, "", "")[: max(len(node.inputs), 2)]
    count = int(to.scalar(trips, "the trip count")) if trips else None
    to.check_outputs(body, 1 + len(carried))
    weights, passed = to.add_weights(body), condition or to.constant(True, "b1")
    if not condition or to.scalar(condition, "the condition"):
        if count is None and _passes_condition(body):
            to.fail("no trip count, and a condition that never changes", "loops that end")
        to.check_room(_amount_of_loop(body, 1 if count is None else count, to.written))
    first = 1 + len(carried)
    scans: list[list[str]] = [[] for _ in body.graph.outputs[first:]]
    trip = 0
    while count is None or trip < count:
        if condition and not to.scalar(condition, "the condition"):
            break
        to.check_room(0 if body.graph.nodes else trip)
        made = to.append_body(body, weights, to.constant(trip), passed, *carried)
        condition = passed = made[0]
        carried = made[1:first]
        for parts, part in zip(scans, made[first:], strict=True):
            parts.append(part)
        trip += 1
    ends = [to.join_outputs(body, first + k, parts, 0) for k, parts in enumerate(scans)]
    return [*carried, *ends]


def _scan(to: _Unroll) -> list[str]:
    node, body = to.node, to.node.attrs["body"]
    count = int(node.attrs["num_scan_inputs"])
    if not 1 <= count <= len(node.inputs):
        to.fail(f"num_scan_inputs {count} of {len(node.inputs)} inputs")
    to.check_outputs(body, len(node.inputs) - count)
    states, sequences = list(node.inputs[:-count]), node.inputs[-count:]
    n = len(states)
    ends = body.graph.outputs[n:]

    def given(name: str, count: int) -> list[int]:
        values = list(node.attrs.get(name) or [0] * count)
        if len(values) != count:
            to.fail(f"{name} {values}", f"{count} of them")
        return values

    lengths = [
        t.shape[axis]
        for t, axis in zip(map(to.type, sequences), given("scan_input_axes", count), strict=True)
        if -t.rank <= axis < t.rank
    ]
    trips = min((n for n in lengths if isinstance(n, int)), default=0)
    to.check_room(trips * (count + _amount(body, to.written)))
    parts = [
        to.split(x, axis)[:: -1 if backward else 1]
        for x, axis, backward in zip(
            sequences,
            given("scan_input_axes", count),
            given("scan_input_directions", count),
            strict=True,
        )
    ]
    if len({len(p) for p in parts}) > 1:
        to.fail(f"sequences of lengths {[len(p) for p in parts]}", "equal lengths")
    weights = to.add_weights(body)
    ended: list[list[str]] = [[] for _ in ends]
    for elements in zip(*parts, strict=True):
        made = to.append_body(body, weights, *states, *elements)
        states = made[:n]
        for k, end in enumerate(made[n:]):
            ended[k].append(end)
    axes = given("scan_output_axes", len(ends))
    backward = given("scan_output_directions", len(ends))
    return [
        *states,
        *(
            to.join_outputs(body, n + k, ended[k][:: -1 if backward[k] else 1], axes[k])
            for k in range(len(ends))
        ),
    ]


class Elements(NamedTuple):
    """Tensors of a sequence.

    shared: a list that begins with their names; names of longer sequences made from this one
        follow.
    size: the number of tensors of this sequence.
    """

    shared: list[str]
    size: int


def _note_list(to: _Unroll, elements: Sequence[str]) -> list[str]:
    """Note a new sequence of these tensors; return its name, as the only output."""
    to.copied += len(elements)
    to.check_room(to.copied // COPIED)
    return _note_shared(to, list(elements))


def _note_shared(to: _Unroll, elements: list[str]) -> list[str]:
    """Note a new sequence whose list of names other sequences may share; return its name."""
    name = to.names.fresh(f"{to.title()}/sequence")
    to.lists[name] = Elements(elements, len(elements))
    return [name]


def _elements(to: _Unroll, i: int = 0) -> Elements:
    """Return the tensors of the sequence that is input i."""
    name = to.node.inputs[i]
    if name not in to.lists:
        to.fail(f"input {name!r} is not a sequence that the graph makes")
    return to.lists[name]


def _names(to: _Unroll) -> list[str]:
    """Return the names of the tensors of the sequence that is the first input."""
    sequence = _elements(to)
    return sequence.shared[: sequence.size]


def _at(to: _Unroll) -> list[str]:
    sequence = _elements(to)
    return [sequence.shared[_position(to, 1, sequence.size)]]


def _position(to: _Unroll, i: int, count: int) -> int:
    """Return the constant input i, which may count from the end, as a position from 0 to count -
    1.
    """
    at = int(to.scalar(to.node.inputs[i], "the position"))
    if not -count <= at < count:
        to.fail(f"position {at} of {count}")
    return at % count


def _insert(to: _Unroll) -> list[str]:
    shared, count = _elements(to)
    at, new = count, to.node.inputs[1]
    if len(to.node.inputs) > 2:
        at = int(to.scalar(to.node.inputs[2], "the position"))
        if not -count <= at <= count:
            to.fail(f"position {at} to insert among {count}")
        at += count if at < 0 else 0
    if at == count == len(shared):  # as loops do, whose sequences would be copied at each trip
        shared.append(new)
        return _note_shared(to, shared)
    names = shared[:count]
    return _note_list(to, [*names[:at], new, *names[at:]])


def _erase(to: _Unroll) -> list[str]:
    names = _names(to)
    at = _position(to, 1, len(names)) if len(to.node.inputs) > 1 else len(names) - 1
    return _note_list(to, [*names[:at], *names[at + 1 :]])


def _join(to: _Unroll) -> list[str]:
    axis = int(to.node.attrs["axis"])
    if to.node.attrs.get("new_axis", 0):
        return [to.stack(_names(to), axis)]
    return to.op("Concat", *_names(to), axis=axis)


def _part(to: _Unroll) -> list[str]:
    x, axis = to.node.inputs[0], int(to.node.attrs.get("axis", 0))
    if len(to.node.inputs) < 2 or not to.node.inputs[1]:
        parts = to.split(x, axis)
        if to.node.attrs.get("keepdims", 1):
            at = to.constant([axis])
            parts = [to.op("Unsqueeze", p, at)[0] for p in parts]
        return _note_list(to, parts)
    sizes, t = to.known(to.node.inputs[1], "the split"), to.type(x)
    if not -t.rank <= axis < t.rank or sizes.ndim > 1 or np.any(sizes < 1):
        to.fail(f"axis {axis} of {x!r}, {t}, in parts of {sizes.tolist()}", "a list of sizes")
    length = t.shape[axis]
    if sizes.ndim == 0:
        if not isinstance(length, int):
            to.fail(f"axis {axis} of {x!r} is split", "sizes known before lowering")
        whole, rest = divmod(length, int(sizes))
        to.check_room(whole)
        sizes = np.array([int(sizes)] * whole + [rest] * (rest > 0))
    return _note_list(to, to.op("Split", x, to.constant(sizes), axis=axis, outputs=len(sizes)))


def _passed(to: _Unroll) -> list[str]:
    """Return the input itself: an optional value has the name of its element."""
    return [to.node.inputs[0]]


def _has(to: _Unroll) -> list[str]:
    return [to.constant(bool(to.node.inputs and to.node.inputs[0]), "b1")]


@dataclass(frozen=True, slots=True)
class Form:
    """Declaration of how `unroll` replaces an op.

    rule: appends the nodes that replace the op.
    makes: the ops of these nodes, in the notation of `op_keys`; Identity need not be named.
    """

    rule: Callable[[_Unroll], list[str]]
    makes: str = ""


# All are of ONNX's domain.  `makes` does not count the ops of bodies: `kinds` has counted them.
FORMS = {
    "If": Form(_if, "Reshape Where"),
    "Loop": Form(_loop, "Concat Unsqueeze"),
    "Scan": Form(_scan, "Concat Split Squeeze Unsqueeze"),
    "SequenceEmpty": Form(lambda to: _note_list(to, [])),
    "SequenceConstruct": Form(lambda to: _note_list(to, to.node.inputs)),
    "SequenceInsert": Form(_insert),
    "SequenceErase": Form(_erase),
    "SequenceAt": Form(_at),
    "SequenceLength": Form(lambda to: [to.constant(_elements(to).size)]),
    "ConcatFromSequence": Form(_join, "Concat Unsqueeze"),
    "SplitToSequence": Form(_part, "Split Squeeze Unsqueeze"),
    "Optional": Form(_passed),
    "OptionalGetElement": Form(_passed),
    "OptionalHasElement": Form(_has),
}
MAY_ADD = where({name: f"{form.makes} Identity" for name, form in FORMS.items()})

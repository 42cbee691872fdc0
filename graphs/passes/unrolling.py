"""The builder of an unrolled graph, and how an op declares what replaces it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from engine.base import limits
from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.base.errors import UnknownValueError, UnsupportedOpError
from engine.graphs.ir.graph import Graph, Names, Node, Subgraph
from engine.graphs.ir.symbols import Inferred, list_symbols
from engine.graphs.passes.infer import infer, list_sources
from engine.kernels.vocabulary.op import TensorType


@dataclass(frozen=True, slots=True)
class UnrolledForm:
    """Declaration of how `unroll` replaces an op.

    rule: appends the nodes that replace the op, and returns the names of its results; None if the
        node stays as it is.
    makes: the ops of these nodes, in the notation of `read_op_keys`; Identity need not be named.
    """

    rule: Callable[[Unrolling], list[str] | None]
    makes: str = ""


class Elements(NamedTuple):
    """Tensors of a sequence.

    shared: a list that begins with their names; names of longer sequences made from this one
        follow.
    size: the number of tensors of this sequence.
    """

    shared: list[str]
    size: int


class Unrolling:
    """Builder of the new list of nodes of one graph.

    forms: how each op is replaced.
    nodes: the new list.  makers: for each value, the position in `nodes` of the node that makes it.
    same: for the output of each Identity, its input.
    dims: the symbolic dimensions of the inputs.
    settled: the values of tensors found so far; kinds: the types of values that do not depend on
        sizes, if they have no other symbols than `dims`.
    lists: for each value that is a sequence, the names of its tensors.
    copied: how many names are in copies of sequences.
    limit: the maximum number of nodes.
    node: the node that is being replaced.
    """

    def __init__(self, graph: Graph, forms: Mapping[str, UnrolledForm]) -> None:
        self.forms = forms
        self.graph, self.names = graph, Names(graph, inlines=True)
        self.nodes: list[Node] = []
        self.makers: dict[str, int] = {}
        self.same: dict[str, str] = {}
        self.dims = set(list_symbols(graph))
        self.settled: dict[str, Array] = {}
        self.kinds: dict[str, TensorType] = {}
        self.lists: dict[str, Elements] = {}
        self.copied = 0
        self.limit = limits.limit("NODES")
        self.node = Node("", (), ())

    # --- building

    def add(self, node: Node) -> None:
        """Append a node, or the nodes that replace it."""
        form = None if node.domain else self.forms.get(node.op)
        if form is not None:
            outer, self.node = self.node, node
            try:
                self._replace(form)
            finally:
                self.node = outer
            return
        sequences = [i for i in node.inputs if i in self.lists]
        if sequences:
            self.fail(f"input {sequences[0]!r} is a sequence", "tensors", node)
        self.append(node)

    def _replace(self, form: UnrolledForm) -> None:
        """Append the nodes that replace `self.node`, and nodes that name their results."""
        made, outputs = form.rule(self), self.node.outputs
        if made is None:
            self.append(self.node)
            return
        if len(made) < len(outputs):
            self.fail(
                f"the node has {len(outputs)} outputs", f"{len(made)}, which its body computes"
            )
        for name, output in zip(made, outputs, strict=False):
            if output and name in self.lists:
                self.lists[output] = self.lists[name]
            elif output:
                self.append(Node("Identity", (name,), (output,), {}, "", output))

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
        title = self.names.take_fresh(f"{self.title()}/{op}")
        made = tuple(self.names.take_fresh(f"{title}_output_{k}") for k in range(outputs))
        self.append(Node(op, inputs, made, attrs, "", title))
        return list(made)

    def add_constant(self, value: Any, dtype: str = "i64") -> str:
        """Add an initializer; return its name."""
        name = self.names.take_fresh(f"{self.title()}/{dtype}")
        self.graph.initializers[name] = np.array(value, NUMPY[dtype])
        return name

    def title(self, node: Node | None = None) -> str:
        """Return the name of a node in messages and in names of new nodes.

        node: by default the one that is being replaced.
        """
        node = node or self.node
        return node.name or next((o for o in node.outputs if o), node.op)

    def add_weights(self, body: Subgraph) -> dict[str, str]:
        """Add the initializers of a body to the graph; return the new name of each."""
        names = {name: self.names.take_fresh(name) for name in body.graph.initializers}
        for name, array in body.graph.initializers.items():
            self.graph.initializers[names[name]] = array
        return names

    def append_body(self, body: Subgraph, weights: Mapping[str, str], *inputs: str) -> list[str]:
        """Append a copy of the nodes of a body; return the names of its outputs.

        weights: names in the graph of the initializers of the body, see `weights`.
        inputs: names in the graph of the values that the body reads as its inputs.
        """
        if len(inputs) != len(body.graph.inputs):
            self.fail(f"the body has {len(body.graph.inputs)} inputs", f"{len(inputs)}")
        known = dict(zip(body.inner, body.captured, strict=True)) | dict(weights)
        known |= zip(body.graph.inputs, inputs, strict=True)
        title = self.title()
        for node in body.graph.nodes:
            ins = tuple(known.get(i, i) for i in node.inputs)
            attrs = {
                k: a.rename_values(known) if isinstance(a, Subgraph) else a
                for k, a in node.attrs.items()
            }
            known |= {o: self.names.take_fresh(f"{title}/{o}") for o in node.outputs if o}
            outs = tuple(known[o] if o else "" for o in node.outputs)
            name = self.names.take_fresh(f"{title}/{node.name or node.op}")
            self.add(Node(node.op, ins, outs, attrs, node.domain, name))
        return [known.get(o, o) for o in body.graph.outputs]

    # --- known values

    def require_value(self, name: str, what: str) -> Array:
        """Return the value of a constant tensor, which messages call `what`.

        Raises: UnknownValueError: the value depends on an input of the graph.
        """
        array = self.find_value(name)
        if array is None:
            self.refuse_unknown(name, f"{what} {name!r} must be a constant known before lowering")
        return array

    def require_scalar(self, name: str, what: str) -> Any:
        """Return the value of a constant tensor of one element, as a Python number.

        Raises:
            UnknownValueError: it depends on the value of an input of the graph.
            UnsupportedOpError: it has more elements, or none.
        """
        array = self.require_value(name, what)
        if array.size != 1:
            self.fail(f"{what} {name!r} has the shape {list(array.shape)}", "one element")
        return array.reshape(()).item()

    def refuse_unknown(self, name: str, text: str) -> NoReturn:
        """Refuse the node, and name the graph inputs on whose values `name` depends."""
        part = self.select_part(name)
        raise UnknownValueError(
            f"{self.where()}: {text}; `edgegrad specialize` makes models for known inputs",
            inputs=list_sources(part, name, part.initializers),
        )

    def find_value(self, name: str) -> Array | None:
        """Return the value of a tensor; None if it depends on the value of an input of the
        graph.
        """
        name = self.same.get(name, name)
        if name not in self.makers:
            return self.graph.initializers.get(name)
        if name not in self.settled:
            self.infer_value(name)
        return self.settled.get(name)

    def get_value(self, name: str) -> Array | None:
        """Return the value of a tensor if it is at hand, without computing anything."""
        name = self.same.get(name, name)
        if name in self.makers and name not in self.settled:
            return read_constant(self.nodes[self.makers[name]])
        return self.settled.get(name, self.graph.initializers.get(name))

    def find_type(self, name: str) -> TensorType:
        """Return the type of a value; refuse a sequence."""
        if name in self.lists:
            self.fail(f"{name!r} is a sequence", "tensors")
        if not name:
            self.fail("an input is left out", "tensors")
        name = self.same.get(name, name)
        return self.kinds[name] if name in self.kinds else self.infer_value(name).types[name]

    def infer_value(self, name: str) -> Inferred:
        """Return the types and values that inference finds for the nodes that compute a value.

        Values are kept, and types without other symbols than the graph's inputs have, except the
        type of a value that depends on sizes, because a shape may be computed from it.  Without
        this, each trip of a loop would walk over the nodes of all trips before it.
        """
        result = infer(self.select_part(name, is_short=True))
        self.settled.update(result.constants)
        known = (self.makers.keys() & result.types.keys()) - result.varying
        kinds = ((n, result.types[n]) for n in known)
        self.kinds.update((n, t) for n, t in kinds if self.has_own_sizes(t))
        return result

    def has_own_sizes(self, t: TensorType) -> bool:
        """Return whether each size is a number or a symbol of the graph's inputs."""
        return all(isinstance(d, int) or d in self.dims for d in t.shape)

    def select_part(self, name: str, is_short: bool = False) -> Graph:
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
                waiting += self.nodes[self.makers[value]].list_reads()
        nodes = [self.nodes[i] for i in sorted(places)]
        return Graph(self.graph.name, inputs, [name], constants, nodes, self.graph.opsets)

    def check_outputs(self, body: Subgraph, least: int, most: int | None = None) -> None:
        """Refuse a body with fewer than `least` outputs, or more than `most` if that is given."""
        made = len(body.graph.outputs)
        if made < least or (most is not None and made > most):
            expected = f"{least}" if least == most else f"{least} or more"
            self.fail(f"the body has {made} outputs", expected)

    def where(self, node: Node | None = None) -> str:
        """Return the name of a node in messages, by default of the node that is being replaced."""
        node = node or self.node
        return f"{node.op} {self.title(node)!r} (opset {self.graph.opsets.get('', 1)})"

    def fail(self, found: str, supported: str = "", node: Node | None = None) -> NoReturn:
        tail = f"; supported: {supported}" if supported else ""
        raise UnsupportedOpError(f"{self.where(node)}: {found}{tail}")

    # --- splitting and joining

    def split(self, x: str, axis: int) -> list[str]:
        """Split a tensor into its slices along an axis; the slices do not have that axis."""
        t = self.find_type(x)
        if not -t.rank <= axis < t.rank:
            self.fail(f"the axis is {axis}, but {x!r} is {t}", f"{-t.rank} to {t.rank - 1}")
        length, at = t.shape[axis], self.add_constant([axis])
        if not isinstance(length, int):
            self.fail(
                f"axis {axis} of {x!r}, {t}, has no fixed size to unroll",
                "sizes known before lowering",
            )
        self.check_room(length)
        if length < 2:
            return self.op("Squeeze", x, at) if length else []
        sizes = self.add_constant([1] * length)
        parts = self.op("Split", x, sizes, axis=axis, outputs=length)
        return [self.op("Squeeze", part, at)[0] for part in parts]

    def stack(self, parts: Sequence[str], axis: int) -> str:
        """Join tensors of one shape along a new axis."""
        at = self.add_constant([axis])
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
            self.fail(
                f"the loop runs 0 times, and {name!r} has no fixed shape in its body",
                "outputs of known shape",
            )
        shape = list(t.dims)
        shape.insert(axis % (t.rank + 1), 0)
        return self.add_constant(np.zeros(shape), t.dtype)


def read_constant(node: Node) -> Array | None:
    """Return the value of a Constant, or None for any other node."""
    is_constant = node.op == "Constant" and not node.domain
    value = node.attrs.get("value", node.attrs.get("value_int")) if is_constant else None
    return None if value is None else np.asarray(value)

"""Graph: an ONNX graph as small Python objects.  Every value has a name and one maker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import MAX_RANK, OF_NUMPY, SUPPORTED
from engine.base.errors import DTypeError, ModelError, shorten
from engine.kernels.vocabulary.op import TensorType

Types = dict[str, TensorType]  # of values, by name
KnownTypes = Mapping[str, TensorType]
Constants = dict[str, Array]  # by name


def check_rank(rank: int, where: str) -> None:
    """Refuse a tensor of more dimensions than arrays can have.

    where: the name of the tensor, which begins the message.

    Raises:
        ModelError: it has more than `MAX_RANK`.
    """
    if rank > MAX_RANK:
        raise ModelError(f"{where}: {rank} dimensions; supported: up to {MAX_RANK}")


TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")  # of nodes, that name an element type


def find_type(array: Array) -> TensorType:
    """Return the type of a constant.

    Raises:
        DTypeError: its element type is not supported, such as strings and complex numbers.
    """
    if array.dtype not in OF_NUMPY:
        raise DTypeError(f"{array.dtype}: unknown element type; supported: {SUPPORTED}")
    return TensorType(OF_NUMPY[array.dtype], array.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """Body of a control-flow node.

    graph: the body as a graph.  An input without a type has the element type "?".
    captured: the names of the values of the outer graph that the body reads.
    inner: the names by which the nodes of the body call these values, in the same order.
    proto: the ONNX message of the body, which is written again without change.
    """

    graph: Graph
    captured: tuple[str, ...]
    inner: tuple[str, ...]
    proto: Any

    @classmethod
    def of(cls, graph: Graph, proto: Any) -> Subgraph:
        """Return a body that was just read; values that it reads but does not make are captured."""
        known = {"", *graph.inputs, *graph.initializers}
        seen: dict[str, None] = {}
        for node in graph.nodes:
            seen |= dict.fromkeys(name for name in node.list_reads() if name not in known)
            known.update(node.outputs)
        seen |= dict.fromkeys(name for name in graph.outputs if name not in known)
        return cls(graph, tuple(seen), tuple(seen), proto)

    def rename_values(self, names: Mapping[str, str]) -> Subgraph:
        """Return the same body after values of the outer graph have been renamed.

        names: the new name of each value that has one.
        """
        return replace(self, captured=tuple(names.get(n, n) for n in self.captured))

    def __repr__(self) -> str:
        return f"Subgraph(captured={list(self.captured)})"


@dataclass(slots=True, eq=False)
class Node:
    """Call of an operator.  An empty name is an absent optional input or output.

    Nodes are compared by identity, not by contents.  A node can therefore be a key of a dict or an
    element of a set, and stays so when its inputs, outputs or attributes change.

    again: whether it computes once more what the node of the same name does.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    again: bool = False

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        attrs = "".join(f" {k}={v!r}" for k, v in sorted(self.attrs.items()))
        outs = ", ".join(o or "-" for o in self.outputs)
        ins = ", ".join(i or "-" for i in self.inputs)
        again = " (again)" if self.again else ""
        return f"{outs} = {domain}{self.op}({ins}){attrs}  # {self.name}{again}"

    def list_reads(self) -> tuple[str, ...]:
        """Return the names of the values that it needs: its inputs, and the captures of its
        subgraphs.
        """
        names = self.inputs
        for value in self.attrs.values():
            if isinstance(value, Subgraph):
                names = (*names, *value.captured)
        if len(names) == 1 and names[0]:
            return names
        if "" in names or len(set(names)) < len(names):
            return tuple(dict.fromkeys(filter(None, names)))
        return names


@dataclass(slots=True)
class Graph:
    """Model: typed inputs, outputs by name, initializers, and nodes in topological order.

    inputs: an input of the element type `seq(f32)` is a sequence of tensors, as in optimizer
        models.
    opsets: the version of each domain, as ONNX's opset_import gives it.
    types: the known types of other values, from ONNX's value_info and outputs.
    producer, producer_version, doc, metadata: texts for people, which are written to the file.
    text_inputs: names of inputs of text, which the caller parses as numbers.
    gone: parameters of the exported module that the model does not have.
    notes: sentences on changes by the exporter that make the model train differently.
    parameters, buffers: initializers that are tensors of that module; empty if the file does not
        list them.
    sized: initializers on whose values no code may depend, since they depend on sizes of inputs or
        are different in every layer.
    nibbles: initializers that the file has with 4 bits per element.
    external: for each initializer that was read from another file, the path from the model's
        folder, the offset and the size in bytes.
    targets: the inputs that losses have added, by their usual names.
    """

    name: str
    inputs: dict[str, TensorType]
    outputs: list[str]
    initializers: dict[str, Array]
    nodes: list[Node]
    opsets: dict[str, int]
    types: dict[str, TensorType] = field(default_factory=dict)
    ir_version: int = 8
    producer: str = "edgegrad"
    producer_version: str = ""
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    text_inputs: list[str] = field(default_factory=list)
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    sized: set[str] = field(default_factory=set)
    nibbles: frozenset[str] = frozenset()
    external: tuple[tuple[str, int, int], ...] = ()
    targets: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(self._list_lines()) + "\n"

    def _list_lines(self) -> Iterator[str]:
        yield f"graph {self.name}  opsets {self.opsets}"
        for name, t in self.inputs.items():
            yield f"  input {name}: {t}"
        for name, a in self.initializers.items():
            yield f"  const {name}: {a.dtype}{list(a.shape)}"
        for node in self.nodes:
            yield f"  {node}"
        for name in self.outputs:
            yield f"  output {name}: {self.types.get(name, '?')}"

    def copy(self) -> Graph:
        """Return a graph with its own lists and nodes; initializer arrays are shared."""
        nodes = [
            Node(n.op, n.inputs, n.outputs, dict(n.attrs), n.domain, n.name, n.again)
            for n in self.nodes
        ]
        return Graph(
            self.name,
            dict(self.inputs),
            list(self.outputs),
            dict(self.initializers),
            nodes,
            dict(self.opsets),
            dict(self.types),
            self.ir_version,
            self.producer,
            self.producer_version,
            self.doc,
            dict(self.metadata),
            list(self.text_inputs),
            self.gone,
            self.notes,
            self.parameters,
            self.buffers,
            set(self.sized),
            self.nibbles,
            self.external,
            dict(self.targets),
        )

    def list_values(self) -> Iterator[str]:
        """Yield the names of all values: inputs, initializers, and results of nodes."""
        yield from self.inputs
        yield from self.initializers
        yield from (o for n in self.nodes for o in n.outputs if o)

    def list_texts(self) -> Iterator[str]:
        """Yield all names, symbolic dimensions and texts of the graph."""
        yield from (self.name, self.producer, self.producer_version, self.doc, *self.list_values())
        yield from (*self.outputs, *self.types, *self.opsets)
        yield from (text for pair in self.metadata.items() for text in pair)
        for t in (*self.inputs.values(), *self.types.values()):
            yield from (d for d in t.shape if not isinstance(d, int))
        for n in self.nodes:
            yield from (n.op, n.domain, n.name, *n.inputs, *n.outputs, *n.attrs)

    def add_constant(self, base: str, value: Array, names: Names) -> str:
        """Add a constant under a fresh name, from `base`; return the name."""
        name = names.take_fresh(base)
        self.initializers[name] = np.ascontiguousarray(value).reshape(value.shape)
        return name

    def find_producers(self) -> dict[str, Node]:
        """Return the node that makes each value."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def find_consumers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each value.  A node that reads it twice appears once."""
        out: dict[str, list[Node]] = {}
        for n in self.nodes:
            for i in n.list_reads():
                out.setdefault(i, []).append(n)
        return out

    def check(self) -> Graph:
        """Check that every value is made once and before it is read; return the graph.

        Raises:
            ModelError: a value is made twice or read before it is made, or nothing makes an output.
        """
        known = {"", *self.inputs, *self.initializers}
        for n in self.nodes:
            if not known.issuperset(n.inputs if not n.attrs else n.list_reads()):
                lost = next((i for i in n.list_reads() if i not in known), None)
                if lost is not None:
                    raise ModelError(
                        f"{self.name}: {n.op} {n.name!r} reads {lost!r} before any node computes it"
                    )
            for o in n.outputs:
                if o and o in known:
                    raise ModelError(f"{self.name}: {n.op} {n.name!r} makes {o!r} a second time")
                known.add(o)
        for o in self.outputs:
            if o not in known:
                raise ModelError(f"{self.name}: no node computes the output {o!r}")
        return self

    def _is_sorted(self) -> bool:
        """Return whether every node reads only values made before it."""
        known = {*self.inputs, *self.initializers, ""}
        for node in self.nodes:
            if not known.issuperset(node.list_reads()):
                return False
            known.update(node.outputs)
        return True

    def sort(self) -> Graph:
        """Put the nodes in topological order; nodes that already are in order keep it.

        Raises:
            ModelError: the nodes form a cycle or read a value that nothing makes.
        """
        if self._is_sorted():
            return self
        known = {*self.inputs, *self.initializers, ""}
        readers: dict[str, list[int]] = {}  # value -> places of the nodes that wait for it
        missing: list[int] = []
        for place, node in enumerate(self.nodes):
            needed = [i for i in node.list_reads() if i not in known]
            missing.append(len(needed))
            for i in needed:
                readers.setdefault(i, []).append(place)
        rounds = [0] * len(self.nodes)  # for each node, how many values it waits for
        ready = [place for place, count in enumerate(missing) if count == 0]
        done: list[int] = []
        while ready:
            place = ready.pop()
            done.append(place)
            for o in self.nodes[place].outputs:
                for reader in readers.pop(o, ()):
                    missing[reader] -= 1
                    after = rounds[place] + (reader < place)
                    rounds[reader] = max(rounds[reader], after)
                    if missing[reader] == 0:
                        ready.append(reader)
        if len(done) < len(self.nodes):
            place = min({*range(len(self.nodes))} - set(done))
            node = self.nodes[place]
            lost = [i for i in node.list_reads() if i in readers]
            raise ModelError(
                f"{self.name}: {node.op} {node.name!r} reads {lost}, which no node computes"
            )
        self.nodes = [self.nodes[place] for place in sorted(done, key=lambda p: (rounds[p], p))]
        return self


def count_constant_bytes(graph: Graph) -> int:
    """Return the bytes of the constants of a graph: initializers, and tensors in attributes."""
    total = sum(a.nbytes for a in graph.initializers.values())
    for value in (v for n in graph.nodes for v in n.attrs.values()):
        if isinstance(value, Subgraph):
            total += count_constant_bytes(value.graph)
        elif isinstance(value, np.ndarray):
            total += value.nbytes
    return total


def _list_inner_names(graph: Graph) -> Iterator[str]:
    """Yield the names of the values in the bodies of control flow."""
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Subgraph):
                yield from value.graph.list_values()
                yield from _list_inner_names(value.graph)


LETTERS = 300  # of the names that are derived from others


class Names:
    """Source of names that no value and no node of a graph has.

    inlines: whether bodies of control flow become nodes of the graph; otherwise their names are
        taken, too, because ONNX forbids a body to make a name of the graph around it.
    """

    def __init__(self, graph: Graph, *, inlines: bool = False) -> None:
        self.taken = {*graph.list_values(), *(n.name for n in graph.nodes), ""}
        if not inlines:
            self.taken.update(_list_inner_names(graph))
        self._counts: dict[str, int] = {}  # base -> the number that was given last

    def take_fresh(self, base: str) -> str:
        """Return `base` if it is free, otherwise `base_1`, `base_2`, ...

        The middle of a long name is left out, because many names may derive from one node.
        """
        base = shorten(base, LETTERS)
        name, count = base, self._counts.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self._counts[base] = count
        self.taken.add(name)
        return name

"""The graph: an ONNX graph as small Python objects.  Every value has a name and one maker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.element_types import NUMPY, OF_NUMPY
from engine.errors import DTypeError, ModelError, shortened
from engine.kernels.vocabulary.op import Array, TensorType

MAX_RANK = 64  # of a tensor: that of numpy's arrays and of checkpoints


def check_rank(rank: int, where: str) -> None:
    """Refuse a tensor of more dimensions than arrays have.

    where: the tensor; begins the message.

    Raises:
        ModelError: it has more than `MAX_RANK`.
    """
    if rank > MAX_RANK:
        raise ModelError(f"{where}: {rank} dimensions; supported: up to {MAX_RANK}")


def type_of(array: Array) -> TensorType:
    """The type of a constant.

    Raises:
        DTypeError: its element type is not supported, as that of strings and complex numbers.
    """
    if array.dtype not in OF_NUMPY:
        raise DTypeError(f"{array.dtype}: unknown element type; supported: {', '.join(NUMPY)}")
    return TensorType(OF_NUMPY[array.dtype], array.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """The body of a control-flow node.

    graph: the body as a graph.  An input whose type is not given has the element type "?".
    captured: the names of the values of the outer graph that the body reads.
    inner: the names by which the nodes of the body call these values, in the same order.
    proto: the ONNX message that the body was read from; it is written again as it is.
    """

    graph: Graph
    captured: tuple[str, ...]
    inner: tuple[str, ...]
    proto: Any

    @classmethod
    def of(cls, graph: Graph, proto: Any) -> Subgraph:
        """A body that was just read; what it reads and does not make is captured."""
        known = {"", *graph.inputs, *graph.initializers}
        seen: dict[str, None] = {}
        for node in graph.nodes:
            seen |= dict.fromkeys(name for name in node.reads() if name not in known)
            known.update(node.outputs)
        seen |= dict.fromkeys(name for name in graph.outputs if name not in known)
        return cls(graph, tuple(seen), tuple(seen), proto)

    def renamed(self, names: Mapping[str, str]) -> Subgraph:
        """The same body after values of the outer graph have been renamed.

        names: the new name of each value that has one.
        """
        return replace(self, captured=tuple(names.get(n, n) for n in self.captured))

    def __repr__(self) -> str:
        return f"Subgraph(captured={list(self.captured)})"


@dataclass(slots=True, eq=False)
class Node:
    """One operator call.  An empty name is an absent optional input or output.

    Nodes are compared by identity, not by contents.  A node can therefore be a key of a dict or an
    element of a set, and stays so when its inputs, outputs or attributes change.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        attrs = "".join(f" {k}={v!r}" for k, v in sorted(self.attrs.items()))
        outs = ", ".join(o or "-" for o in self.outputs)
        ins = ", ".join(i or "-" for i in self.inputs)
        return f"{outs} = {domain}{self.op}({ins}){attrs}  # {self.name}"

    def reads(self) -> tuple[str, ...]:
        """The names of the values that it needs: its inputs, and what its subgraphs capture."""
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
    """A model: typed inputs, outputs by name, initializers, and nodes in topological order.

    inputs: an input of the element type `seq(f32)` is a sequence of tensors, as those of optimizer
        models are.
    opsets: the version of each domain, as ONNX's opset_import gives it.
    types: what is known of the types of other values, as ONNX's value_info and outputs say it.
    producer, producer_version, doc, metadata: texts for people; the file is written with them.
    text_inputs: names of inputs that are texts, which whoever feeds the graph reads as numbers.
    gone: parameters of the module that the model was exported from which it does not have.
    notes: sentences on what the exporter has folded, so that the model trains otherwise.
    parameters, buffers: initializers that are tensors of that module; empty if the file does not
        say which are.
    sized: initializers whose values sizes of inputs decide; code is not made for these values.
    external: of the initializers that were read from other files than the model's, the path from
        the model's folder, the offset and the size in bytes.
    targets: the inputs that losses have added, by the names that they usually have.
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
    external: tuple[tuple[str, int, int], ...] = ()
    targets: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
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
        """A graph with its own lists and nodes; initializer arrays are shared."""
        nodes = [
            Node(n.op, n.inputs, n.outputs, dict(n.attrs), n.domain, n.name) for n in self.nodes
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
            self.external,
            dict(self.targets),
        )

    def values(self) -> Iterator[str]:
        """The names of all values: inputs, initializers, and what nodes make."""
        yield from self.inputs
        yield from self.initializers
        yield from (o for n in self.nodes for o in n.outputs if o)

    def texts(self) -> Iterator[str]:
        """All names, symbolic dimensions and texts of the graph."""
        yield from (self.name, self.producer, self.producer_version, self.doc, *self.values())
        yield from (*self.outputs, *self.types, *self.opsets)
        yield from (text for pair in self.metadata.items() for text in pair)
        for t in (*self.inputs.values(), *self.types.values()):
            yield from (d for d in t.shape if not isinstance(d, int))
        for n in self.nodes:
            yield from (n.op, n.domain, n.name, *n.inputs, *n.outputs, *n.attrs)

    def producers(self) -> dict[str, Node]:
        """For each value that a node makes, that node."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def consumers(self) -> dict[str, list[Node]]:
        """For each value, the nodes that read it.  A node that reads it twice is there once."""
        out: dict[str, list[Node]] = {}
        for n in self.nodes:
            for i in n.reads():
                out.setdefault(i, []).append(n)
        return out

    def check(self) -> Graph:
        """Check that every value is made once and before it is read; return the graph.

        Raises:
            ModelError: a value is made twice or read before it is made, or nothing makes an output.
        """
        known = {"", *self.inputs, *self.initializers}
        for n in self.nodes:
            if not known.issuperset(n.inputs if not n.attrs else n.reads()):
                lost = next((i for i in n.reads() if i not in known), None)
                if lost is not None:
                    raise ModelError(
                        f"{self.name}: {n.op} {n.name!r} reads {lost!r} before any node makes it"
                    )
            for o in n.outputs:
                if o and o in known:
                    raise ModelError(f"{self.name}: {n.op} {n.name!r} makes {o!r} a second time")
                known.add(o)
        for o in self.outputs:
            if o not in known:
                raise ModelError(f"{self.name}: no node makes the output {o!r}")
        return self

    def _is_sorted(self) -> bool:
        """Whether every node reads what stands before it."""
        known = {*self.inputs, *self.initializers, ""}
        for node in self.nodes:
            if not known.issuperset(node.reads()):
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
            needed = [i for i in node.reads() if i not in known]
            missing.append(len(needed))
            for i in needed:
                readers.setdefault(i, []).append(place)
        rounds = [0] * len(self.nodes)  # how often one walks past a node before it can run
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
            lost = [i for i in node.reads() if i in readers]
            raise ModelError(
                f"{self.name}: {node.op} {node.name!r} reads {lost}, which nothing makes"
            )
        self.nodes = [self.nodes[place] for place in sorted(done, key=lambda p: (rounds[p], p))]
        return self


def constant_bytes(graph: Graph) -> int:
    """The bytes of the constants of a graph: its initializers, and tensors that are attributes."""
    total = sum(a.nbytes for a in graph.initializers.values())
    for value in (v for n in graph.nodes for v in n.attrs.values()):
        if isinstance(value, Subgraph):
            total += constant_bytes(value.graph)
        elif isinstance(value, np.ndarray):
            total += value.nbytes
    return total


def _inner_names(graph: Graph) -> Iterator[str]:
    """The names of the values in the bodies of control flow."""
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, Subgraph):
                yield from value.graph.values()
                yield from _inner_names(value.graph)


LETTERS = 300  # of the names that are made of others


class Names:
    """Gives names that no value and no node of a graph has.

    inlines: whether bodies of control flow become nodes of the graph; else their names are taken,
        too, as ONNX forbids a body to make a name that the graph around it has.
    """

    def __init__(self, graph: Graph, *, inlines: bool = False) -> None:
        self.taken = {*graph.values(), *(n.name for n in graph.nodes), ""}
        if not inlines:
            self.taken.update(_inner_names(graph))
        self._counts: dict[str, int] = {}  # base -> the number that was given last

    def fresh(self, base: str) -> str:
        """`base` itself if it is free, else `base_1`, `base_2`, ...

        Of a long one the middle is left out: many names are made of that of one node.
        """
        base = shortened(base, LETTERS)
        name, count = base, self._counts.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self._counts[base] = count
        self.taken.add(name)
        return name

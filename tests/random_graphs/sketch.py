"""A graph while it grows: every value has an array, so that what is added fits and stays tame."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base.aliases import Array
from engine.errors import EngineError, InternalError
from engine.graphs.ir.graph import Graph, Node, find_type
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import detect_host
from engine.plan.plan import NOISE
from tests.support import harness

MOST = 1 << 12  # elements of a value
LARGEST = 1e3  # magnitude of a value: beyond it sums lose the digits that are compared


class UnfitError(Exception):
    """A node cannot be added; the message says why."""


class BrokenError(Exception):
    """A node alone breaks the package: `model` is that node with what it is fed."""

    def __init__(self, model: Model, text: str) -> None:
        super().__init__(text)
        self.model = model


@dataclass
class Model:
    """A graph with what it is fed.

    graph: its inputs have the shapes of what is fed.
    fed: an array for every input.
    seed: of the generator that made it.
    alone: what each node makes alone of what the nodes before it have made alone; empty where that
        is not known.
    """

    graph: Graph
    fed: dict[str, Array]
    seed: int = 0
    alone: dict[str, Array] = field(default_factory=dict)

    def copy(self) -> Model:
        """A model of its own; arrays are shared."""
        return Model(self.graph.copy(), dict(self.fed), self.seed, self.alone)


@dataclass
class Sketch:
    """A graph that grows node by node.

    rng: decides everything.
    dtype: of its real numbers.
    values: the arrays of all values; constants among them are initializers.
    refused: why nodes were not added, by their ops.
    fixed: the values of nodes that planning knows: sizes, and what is made of constants alone.
    """

    rng: random.Random
    dtype: npt.DTypeLike
    opset: int
    values: dict[str, Array] = field(default_factory=dict)
    fed: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.getrandbits(64))

    def opsets(self) -> dict[str, int]:
        """The versions of all domains."""
        return {"": self.opset, "com.microsoft": 1, "engine": 1}

    # --- values

    def feed(self, array: Array) -> str:
        """A new input that is fed this array."""
        name = f"x{len(self.fed)}"
        self.fed[name] = self.values[name] = np.ascontiguousarray(array).reshape(array.shape)
        return name

    def constant(self, array: Any, dtype: npt.DTypeLike | None = None) -> str:
        """A new initializer."""
        name = f"c{len(self.constants)}"
        made = np.array(array, dtype, order="C")
        self.constants[name] = self.values[name] = made
        return name

    def ints(self, *numbers: int) -> str:
        """An initializer of whole numbers, as shapes and axes are."""
        return self.constant(np.array(numbers, np.int64))

    def real(self, number: float) -> str:
        """An initializer of rank 0."""
        return self.constant(np.array(number, self.dtype))

    def random(self, shape: Sequence[int], scale: float = 1.0) -> Array:
        """Random numbers of the graph's dtype."""
        return (scale * self.numbers.standard_normal(tuple(shape))).astype(self.dtype)

    def weight(self, *shape: int) -> str:
        """Numbers that a product reads: fed, as parameters are, or a constant."""
        size = int(np.prod(shape[1:-1] if len(shape) > 2 else shape[:1]))
        array = self.random(shape, 1 / max(1.0, size) ** 0.5)
        return self.feed(array) if self.rng.random() < 0.75 else self.constant(array)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def floats(self) -> list[str]:
        """The values that hold real numbers of the graph's dtype, except for constants."""
        return [n for n in (*self.fed, *self.made) if self.values[n].dtype == self.dtype]

    # --- nodes

    def add(
        self,
        op: str,
        *inputs: str,
        outs: int | Sequence[bool] = 1,
        domain: str = "",
        **attrs: Any,
    ) -> Any:
        """Add a node; return the name of its output, or a list of names if `outs` is not 1.

        outs: how many outputs, or for each whether it is wanted.

        Raises:
            UnfitError: the node is refused, or its result is too large or not finite.
        """
        wanted = [True] * outs if isinstance(outs, int) else list(outs)
        fresh = (f"v{at}" for at in itertools.count(len(self.made)))
        names = tuple(next(fresh) if here else "" for here in wanted)
        node = Node(op, inputs, names, attrs, domain, f"{op}_{len(self.nodes)}")
        scores = self.evaluate(node)
        for name in filter(None, names):
            array = scores[name]
            if array.size > MOST:
                raise UnfitError(f"{op}: large")
            if array.dtype.kind == "f" and not np.all(np.abs(array) <= LARGEST):
                raise UnfitError(f"{op}: not tame")
        self.nodes.append(node)
        self.values.update(scores)
        self.made += filter(None, names)
        if op in ("Shape", "Size") or self.fixed.union(self.constants, [""]).issuperset(inputs):
            self.fixed.update(filter(None, names))
        kept = [name for name in names if name]
        return kept[0] if outs == 1 else kept

    def evaluate(self, node: Node) -> dict[str, Array]:
        """Return the results of a node for the arrays of its inputs, alone.

        Raises:
            UnfitError: it is refused.
        """
        used = dict.fromkeys(node.list_reads())
        constants = {n: self.values[n] for n in used if n in self.constants or n in self.fixed}
        fed = {n: self.values[n] for n in used if n not in constants}
        graph = Graph(
            "one",
            {n: find_type(a) for n, a in fed.items()},
            [o for o in node.outputs if o],
            constants,
            [Node(node.op, node.inputs, node.outputs, dict(node.attrs), node.domain, node.name)],
            self.opsets(),
        )
        try:
            with np.errstate(all="ignore"):
                plan = make_plan(graph.copy(), {}, target=detect_host(), threads=1, closed=True)
                if any(b.nbytes > 64 * MOST for b in plan.buffers):
                    raise UnfitError(f"{node.op}: large")
                if any(b.name == NOISE for b in plan.buffers):
                    raise UnfitError(f"{node.op}: random numbers")
                return harness.execute(plan, fed)
        except UnfitError:
            raise
        except EngineError as error:
            if isinstance(error, InternalError):
                raise BrokenError(Model(graph, fed), str(error)) from error
            self.refused.append((node.op, str(error)))
            raise UnfitError(f"{node.op}: {type(error).__name__}") from error
        except Exception as error:
            raise BrokenError(Model(graph, fed), repr(error)) from error

    def finish(self, name: str, ends: Sequence[str]) -> Model:
        """The model with these outputs; inputs and initializers that nothing reads are left out."""
        read = {i for n in self.nodes for i in n.list_reads()} | set(ends)
        fed = {n: a for n, a in self.fed.items() if n in read}
        graph = Graph(
            name,
            {n: find_type(a) for n, a in fed.items()},
            list(ends),
            {n: a for n, a in self.constants.items() if n in read},
            self.nodes,
            self.opsets(),
            types={n: find_type(self.values[n]) for n in self.made},
        )
        return Model(graph, fed, alone={n: self.values[n] for n in self.made})

    def state(self) -> tuple[int, ...]:
        """Return the size so far; see `restore`."""
        return tuple(map(len, (self.fed, self.constants, self.nodes, self.made)))

    def restore(self, state: tuple[int, ...]) -> None:
        """Take back what was added since."""
        fed, constants, nodes, made = state
        gone = [*list(self.fed)[fed:], *list(self.constants)[constants:], *self.made[made:]]
        for name in gone:
            del self.values[name]
            self.fed.pop(name, None)
            self.constants.pop(name, None)
            self.fixed.discard(name)
        del self.nodes[nodes:], self.made[made:]

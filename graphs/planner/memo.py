"""Memoised lowering: equal nodes are lowered once, and share their calls under other names.

Models repeat their blocks, so most nodes have the op, attributes, types and wiring of an earlier
node.  A lowering depends on nothing else, except on the node's name if it draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from engine.base.aliases import Array
from engine.graphs.ir.graph import Node
from engine.graphs.ir.sites import simplify
from engine.graphs.planner.draft import Piece
from engine.kernels.vocabulary.op import MS, OURS, TensorType
from engine.kernels.vocabulary.sizes import Noted, make_shape_key
from engine.plan.plan import FAULT, NOISE, Phase

ALTERNATIVES = 8  # pieces kept of one node: as many sets of answers about sizes as were met at once

_DOMAINS = ("", MS, OURS)  # users' own operators may ask for the name


class NodeMemo:
    """The lowered nodes of a graph, by everything that their lowerings depend on.

    types, constants: the types and the constant values of the graph.
    roots: for each view, the value whose bytes it shares.
    accumulated: for each gradient that a kernel adds to a buffer, the buffer and the reset flag.
    used: the values that are read, or are outputs of the graph.
    titles: the prefixes of the names of each node's temporaries.
    kept: the values from which plans compute others once and keep them; True: for ever.
    """

    def __init__(
        self,
        types: Mapping[str, TensorType],
        constants: Mapping[str, Array],
        roots: Mapping[str, str],
        accumulated: Mapping[str, tuple[str, str]],
        used: Collection[str],
        titles: Mapping[Node, str],
        kept: Mapping[str, bool] | None = None,
    ) -> None:
        """Start without nodes."""
        self._kept = kept or {}
        self._types, self._constants, self._roots = types, constants, roots
        self._accumulated, self._used, self._titles = accumulated, used, titles
        self._lowered: dict[object, list[tuple[Node, Piece]]] = {}  # by `make_key`
        self._kinds: dict[object, int] = {}  # of values: element type, shape, and order in memory
        self._kind_of: dict[int, int] = {}  # by the identity of a type

    def find(self, node: Node, phase: Phase, holds: Callable[[Noted], bool]) -> Piece | None:
        """Return the piece of an equal node under the names of this one; None if there is none.

        holds: a function that returns whether the sizes give the answers that a piece was made for.
        """
        for other, piece in self._lowered.get(self.make_key(node, phase), ()):
            if holds(piece.answers) and NOISE not in piece.values:
                return self._rename(node, other, piece)
        return None

    def add(self, node: Node, phase: Phase, piece: Piece) -> None:
        """Store the piece that a node was lowered to."""
        key = self.make_key(node, phase)
        if key is not None:
            known = self._lowered.get(key, [])
            self._lowered[key] = [(node, piece), *known[: ALTERNATIVES - 1]]

    def make_key(self, node: Node, phase: Phase) -> object:
        """Return a key that equal nodes share; None for a node whose calls cannot be shared."""
        if node.domain not in _DOMAINS:
            return None
        names = self._list_names(node)
        places: dict[str, int] = {}
        return (
            node.op,
            node.domain,
            phase,
            len(node.inputs),
            tuple(
                [places.setdefault(n, len(places)) for n in (*names, *map(self._find_root, names))]
            ),
            tuple(map(self._find_type_number, names)),
            tuple([id(self._constants.get(n)) for n in node.inputs]),
            bool(self._kept) and tuple([self._kept.get(n) for n in node.inputs]),
            tuple([(o in self._used, o in self._accumulated) for o in node.outputs]),
            tuple([(name, simplify(value)) for name, value in node.attrs.items()]),
            "" in names and tuple([not n for n in names]),
        )

    def _rename(self, node: Node, other: Node, piece: Piece) -> Piece:
        """Return the piece of `other` under the names of an equal node."""
        names = {FAULT: FAULT, "": ""}
        for old, new in zip(self._list_names(other), self._list_names(node), strict=True):
            names[old], names[self._find_root(old)] = new, self._find_root(new)
        old_title, new_title = self._titles[other], self._titles[node]
        made = Piece(piece.answers)
        for name, value in piece.values.items():
            if name not in names:
                names[name] = new_title + name.removeprefix(old_title)
            new = names[name]
            made.values[new] = None if value is None else replace(value, name=new, root=new)
        source = node.name or node.op
        for call in piece.calls:
            args = tuple([(mode, names[name]) for mode, name in call.args])
            made.calls.append(replace(call, args=args, source=source, again=node.again))
        return made

    def _find_root(self, name: str) -> str:
        """Return the name of the value that owns the bytes of a value."""
        return self._roots.get(name, name)

    def _list_names(self, node: Node) -> list[str]:
        """Return the values that a node touches, with buffers and flags of accumulated outputs."""
        names = [*node.inputs, *node.outputs]
        for output in node.outputs:
            names += self._accumulated.get(output, ())
        return names

    def _find_type_number(self, name: str) -> int:
        """Return the number of the type of a value."""
        t = self._types.get(name)
        kind = self._kind_of.get(id(t))
        if kind is None:
            key = None if t is None else (t.dtype, make_shape_key(t.shape), t.last)
            kind = self._kind_of[id(t)] = self._kinds.setdefault(key, len(self._kinds))
        return kind


def make_titles(nodes: Sequence[Node], values: Iterable[str]) -> dict[Node, str]:
    """Return the prefixes of the names of each node's temporaries, as in TITLE#1 and TITLE#c2.

    A title is the node's name or the name of its first output, followed by a number if another node
    has the same title, or a value has a name that a temporary could get.
    """
    taken = {value.rpartition("#")[0] for value in values if "#" in value}
    counts: dict[str, int] = {}
    titled: dict[Node, str] = {}
    for node in nodes:
        base = title = node.name or node.outputs[0]
        while title in taken:
            counts[base] = counts.get(base, 1) + 1
            title = f"{base}~{counts[base]}"
        taken.add(title)
        titled[node] = title
    return titled

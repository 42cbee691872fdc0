"""Nodes that are alike are lowered once: the calls of one are those of another, by other names.

Models repeat their blocks, so most nodes have the op, the attributes, the types and the wiring of
one before them.  A lowering sees nothing else of a node, but for its name where it draws random
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.graphs.ir.graph import Node
from engine.graphs.ir.sites import plain
from engine.kernels.sizes import shape_key
from engine.kernels.vocabulary.op import MS, OURS
from engine.runtime.plan import FAULT, NOISE, Phase

if TYPE_CHECKING:
    from engine.graphs.planner.lower import Piece, Recipe

_DOMAINS = ("", MS, OURS)  # operators of one's own may ask for the name


class Alike:
    """The nodes of a recipe, by what their lowerings see of them."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._kinds: dict[object, int] = {}  # of values: element type, shape, and order in memory
        self._kind_of: dict[int, int] = {}  # by the identity of a type of the recipe

    def key(self, node: Node, phase: Phase) -> object:
        """Equal for nodes that are alike; None for a node whose calls are its own."""
        recipe = self._recipe
        if node.domain not in _DOMAINS:
            return None
        names = self._names(node)
        places: dict[str, int] = {}
        return (
            node.op,
            node.domain,
            phase,
            len(node.inputs),
            tuple([places.setdefault(n, len(places)) for n in (*names, *map(recipe.root, names))]),
            tuple(map(self._kind, names)),
            tuple([id(recipe.constants.get(n)) for n in node.inputs]),
            tuple([(o in recipe.used, o in recipe.accumulated) for o in node.outputs]),
            tuple([(name, plain(value)) for name, value in node.attrs.items()]),
            "" in names and tuple([not n for n in names]),
        )

    def said_of(self, node: Node, other: Node, piece: Piece) -> Piece | None:
        """What `other` was lowered to, with the names of a node that is like it.

        None if the piece draws random numbers, which depend on names.
        """
        if NOISE in piece.values:
            return None
        root = self._recipe.root
        names = {FAULT: FAULT, "": ""}
        for old, new in zip(self._names(other), self._names(node), strict=True):
            names[old], names[root(old)] = new, root(new)
        old_title, new_title = self._recipe.titles[other], self._recipe.titles[node]
        made = type(piece)(piece.answers)
        for name, value in piece.values.items():
            if name not in names:
                names[name] = new_title + name.removeprefix(old_title)
            new = names[name]
            made.values[new] = None if value is None else replace(value, name=new, root=new)
        source = node.name or node.op
        for call in piece.calls:
            args = tuple([(mode, names[name]) for mode, name in call.args])
            made.calls.append(replace(call, args=args, source=source))
        return made

    def _names(self, node: Node) -> list[str]:
        """The values that a node touches, with the buffers and flags of accumulated outputs."""
        names = [*node.inputs, *node.outputs]
        accumulated: Mapping[str, tuple[str, str]] = self._recipe.accumulated
        for output in node.outputs:
            names += accumulated.get(output, ())
        return names

    def _kind(self, name: str) -> int:
        """The number of the type of a value."""
        t = self._recipe.types.get(name)
        found = self._kind_of.get(id(t))
        if found is None:
            key = None if t is None else (t.dtype, shape_key(t.shape), t.last)
            found = self._kind_of[id(t)] = self._kinds.setdefault(key, len(self._kinds))
        return found


def titles(nodes: Sequence[Node], values: Iterable[str]) -> dict[Node, str]:
    """What the temporaries of each node are named after, as TITLE#1 and TITLE#c2.

    It is the node's name or that of its first output.  Where another node has the title, or a value
    has a name that a temporary could get, a number follows.
    """
    taken = {value.rpartition("#")[0] for value in values if "#" in value}
    counts: dict[str, int] = {}
    found: dict[Node, str] = {}
    for node in nodes:
        base = title = node.name or node.outputs[0]
        while title in taken:
            counts[base] = counts.get(base, 1) + 1
            title = f"{base}~{counts[base]}"
        taken.add(title)
        found[node] = title
    return found

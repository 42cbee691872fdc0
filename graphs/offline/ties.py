"""Ties: parameters that an exporter has copied and that are trained as one.

A language model may read one table twice: as embedding and, transposed, as output layer.  Exporters
that fold the transpose, or write each use by itself, store two tensors, which then train apart.

    Before   initializers wte, head = wte^T;  e = Gather(wte, ids); y = MatMul(h, head)
    After    initializer wte;                 e = Gather(wte, ids);
             head = Transpose(wte); y = MatMul(h, head)

The gradients of both uses add up, as for every value that is read twice.  The node that makes the
copy has the name `Tie/<copy>`, by which an export finds it and makes it an initializer again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.element_types import FLOATS, OF_NUMPY
from engine.base.errors import (
    InputError,
    NameNotFoundError,
    ShapeError,
    join_names,
    suggest_nearest,
)
from engine.graphs.ir.graph import Graph, Names, Node

AUTO = "auto"
MARK = "Tie/"
DISTINCT = 16  # least number of distinct values in a tensor that counts as a copy of another
BLOCK = 1 << 24  # bytes
_MADE = re.compile(r"onnx::|[a-z_]*\d+$")  # names of values that PyTorch's exporters have computed


def find(graph: Graph, trained: Sequence[str], frozen: Sequence[str]) -> list[list[str]]:
    """Return groups of initializers that look like copies of one parameter, in the model's order.

    At least one of a group is among `trained` and none among `frozen`; others may be constants.

    Copies have at least two dimensions, equal or transposed values, and more distinct values than
    identities and masks.  PyTorch's exporters keep parameters of one name as one, so in their
    models one of two copies must have a name that the exporter has made up.  Parameters that the
    exporter lists are separate.
    """
    alike: dict[tuple[object, ...], list[list[str]]] = defaultdict(list)
    chosen, still = set(trained), set(frozen)
    for name, array in graph.initializers.items():
        if (
            name in still
            or array.ndim < 2
            or not array.size
            or OF_NUMPY.get(array.dtype) not in FLOATS
        ):
            continue
        diagonal = array.reshape(array.shape[0], -1).diagonal()  # the transpose, too
        key = (array.dtype.str, tuple(sorted(array.shape)), diagonal.tobytes())
        for group in alike[key]:
            if _find_copy(graph, group[0], name) is not None and _may_share(graph, group[0], name):
                group.append(name)
                break
        else:
            alike[key].append([name])
    every = (group for same in alike.values() for group in same if len(group) > 1)
    groups = [group for group in every if not chosen.isdisjoint(group)]
    groups = [g for g in groups if _is_varied(graph.initializers[g[0]])]
    order = {name: k for k, name in enumerate(graph.initializers)}
    return sorted(groups, key=lambda group: order[group[0]])


def tell(graph: Graph, groups: Sequence[Sequence[str]]) -> str:
    """Return the warning about copies that are trained separately."""
    told = []
    for group in groups:
        is_equal = _find_copy(graph, group[0], group[1]) is False
        word = "equal to" if is_equal else "the transpose of"
        told.append(f"{group[1]!r} is {word} {group[0]!r}")
    return (
        f"{join_names(told, 3, quoted=False)}: if the model shares them, as an embedding and its "
        "output layer, they are now trained separately, or only one is trained; tie='auto', or "
        "tie=[[names], ...], trains them as one, and tie=[] keeps them separate"
    )


def tie(
    graph: Graph, given: Sequence[Sequence[str]] | str, trained: list[str], frozen: list[str]
) -> tuple[list[str], list[str]]:
    """Let the parameters of each group be one parameter, the first one, in place.

    given: groups of names of initializers, or "auto" for those that `find` finds.
    trained, frozen: names of parameters.

    Returns these, with copies replaced by the first one.

    Raises:
        InputError, NameNotFoundError: the groups are malformed, or only a part of one is frozen.
        ShapeError: the values of a group differ.
    """
    groups = find(graph, trained, frozen) if given == AUTO else _check_groups(graph, given)
    for group in groups:
        first, *copies = group
        moving, still = (sorted(set(group) & set(part)) for part in (trained, frozen))
        if moving and still:
            raise InputError(
                f"tie: tied parameters must be trained or frozen together; trained: {moving}, "
                f"frozen: {still}"
            )
        for copy in copies:
            _join(graph, first, copy)
        trained, frozen = (
            list(dict.fromkeys(first if name in copies else name for name in part))
            for part in (trained, frozen)
        )
    return trained, frozen


def untie(graph: Graph) -> Graph:
    """Make the copies in a model whose parameters are initializers separate initializers again.

    Before   initializer wte; head = Transpose(wte); y = MatMul(h, head)
    After    initializers wte, head;                 y = MatMul(h, head)
    """
    for node in [n for n in graph.nodes if n.name.startswith(MARK)]:
        source = graph.initializers.get(node.inputs[0])
        if source is not None and node.op in ("Identity", "Transpose"):
            made = source.T if node.op == "Transpose" else source
            graph.initializers[node.outputs[0]] = np.ascontiguousarray(made)
            graph.nodes.remove(node)
    read = {name for node in graph.nodes for name in node.list_reads()} | set(graph.outputs)
    graph.initializers = {n: a for n, a in graph.initializers.items() if n in read}
    return graph


def _check_groups(graph: Graph, given: object) -> list[list[str]]:
    """Return the groups that a caller gives."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"tie={given!r}; expected 'auto', or groups of names [['a', 'b'], ...]")
    groups = [arguments.check_names("tie", group) for group in given]
    seen = set[str]()
    for group in groups:
        if len(group) < 2:
            raise InputError(f"tie: the group {group} has fewer than two names")
        for name in group:
            if name not in graph.initializers:
                raise NameNotFoundError(
                    "tie: the model has no initializer "
                    f"{name!r}{suggest_nearest(name, graph.initializers)}"
                )
            if name in seen:
                raise InputError(f"tie: {name!r} appears twice")
            seen.add(name)
        for name in group[1:]:
            if _find_copy(graph, group[0], name) is None:
                a, b = (graph.initializers[n] for n in (group[0], name))
                raise ShapeError(
                    f"tie: {name!r} {b.dtype}{list(b.shape)} is neither equal to {group[0]!r} "
                    f"{a.dtype}{list(a.shape)} nor its transpose"
                )
    return groups


def _find_copy(graph: Graph, first: str, other: str) -> bool | None:
    """Return whether a tensor is the transpose of another (False: equal to it); None if neither."""
    a, b = graph.initializers[first], graph.initializers[other]
    if a.dtype != b.dtype:
        return None
    if _is_same(a, b):
        return False
    return True if a.ndim == 2 and _is_same(a.T, b) else None


def _is_same(a: Array, b: Array) -> bool:
    """Return whether two tensors of one type have the same bytes."""
    if a.shape != b.shape:
        return False
    if not a.ndim:
        return a.tobytes() == b.tobytes()
    kind = f"u{a.dtype.itemsize}"
    step = _choose_block_rows(a)
    return all(
        np.array_equal(a[i : i + step].view(kind), b[i : i + step].view(kind))
        for i in range(0, len(a), step)
    )


def _is_varied(array: Array) -> bool:
    """Return whether a tensor has at least `DISTINCT` values that differ."""
    seen, step = set[float](), _choose_block_rows(array)
    for i in range(0, len(array), step):
        seen.update(np.unique(array[i : i + step])[:DISTINCT].tolist())
        if len(seen) >= DISTINCT:
            return True
    return False


def _choose_block_rows(array: Array) -> int:
    """Return how many rows of a tensor are compared at a time, so that little of it is copied."""
    return max(1, BLOCK * len(array) // max(array.nbytes, 1))


def _may_share(graph: Graph, a: str, b: str) -> bool:
    """Return whether two equal tensors may have been one parameter, by the exporter's metadata."""
    if {a, b} <= set(graph.parameters):
        return False
    return graph.producer != "pytorch" or bool(_MADE.match(a) or _MADE.match(b))


def _join(graph: Graph, first: str, copy: str) -> None:
    """Let a copy be computed from the first one."""
    transposed = _find_copy(graph, first, copy)
    del graph.initializers[copy]
    graph.types.pop(copy, None)
    name = Names(graph).take_fresh(MARK + copy)
    op, attrs = ("Transpose", {"perm": [1, 0]}) if transposed else ("Identity", {})
    graph.nodes.insert(0, Node(op, (first,), (copy,), attrs, "", name))

"""Rows that a mask selects, where one for each row of the batch is read of them.

    Before   x[mask].view(len(x), -1, width)[:, -1]
    After    x.gather(1, place of the last one in each row of the mask)

How many rows a mask selects is not known before, but that view is right only if they are equally
many in each row of the batch, and then the last (or the first) of them is where the mask says.  The
heads of classification of BART and its kin read the last end of sentence so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_END = (1 << 63) - 1  # of slices to the end


def read_by_places(torch: Any, traced: Any) -> None:
    """Rewrite such selections of an exported program, in place; others stay as they are.

    A selection whose only readers are then checks goes, and the checks too.
    """
    aten, graph = torch.ops.aten, traced.graph_module.graph
    for node in list(graph.nodes):
        if node.target is not aten.index.Tensor or not _is_of_rows(torch, node):
            continue
        for view in list(node.users):
            if view.target in (aten.view.default, aten.reshape.default):
                for read, place in list(_list_reads(aten, view, node)):
                    _replace(torch, traced, node, read, place)
        _drop(torch, graph, node)
    traced.graph_module.recompile()


def _is_of_rows(torch: Any, node: Any) -> bool:
    """Return whether a node selects rows of x [batch, length, width] by a mask [batch, length]."""
    x, indices = node.args[:2]
    mask = indices[0].meta["val"] if len(indices) == 1 and indices[0] is not None else None
    return mask is not None and (
        mask.dtype == torch.bool and mask.dim() == 2 and x.meta["val"].dim() == 3
    )


def _list_reads(aten: Any, view: Any, node: Any) -> Iterator[tuple[Any, int]]:
    """Yield the readers of one selected row for each row of the batch, and which one: -1 or 0."""
    shape, x = view.meta["val"].shape, node.args[0].meta["val"]
    if len(shape) != 3 or str(shape[0]) != str(x.shape[0]) or str(shape[2]) != str(x.shape[2]):
        return
    open_ = [view]
    while open_:
        value = open_.pop()
        for user in value.users:
            if user.target is aten.slice.Tensor and _is_whole(user.args):
                open_.append(user)
            elif user.target is aten.select.int and user.args[1] == 1 and user.args[2] in (0, -1):
                yield user, user.args[2]


def _is_whole(args: Sequence[Any]) -> bool:
    """Return whether a slice is all of its axis."""
    _, _, begin, end, step = (*args, *(0, None, _END, 1)[len(args) - 1 :])[:5]
    return begin in (None, 0) and end in (None, _END) and step == 1


def _replace(torch: Any, traced: Any, node: Any, read: Any, place: int) -> None:
    aten, graph = torch.ops.aten, traced.graph_module.graph
    x, mask = node.args[0], node.args[1][0]
    width = x.meta["val"].shape[2]

    def add(target: Any, *args: Any) -> Any:
        made = graph.call_function(target, args)
        given = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        with x.meta["val"].fake_mode:
            made.meta = {**read.meta, "val": target(*given)}
        return made

    with graph.inserting_before(read):
        ones = add(aten.to.dtype, mask, torch.int64)
        # Sums of ones first reach the largest at the last one.
        counts = add(aten.cumsum.default, ones, 1) if place == -1 else ones
        at = add(aten.argmax.default, counts, 1, True)
        at = add(aten.expand.default, add(aten.unsqueeze.default, at, 2), [-1, -1, width])
        row = add(aten.squeeze.dim, add(aten.gather.default, x, 1, at), 1)
    read.replace_all_uses_with(row)
    traced.graph_signature.replace_all_uses(read.name, row.name)


def _drop(torch: Any, graph: Any, node: Any) -> None:
    """Erase a selection whose readers are checks alone."""
    readers: dict[Any, None] = {node: None}
    for other in graph.nodes:
        if any(n in readers for n in other.all_input_nodes):
            readers[other] = None
    if not any(n.op == "output" for n in readers):
        for reader in reversed(readers):
            graph.erase_node(reader)

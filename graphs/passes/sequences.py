"""Sequences and optional values: readers get the names of the tensors directly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.graphs.passes.unrolling import Elements, UnrolledForm, Unrolling

COPIED = 64  # names of tensors in copies of sequences that count as a node


def _note_list(to: Unrolling, elements: Sequence[str]) -> list[str]:
    """Note a new sequence of these tensors; return its name, as the only output."""
    to.copied += len(elements)
    to.check_room(to.copied // COPIED)
    return _note_shared(to, list(elements))


def _note_shared(to: Unrolling, elements: list[str]) -> list[str]:
    """Note a new sequence whose list of names other sequences may share; return its name."""
    name = to.names.take_fresh(f"{to.title()}/sequence")
    to.lists[name] = Elements(elements, len(elements))
    return [name]


def _list_elements(to: Unrolling, i: int = 0) -> Elements:
    """Return the tensors of the sequence that is input i."""
    name = to.node.inputs[i]
    if name not in to.lists:
        to.fail(f"input {name!r} is not a sequence that the graph makes")
    return to.lists[name]


def _list_names(to: Unrolling) -> list[str]:
    """Return the names of the tensors of the sequence that is the first input."""
    sequence = _list_elements(to)
    return sequence.shared[: sequence.size]


def _pick_element(to: Unrolling) -> list[str]:
    sequence = _list_elements(to)
    return [sequence.shared[_find_position(to, 1, sequence.size)]]


def _find_position(to: Unrolling, i: int, count: int) -> int:
    """Return the constant input i, which may count from the end, as a position from 0 to count -
    1.
    """
    at = int(to.require_scalar(to.node.inputs[i], "the position"))
    if not -count <= at < count:
        to.fail(f"the position is {at}", f"{-count} to {count - 1} in a sequence of {count}")
    return at % count


def _insert(to: Unrolling) -> list[str]:
    shared, count = _list_elements(to)
    at, new = count, to.node.inputs[1]
    if len(to.node.inputs) > 2:
        at = int(to.require_scalar(to.node.inputs[2], "the position"))
        if not -count <= at <= count:
            to.fail(f"the position is {at}", f"{-count} to {count} in a sequence of {count}")
        at += count if at < 0 else 0
    if at == count == len(shared):  # as loops do, whose sequences would be copied at each trip
        shared.append(new)
        return _note_shared(to, shared)
    names = shared[:count]
    return _note_list(to, [*names[:at], new, *names[at:]])


def _erase(to: Unrolling) -> list[str]:
    names = _list_names(to)
    at = _find_position(to, 1, len(names)) if len(to.node.inputs) > 1 else len(names) - 1
    return _note_list(to, [*names[:at], *names[at + 1 :]])


def _join(to: Unrolling) -> list[str]:
    axis = int(to.node.attrs["axis"])
    if to.node.attrs.get("new_axis", 0):
        return [to.stack(_list_names(to), axis)]
    return to.op("Concat", *_list_names(to), axis=axis)


def _split_sequence(to: Unrolling) -> list[str]:
    x, axis = to.node.inputs[0], int(to.node.attrs.get("axis", 0))
    if len(to.node.inputs) < 2 or not to.node.inputs[1]:
        parts = to.split(x, axis)
        if to.node.attrs.get("keepdims", 1):
            at = to.add_constant([axis])
            parts = [to.op("Unsqueeze", p, at)[0] for p in parts]
        return _note_list(to, parts)
    sizes, t = to.require_value(to.node.inputs[1], "the split"), to.find_type(x)
    if not -t.rank <= axis < t.rank or sizes.ndim > 1 or np.any(sizes < 1):
        to.fail(
            f"axis {axis} of {x!r}, {t}, is split into parts of {sizes.tolist()}",
            "an axis that it has, and sizes of 1 or more",
        )
    length = t.shape[axis]
    if sizes.ndim == 0:
        if not isinstance(length, int):
            to.fail(f"axis {axis} of {x!r}, {t}, has no fixed size", "sizes known before lowering")
        whole, rest = divmod(length, int(sizes))
        to.check_room(whole)
        sizes = np.array([int(sizes)] * whole + [rest] * (rest > 0))
    return _note_list(to, to.op("Split", x, to.add_constant(sizes), axis=axis, outputs=len(sizes)))


def _pass_input(to: Unrolling) -> list[str]:
    """Return the input itself: an optional value has the name of its element."""
    return [to.node.inputs[0]]


def _ask_for_element(to: Unrolling) -> list[str]:
    return [to.add_constant(bool(to.node.inputs and to.node.inputs[0]), "b1")]


SEQUENCES = {
    "SequenceEmpty": UnrolledForm(lambda to: _note_list(to, [])),
    "SequenceConstruct": UnrolledForm(lambda to: _note_list(to, to.node.inputs)),
    "SequenceInsert": UnrolledForm(_insert),
    "SequenceErase": UnrolledForm(_erase),
    "SequenceAt": UnrolledForm(_pick_element),
    "SequenceLength": UnrolledForm(lambda to: [to.add_constant(_list_elements(to).size)]),
    "ConcatFromSequence": UnrolledForm(_join, "Concat Unsqueeze"),
    "SplitToSequence": UnrolledForm(_split_sequence, "Split Squeeze Unsqueeze"),
    "Optional": UnrolledForm(_pass_input),
    "OptionalGetElement": UnrolledForm(_pass_input),
    "OptionalHasElement": UnrolledForm(_ask_for_element),
}

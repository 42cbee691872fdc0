"""Constants that depend on sizes: folding of ops on shapes for all sizes at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import NUMPY
from engine.kernels.vocabulary.facts import Movement
from engine.kernels.vocabulary.op import Op, Site
from engine.kernels.vocabulary.sizes import Size, SizedArray, fill_array


def _divide(a: Any, b: Any) -> Any:
    """Return a quotient truncated towards 0, as ONNX divides integers."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


_INTEGERS: Mapping[str, Callable[..., Any]] = {  # ops that sizes compute themselves
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _divide,
    "Cast": lambda a: a,
}


def fold_sizes(op: Op, site: Site) -> list[Array] | None:
    """Return the values of a node if some of its known inputs have sizes among their elements.

    The result is None for ops that need the numbers, and compute with arrays of them.
    """
    if not any(isinstance(v, SizedArray) for v in site.values):
        return None
    if op.movement.copies and op.fold is not None:
        return _move_elements(op, site)
    return _compute(op, site) if op.expr is not None else None


def _list_elements(value: Any) -> list[Any]:
    """Return the elements of an array in order."""
    return list(value.reshape(-1).tolist())


def _move_elements(op: Op, site: Site) -> list[Array]:
    """Return the values of an op that only moves elements, found by moving their indices."""
    elements: list[Any] = []
    values = list(site.values)
    for i in range(len(values) if op.movement is Movement.JOINED else 1):
        data = site.known(i, "an input")
        values[i] = np.arange(len(elements), len(elements) + data.size).reshape(data.shape)
        elements += _list_elements(data)
    assert op.fold is not None
    kind = site.known(0, "the input").dtype
    made = op.fold(replace(site, values=tuple(values)))
    return [fill_array([elements[i] for i in m.flat], m.shape, kind) for m in made]


def _compute(op: Op, site: Site) -> list[Array]:
    """Return the value of an elementwise op, computed element by element."""
    values = [site.known(i, "an input") for i in range(len(site.values))]
    places = np.broadcast_arrays(*(np.arange(v.size).reshape(v.shape) for v in values))
    elements = [_list_elements(v) for v in values]
    kinds = [v.dtype for v in values]
    made = op.infer(site)[0]
    integers = all(kind == np.int64 for kind in kinds) and made.dtype == "i64"
    function = _INTEGERS.get(op.name) if integers and not op.domain else None
    out = []
    for row in zip(*(p.flat for p in places), strict=True):
        numbers = [column[i] for column, i in zip(elements, row, strict=True)]
        known = next((n.sizes for n in numbers if type(n) is Size), None)
        if function is not None:
            out.append(function(*numbers))
        elif known is None:
            out.append(_compute_element(op, site, kinds, *numbers))
        else:
            attrs = tuple(sorted((name, repr(a)) for name, a in site.attrs.items()))
            name = (op.title, site.opset, attrs, *(kind.str for kind in kinds))
            out.append(
                known.compute(partial(_compute_element, op, site, kinds), *numbers, name=name)
            )
    return [fill_array(out, places[0].shape, NUMPY[made.dtype])]


def _compute_element(op: Op, site: Site, kinds: Sequence[Any], *numbers: Any) -> Any:
    """Return one element of the value of an elementwise op."""
    assert op.fold is not None
    values = tuple(np.array(n, kind) for n, kind in zip(numbers, kinds, strict=True))
    ins = tuple(None if t is None else t.but(()) for t in site.ins)
    with np.errstate(all="ignore"):
        return op.fold(replace(site, ins=ins, values=values))[0].item()

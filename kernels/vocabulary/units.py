"""Scales and zero points of integers that stand for numbers: what they must be.

They are checked by the declarations of ops (`Op.units`), so that an error names the node of the
model and its own input, also where the op stands for others that have inputs of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from engine.base.element_types import FLOATS
from engine.kernels.vocabulary.facts import Each, Units
from engine.kernels.vocabulary.op import Dim, Op, Site, TensorType

_TINY = float(np.finfo(np.float32).tiny)
_BYTES, _WORDS = ("u8", "i8"), ("u16", "i16")
NOTHING: Mapping[int, str] = MappingProxyType({})


def check_units(op: Op, site: Site, made: Mapping[int, str] = NOTHING) -> None:
    """Refuse scales and zero points that do not fit the integers of a node, as far as known.

    Types of inputs that are not known yet are not checked, and neither are values.

    made: the element types of inputs whose shapes are not known yet.

    Raises:
        UnsupportedOpError: a type, shape or value is not supported.
    """
    for row in op.units:
        for units in row.list_all(len(site.ins)):
            if units.scale is not None:
                _check_scale(op, site, units, units.scale)
            if units.zero is not None:
                _check_zero(op, site, units, units.zero, made)


def check_scale(site: Site, i: int, *, is_divisor: bool = True) -> None:
    """Refuse a constant scale that no integers can stand for.

    is_divisor: values are divided by the scale.  Otherwise integers are multiplied by it, and
        onnxruntime's quantiser writes negative scales to make use of -8, the one of 16 integers
        without a counterpart, and 0 for blocks and channels of zeros.
    """
    value = site.value(i)
    if value is None:
        return
    if is_divisor:
        # 0 divides by nothing, a negative scale turns clipping around, and what is divided by a
        # number below the normal ones is infinite.
        fits, expected = value >= _TINY, f"finite numbers above 0, {_TINY:.3g} or more"
    else:
        # One 0 for all would hide the values of a whole tensor.  One of several stands for zeros.
        fits = (value != 0) | (value.size > 1)
        expected = "finite numbers, and a single scale other than 0"
    wrong = np.flatnonzero(~(np.isfinite(value) & fits))
    if wrong.size:
        at = (
            f" at {[int(k) for k in np.unravel_index(wrong[0], value.shape)]}" if value.ndim else ""
        )
        site.fail(f"scale (input {i}) is {value.flat[wrong[0]]}{at}", expected)


def _check_scale(op: Op, site: Site, units: Units, i: int) -> None:
    kind = _get_type(site, i)
    if kind is None:
        return
    if units.each.is_of_rule:
        if kind.dtype[0] in "iu" or kind.dtype == "b1":
            site.fail(f"scale (input {i}) is {kind}", ", ".join(FLOATS))
    elif kind.dtype != "f32":
        site.fail(f"scale (input {i}) is {kind}", "f32")
    _check_shape(op, site, units, i, "scale")
    value = site.value(i)
    if value is not None and value.dtype.kind == "f":
        check_scale(site, i, is_divisor=units.of is None)


def _check_zero(op: Op, site: Site, units: Units, i: int, made: Mapping[int, str]) -> None:
    kind = _get_type(site, i)
    if kind is None:
        return
    if units.of is None:
        supported = (*_BYTES, *_WORDS) if units.each.is_of_rule else _BYTES
        if kind.dtype not in supported:
            site.fail(f"zero point (input {i}) is {kind}", ", ".join(supported))
    elif not (units.each is Each.BLOCKS and kind.dtype in FLOATS):
        integers = _get_type(site, units.of)
        dtype = integers.dtype if integers is not None else made.get(units.of)
        # A zero point of the other type may lie outside of the range of the integers.
        if dtype is not None and dtype[0] in "iu" and kind.dtype != dtype:
            of = f"{dtype if integers is None else integers} (input {units.of})"
            site.fail(
                f"zero point (input {i}) is {kind}, but the integers are {of}", "one type for both"
            )
    _check_shape(op, site, units, i, "zero point")


def _check_shape(op: Op, site: Site, units: Units, i: int, what: str) -> None:
    """Refuse scales or zero points of another shape than `units.each` says."""
    kind = site.type(i)
    if kind.rank <= 1 and kind.size == 1:
        return
    if 0 in kind.shape:
        site.fail(f"{what} (input {i}) is {kind}", "1 element or more")
    if units.each.is_of_rule:
        return
    axis, count = _find_count(op, site, units)
    expected = "1 element" + (f", or {count}" if count is not None else "")
    if count is None or not isinstance(count, int):
        if units.each is not Each.ALL:
            return  # the sizes are not known yet
    elif kind.shape == (count,) or _lies_along(kind, site.type(units.of or 0), axis, count):
        return
    site.fail(f"{what} (input {i}) is {kind}", expected)


def _find_count(op: Op, site: Site, units: Units) -> tuple[int, Dim | None]:
    """Return the axis of what may have a scale each, and how many they are; None if none may."""
    of = _get_type(site, units.of or 0)
    if units.each is Each.ALL or of is None or of.rank < 2:
        return 0, None
    if units.each is Each.ROWS:
        return -2, of.shape[-2]
    assert op.product is not None
    axis = op.product.find_output_axis(site.attrs, of.rank)
    return (-1 if axis == of.rank - 1 else 0), of.shape[axis]


def _lies_along(t: TensorType, of: TensorType, axis: int, count: int) -> bool:
    """Return whether scales of several axes, no more than the integers have, lie along one."""
    last = {-1: (1, count), -2: (count, 1)}.get(axis, ())
    return 1 < t.rank <= of.rank and t.shape[-2:] == last


def _get_type(site: Site, i: int) -> TensorType | None:
    """Return the type of an input; None if it is absent or not known yet."""
    return site.ins[i] if i < len(site.ins) else None

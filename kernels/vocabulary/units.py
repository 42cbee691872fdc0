"""Scales and zero points of integers that stand for numbers: what they must be.

They are checked by the declarations of ops (`Op.units`), so that an error names the node of the
model and its own input, also where the op stands for others that have inputs of their own.
"""

from __future__ import annotations

import numpy as np

from engine.kernels.vocabulary.facts import Each, Units
from engine.kernels.vocabulary.op import Dim, Op, Site, TensorType

_TINY = float(np.finfo(np.float32).tiny)
_BYTES = ("u8", "i8")


def check_units(op: Op, site: Site) -> None:
    """Refuse scales and zero points that do not fit the integers of a node, as far as known.

    Types of inputs that are not known yet are not checked, and neither are values.

    Raises:
        UnsupportedOpError: a type, shape or value is not supported.
    """
    for row in op.units:
        for units in row.list_all(len(site.ins)):
            if units.scale is not None:
                _check_scale(op, site, units, units.scale)
            if units.zero is not None:
                _check_zero(op, site, units, units.zero)


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
    if units.each is not Each.OTHER:
        if kind.dtype != "f32":
            site.fail(f"scale (input {i}) is {kind}", "f32")
        _check_shape(op, site, units, i, "scale")
    value = site.value(i)
    if value is not None and value.dtype.kind == "f":
        check_scale(site, i, is_divisor=units.of is None)


def _check_zero(op: Op, site: Site, units: Units, i: int) -> None:
    kind = _get_type(site, i)
    if kind is None or units.each is Each.OTHER:
        return
    if units.of is None:
        if kind.dtype not in _BYTES:
            site.fail(f"zero point (input {i}) is {kind}", ", ".join(_BYTES))
    elif (integers := _get_type(site, units.of)) is not None and kind.dtype != integers.dtype:
        # A zero point of the other type may lie outside of the range of the integers.
        site.fail(f"zero point (input {i}) is {kind}, of {integers} (input {units.of})", "one type")
    _check_shape(op, site, units, i, "zero point")


def _check_shape(op: Op, site: Site, units: Units, i: int, what: str) -> None:
    """Refuse scales or zero points of another shape than `units.each` says."""
    kind = site.type(i)
    if kind.rank <= 1 and kind.size == 1:
        return
    axis, count = _find_count(op, site, units)
    expected = "1 element" + (f", or {count}" if count is not None else "")
    if count is None or not isinstance(count, int):
        if units.each is not Each.ALL:
            return  # the sizes are not known yet
    elif kind.shape == (count,) or (kind.rank > 1 and kind.shape[-2:] == _lay_out(axis, count)):
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


def _lay_out(axis: int, count: int) -> tuple[int, ...]:
    """Return the last two sizes of scales with as many axes as the integers."""
    return {-1: (1, count), -2: (count, 1)}.get(axis, ())


def _get_type(site: Site, i: int) -> TensorType | None:
    """Return the type of an input; None if it is absent or not known yet."""
    return site.ins[i] if i < len(site.ins) else None

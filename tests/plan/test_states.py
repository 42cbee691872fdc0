"""The table of an optimizer's states: shapes by form, and where their tensors lie."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies

from engine.base.element_types import ITEMSIZE
from engine.plan.plan import ALIGN
from engine.plan.states import FORMS, State, lay_out

SHAPES = strategies.lists(strategies.integers(0, 5), max_size=4).map(tuple)
ROWS = strategies.builds(
    State,
    strategies.sampled_from("abc"),
    strategies.sampled_from(FORMS),
    strategies.sampled_from([None, "f32", "f64", "i64"]),
)


@pytest.mark.parametrize(
    ("of", "rows", "columns", "scalar"),
    [
        ((3, 4), (3,), (4,), ()),
        ((5, 2, 3, 4), (5, 2, 3), (5, 2, 4), ()),
        ((4,), (0,), (4,), ()),
        ((), (0,), (), ()),
        ((3, 0), (0,), (0,), (0,)),
    ],
)
def test_forms(
    of: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...], scalar: tuple[int, ...]
) -> None:
    actual_shapes = {form: State("s", form).compute_shape(of) for form in FORMS}
    assert actual_shapes == {"parameter": of, "rows": rows, "columns": columns, "scalar": scalar}


@given(strategies.lists(ROWS, max_size=4), strategies.lists(SHAPES, max_size=6))
def test_tensors_lie_behind_each_other_and_nowhere_else(
    rows: list[State], shapes: list[tuple[int, ...]]
) -> None:
    layout = lay_out(rows, {f"p{i}": ("f32", shape) for i, shape in enumerate(shapes)})
    end = 0
    for k, row in enumerate(rows):
        assert layout.begins[k] == end
        for i, shape in enumerate(shapes):
            tensor = layout.tensors[k][f"p{i}"]
            assert (tensor.dtype, tensor.shape) == (row.dtype or "f32", row.compute_shape(shape))
            assert tensor.offset == end
            assert end % ALIGN == 0
            end += -(-math.prod(tensor.shape) * ITEMSIZE[tensor.dtype] // ALIGN) * ALIGN
        for first in range(len(shapes)):
            flat = layout.join_states(k, [f"p{i}" for i in range(first, len(shapes))])
            assert flat.offset == layout.tensors[k][f"p{first}"].offset
            assert flat.offset + flat.shape[0] * ITEMSIZE[flat.dtype] == end
    assert layout.nbytes == end


def test_states_like_the_parameters_repeat_the_layout_of_gradients() -> None:
    """So kernels find parameter, gradient and state at one place of each flat tensor."""
    parameters = {"a": ("f32", (3,)), "b": ("f32", (70, 3)), "c": ("f32", ())}
    layout = lay_out([State("m"), State("n", "rows"), State("v")], parameters)
    for name in parameters:
        begins = [t[name].offset - t["a"].offset for t in layout.tensors]
        assert begins[0] == begins[2]
    assert [layout.tensors[0][name].offset for name in parameters] == [0, 64, 960]


def test_parameters_of_several_types_are_flat_tensors_one_behind_another() -> None:
    parameters = {"a": ("f32", (3,)), "b": ("f32", (70, 3)), "c": ("f64", (3,)), "d": ("f64", ())}
    layout = lay_out([State("m"), State("n", "rows", "f64"), State("v")], parameters)
    for k in range(3):
        narrow, wide = layout.join_states(k, ["a", "b"]), layout.join_states(k, ["c", "d"])
        assert narrow.offset == layout.begins[k]
        assert wide.offset == narrow.offset + narrow.shape[0] * ITEMSIZE[narrow.dtype]
        assert wide.offset + wide.shape[0] * ITEMSIZE["f64"] == layout.begins[k + 1]
        assert (narrow.dtype, wide.dtype) == (("f64", "f64") if k == 1 else ("f32", "f64"))

"""Sizes compute and compare as the ints they stand for, and nothing is learnt of one unnoted."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.vocabulary.sizes import (
    Noted,
    SizedArray,
    Sizes,
    is_size,
    make_array,
    note_number,
)

COMPUTED: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": operator.mod,
    "floordiv": operator.floordiv, "truediv": operator.truediv,
}  # fmt: skip
ASKED: dict[str, Callable[..., Any]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne, "min": min, "max": max, "bool": lambda a, _: bool(a),
    "in": lambda a, b: a in (b, 3), "tuples": lambda a, b: (a, 1) == (b, 1),
}  # fmt: skip


def noted(sizes: Sizes, work: Callable[[], Any]) -> tuple[Any, Noted]:
    """Return the result of some work, and its questions."""
    with sizes.noting() as answers:
        result = work()
    return result, answers


@pytest.mark.parametrize("name", COMPUTED)
@given(a=st.integers(1, 50), b=st.integers(1, 50), c=st.integers(1, 50))
def test_sizes_compute_as_ints(name: str, a: int, b: int, c: int) -> None:
    """Nothing is asked, and the result follows other sizes."""
    function, sizes = COMPUTED[name], Sizes({"n": a})
    (left, right), answers = noted(
        sizes, lambda: (function(sizes.given["n"], b), function(b, sizes.given["n"]))
    )
    assert not answers
    assert is_size(left)
    for n in (a, c):
        assert sizes.take({"n": n})
        assert (sizes.value(left), sizes.value(right)) == (function(n, b), function(b, n))
        assert type(sizes.value(left)) is type(function(n, b))


@pytest.mark.parametrize("name", ASKED)
@given(a=st.integers(0, 9), b=st.integers(0, 9), c=st.integers(0, 9))
def test_answers_hold_where_they_are_the_same(name: str, a: int, b: int, c: int) -> None:
    """Where all answers hold for other sizes, so does what followed from them."""
    function, sizes = ASKED[name], Sizes({"n": a})
    result, answers = noted(sizes, lambda: function(sizes.given["n"], b))
    assert result == function(a, b) if is_size(result) is False else True
    assert sizes.take({"n": c})
    if sizes.holds(answers):
        assert sizes.value(result) == function(c, b)
    else:
        assert a != c


READ: dict[str, Callable[[Any], Any]] = {
    "int": int, "float": float, "str": str, "repr": repr, "format": lambda x: f"{x:3}",
    "hash": hash, "key": lambda x: {5: 1}.get(x), "range": lambda x: list(range(x)),
    "repeat": lambda x: [0] * x, "index": lambda x: "abcdefg"[x], "slice": lambda x: "abcdefg"[:x],
    "bytes": bytes, "pack": lambda x: struct.pack("<q", x),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "power": lambda x: x**2, "of two": lambda x: 2**x, "shift": lambda x: 1 << x,
    "and": lambda x: x & 4, "divmod": lambda x: divmod(x, 2), "round": round,
    "sqrt": math.sqrt, "gcd": lambda x: math.gcd(x, 10), "bits": lambda x: x.bit_length(),
    "array": np.array, "list": lambda x: np.array([x, 2]), "zeros": np.zeros,
    "scalar": lambda x: np.int64(3) * x, "ufunc": lambda x: np.maximum(x, 4),
    "equal scalar": lambda x: np.int64(5) == x, "ceil": lambda x: math.ceil(x),
    "reshape": lambda x: np.zeros(10).reshape(x, -1),
}  # fmt: skip


def result_of(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("name", READ)
def test_whoever_reads_the_number_is_noted(name: str) -> None:
    sizes = Sizes({"n": 5})
    result, answers = noted(sizes, lambda: READ[name](sizes.given["n"]))
    assert result_of(result) == result_of(READ[name](5))
    assert not is_size(result)
    assert sizes.take({"n": 5})
    assert sizes.holds(answers)
    assert sizes.take({"n": 2})
    assert not sizes.holds(answers)


def test_it_passes_for_an_int() -> None:
    """As far as it can without telling its number."""
    sizes = Sizes({"n": 5})
    n = sizes.given["n"]
    _, answers = noted(sizes, lambda: (copy.copy(n), copy.deepcopy([n])))
    assert isinstance(n, int)
    assert not isinstance(n / 2, int)
    assert not answers


def test_a_question_that_nobody_notes_is_refused() -> None:
    sizes = Sizes({"n": 5})
    with pytest.raises(LookupError, match="nobody notes"):
        bool(sizes.given["n"] > 3)
    with sizes.noting(), pytest.raises(LookupError, match="two plans"):
        bool(sizes.given["n"] > Sizes({"n": 5}).given["n"])


def test_terms_that_other_sizes_cannot_compute_answer_nothing() -> None:
    """An answer before them is another one then."""
    sizes = Sizes({"n": 5})
    n = sizes.given["n"]
    _, answers = noted(sizes, lambda: n != 0 and 10 // n > 1)
    assert sizes.take({"n": 0})
    assert not sizes.holds(answers)


def test_equal_terms_are_one() -> None:
    sizes = Sizes({"n": 5})
    n = sizes.given["n"]
    _, answers = noted(sizes, lambda: n * 4 == 4 * n)
    assert not answers
    texts, _ = noted(sizes, lambda: (str(n * 0.0), str(n * -0.0)))
    assert texts == ("0.0", "-0.0")


def test_arrays_hold_sizes_and_are_read_as_arrays() -> None:
    sizes = Sizes({"n": 5})
    n = sizes.given["n"]
    made = make_array([n, 2 * n, 3], np.int64)
    assert isinstance(made, SizedArray)
    (shape, first, items), answers = noted(
        sizes, lambda: (made.reshape(3, 1).shape, made[:2].shape, made.tolist())
    )
    assert (shape, first, len(items)) == ((3, 1), (2,), 3)
    assert not answers
    total, answers = noted(sizes, lambda: (made + 1).sum())
    assert total == 21
    assert sizes.take({"n": 6})
    assert not sizes.holds(answers)
    assert sizes.value(made).tolist() == [6, 12, 3]
    assert note_number(7) == 7

"""The language of formulas and row programs: what texts mean, print as, and are refused for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir

from engine.base.element_types import REALS
from engine.kernels.vector_ir import scalars
from engine.kernels.vocabulary.expression import (
    FUNCTIONS,
    Expr,
    name_operands,
    parse,
)
from engine.kernels.vocabulary.row_program import Input, Program, loop
from engine.kernels.vocabulary.terms import Formulas


def expressions(count: int) -> st.SearchStrategy[Expr]:
    """Expressions of `count` inputs, of every function and kind of constant."""
    numbers = st.one_of(st.integers(-9, 9), st.floats(allow_nan=False))
    leaves: st.SearchStrategy[Expr] = st.one_of(
        st.integers(0, count - 1).map(lambda i: ("in", i)), numbers.map(lambda v: ("const", v))
    )

    def more(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        calls = [
            st.tuples(st.just(name), *[inner] * f.arity) for name, f in sorted(FUNCTIONS.items())
        ]
        return st.one_of(*calls, st.tuples(st.just("cast"), st.sampled_from(["f64", "i32"]), inner))

    return st.recursive(leaves, more, max_leaves=8)


@given(expressions(30))
def test_an_expression_is_read_back_from_its_text(e: Expr) -> None:
    formulas = Formulas.of(e)
    shared, (text,) = formulas.write_texts()
    assert Formulas.of(parse("; ".join([*shared, text]), name_operands(30))) == formulas


@given(expressions(3))
def test_a_program_is_read_back_from_its_text(e: Expr) -> None:
    ins = (Input("f32"), Input("b1", "s"), Input("i64", "k"))
    source = Program.computing(
        ins, [("f64", ("cast", "f64", e))], [("f32", "max", ("cast", "f32", e))]
    )
    for T in ("", "f32", "f64"):
        assert Program.of(source.text(T), T) == source


def test_every_form_of_the_grammar() -> None:
    made = Program.of(
        """x[] mean flag:b1* place:u32.. scale[column]
        -> d = x - mean; d = f(d, 2.0) * scale; y[] = where(flag, d, cast(T, place));
        hit:b1[] = d > 0; x[]; sum(d); max(d); d""",
        "f64",
        f=("mul", ("in", 0), ("in", 1)),
    )
    assert [i.kind for i in made.ins] == ["v", "k", "s", "i", "c"]
    assert [i.dtype for i in made.ins] == ["f64", "f64", "b1", "u32", "f64"]
    d: Any = ("mul", ("mul", ("sub", ("in", 0), ("in", 1)), ("const", 2.0)), ("in", 4))
    assert made == Program.computing(
        made.ins,
        [
            ("f64", ("where", ("in", 2), d, ("cast", "f64", ("in", 3)))),
            ("b1", ("gt", d, ("const", 0))),
            ("f64", ("in", 0)),
        ],
        [("f64", "sum", d), ("f64", "max", d), ("f64", "sum", d)],
    )
    assert made.outs == ("f64", "b1", "f64")
    assert made.reductions == (("f64", "sum"), ("f64", "max"), ("f64", "sum"))


def instructions(name: str, kind: str, *, signed: bool) -> int:
    """Return the number of instructions that a function of vectors of this type takes."""
    f = FUNCTIONS[name]
    vector = ir.VectorType(scalars.element(kind), 16)
    function = ir.Function(ir.Module(), ir.FunctionType(vector, [vector] * f.arity), name)
    b = ir.IRBuilder(function.append_basic_block())
    if kind in REALS:
        scalars.float_op(b, name, list(function.args))
    else:
        scalars.integer_op(b, name, list(function.args), signed=signed)
    return len(b.block.instructions)


INTEGER = {"bitand", "bitor", "bitxor", "bitnot", "shl", "shr", "philox0", "philox1"}
LOGICAL = {"and_", "or_", "xor", "not_"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"where"}))
def test_a_cost_is_the_number_of_instructions(name: str) -> None:
    kind = "i32" if name in INTEGER | LOGICAL else "f32"
    assert FUNCTIONS[name].cost == max(instructions(name, kind, signed=s) for s in (False, True))


def test_names_are_for_people() -> None:
    one, other = (
        loop("f32", text) for text in ("x[] k -> y[] = x * k", "l[] by -> out[] = l * by")
    )
    assert one.params == other.params
    assert one.names == ("x", "k", "y", "length")


def test_a_formula_means_what_numpy_computes() -> None:
    x, y = np.array([-2.0, 0.5, 3.0]), np.array([1.0, -4.0, 2.0])
    made = parse("max(x, -y) ** 2 / (abs(y) + const('inf')) - (x <= y)", ("x", "y"))
    np.testing.assert_array_equal(Formulas.of(made).evaluate([x, y])[0], 0.0 - (x <= y))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x[] -> y[] = x + q", "'q' is not an operand; there are x"),
        ("x[] -> y[] = i0", "'i0' is not an operand"),
        ("x[] -> y[] = foo(x)", "not a formula: foo"),
        ("x[] -> y[] = max(x)", "not a formula: max"),
        ("x[] -> y[] = x @ x", "not a formula: x @ x"),
        ("x[] -> y[] = x and x", "not a formula: x and x"),
        ("x[] -> y[] = 1 < x < 2", "not a formula"),
        ("x[] -> y[] = cast(f33, x)", "'f33' is not an element type"),
        ("x:T5[] -> y[] = x", "'T5' is not an element type"),
        ("x[] x -> y[] = x", "'x' is not an operand, or the second of this"),
        ("x[row] -> y[] = x", "is not an operand"),
        ("x[] y[] = x", "without '->'"),
        ("x[] -> y[] = x > 0", "writes b1 as f32"),
        ("n:i64 -> y[] = n", "writes i64 as f32"),
    ],
)
def test_what_the_grammar_has_not_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("'", ".")):
        Program.of(source, "f32")


@pytest.mark.parametrize(
    ("source", "kind"),
    [("where(1.0 < 0.5, 2.0, 3.0)", "f32"), ("where(2 == 16777217, 2, 3)", "i64")],
)
def test_constants_are_compared_as_the_numbers_that_they_are(source: str, kind: str) -> None:
    """Not in the type of the result, which is a truth value."""
    typed = Formulas.of(parse(source)).give_types([], [kind])
    (compared,) = (step for step in typed.steps if step.kind == "b1")
    assert {typed.steps[k].kind for k in compared.arguments} == {kind}


def test_a_type_must_be_known() -> None:
    with pytest.raises(ValueError, match="not an element type"):
        Program.of("x[] -> y[] = x")

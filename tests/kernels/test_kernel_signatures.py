"""Signatures of kernels: what their text says, and what a call by name is refused for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from engine.errors import PlanError
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.ops.registry import list_templates
from engine.kernels.vocabulary.call import KernelCall, Machine
from engine.kernels.vocabulary.kernel import Body, Template, kernel
from engine.kernels.vocabulary.signature import FUNCTIONS, compile_expression, parse
from engine.kernels.vocabulary.tiling import Tiling
from engine.plan.words import OPEN, Field, Words

STRIDED = Words(
    "strided",
    rows="rows",
    step=Field("elements from row to row", range="signed"),
    seed=Field("any number", range="any"),
    dims=Field("dimensions", count=OPEN),
)


@kernel(
    """
    x: T[rows, n]   index: i64[rows] within x.n   b: T[n] if biased
    y: out T[rows, up(n, 4)] may alias x updates if adds   work: scratch T[threads, lanes]
    rows: i64   n: i64 where 1 <= n <= 64   biased, adds: i64   at: signed i64   seed: any i64
    """
)
def all_clauses(target: Target, T: str) -> Body:
    """A kernel that is never compiled."""
    raise NotImplementedError


@kernel(
    "x: T[...]  b: T[...] if seed  y: out f32|f64[rows]  g: i64[]",
    words={"g": STRIDED},
    reach=lambda c: {"x": c.span(0, (c.rows, c.step)), "b": c.rows},
)
def by_function(target: Target, T: str) -> Body:
    """Another one."""
    raise NotImplementedError


def call_of(template: Template, *consts: int, **more: Any) -> KernelCall:
    return KernelCall(template, ("f32",), consts, 2, Machine.of(detect_host()), **more)


def test_a_signature_is_read_in_order() -> None:
    names = [p.name for p in all_clauses.parameters]
    assert names == ["x", "index", "b", "y", "work", "rows", "n", "biased", "adds", "at", "seed"]
    assert [p.access for p in all_clauses.parameters[:5]] == ["r", "r", "r", "w", "s"]
    x, index, b, y, _ = all_clauses.parameters[:5]
    assert (x.kind, index.kind, b.condition) == ("T*", "i64*", "biased")
    assert (index.within, y.aliases, y.updates) == (("x", "n"), ("x",), "adds")
    assert by_function.takes("f32") == ("f32*", "f32*", "f32|f64*", "i64[3+]")


def test_the_reach_follows_from_shapes_and_conditions() -> None:
    lanes = detect_host().lanes(4)
    reach = call_of(all_clauses, 3, 5, 0, 0, -1, -1).reach()
    assert reach == {"x": 15, "index": 3, "b": 0, "y": 24, "work": 2 * lanes}
    assert call_of(all_clauses, 3, 5, 1, 0, 0, 0).reach()["b"] == 5


@pytest.mark.parametrize(
    ("consts", "said"),
    [
        ((3, 65, 0, 0, 0, 0), "n is 65; expected 1 <= n <= 64"),
        ((-1, 5, 0, 0, 0, 0), "rows is -1"),
        ((1 << 42, 5, 0, 0, 0, 0), "rows is 4398046511104"),
    ],
)
def test_numbers_are_refused(consts: tuple[int, ...], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        call_of(all_clauses, *consts).reach()


@pytest.mark.parametrize("name", ["y", "z"])
def test_a_function_answers_for_operands_without_a_shape_alone(name: str) -> None:
    made = kernel("x: T[...]  y: out T[n]  n: i64", reach=lambda c: {"x": 1, name: 1})(
        all_clauses.build
    )
    with pytest.raises(AssertionError, match=f"reach= answers for .*{name}"):
        call_of(made, 3).reach()


def test_numbers_of_words_are_named_and_checked() -> None:
    call = call_of(by_function, 3, -2, -(1 << 60), 7, 8)
    assert call.numbers == {"rows": 3, "step": -2, "seed": -(1 << 60), "dims": (7, 8)}
    with pytest.raises(PlanError, match="4 elements before an operand"):
        call.reach()
    with pytest.raises(PlanError, match="rows is -3"):
        call_of(by_function, -3, 2, 0).reach()
    assert call_of(by_function, 3, 2, 1).reach() == {"x": 5, "b": 3, "y": 3}


def test_a_condition_holds_for_what_a_function_answers() -> None:
    assert call_of(by_function, 3, 2, 0).reach() == {"x": 5, "b": 0, "y": 3}


def test_the_first_operand_that_is_too_small_is_named() -> None:
    fits = {"x": 5, "y": 3}
    assert call_of(by_function, 3, 2, 0, elements=fits).overreach() is None
    assert call_of(by_function, 3, 2, 0, elements={**fits, "y": 2}).overreach() == ("y", 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("T[n]", "expected `name: type` first"),
        ("x: T[n", "'\\[' is never closed"),
        ("x: T[n]]", "is not a clause"),
        ("x: T[n, , 2]", "is not a shape"),
        ("x: T[n]  x: T[n]  n: i64", "x is there twice"),
        ("y: out T[n] may alias x  n: i64", "'x' is not one of its operands"),
        ("n: out i64", "'out' does not go with 'i64'"),
        ("x: signed T[n]  n: i64", "'signed' does not go with 'T\\*'"),
        ("x: T[n] if a if b", "two clauses 'if'"),
        ("n: i64 may alias x  x: T[n]", "a clause of operands on a number"),
    ],
)
def test_a_text_that_is_no_signature_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_size_that_is_no_expression_is_refused_by_the_first_call() -> None:
    with pytest.raises(ValueError, match="is not an expression"):
        compile_expression(parse("x: T[for]")[0].reach)


def test_every_kernel_that_plans_call_writes_an_operand() -> None:
    for template in list_templates().values():
        pointers = [p for p in template.parameters if p.is_pointer]
        if not template.is_internal and template.writes is None:
            assert any(p.access in "wu" for p in pointers), f"{template.name} writes nothing"


def test_sizes_and_conditions_name_what_a_kernel_has() -> None:
    """A misspelt name would be found only by the call that evaluates it."""
    checked = 0
    for template in list_templates().values():
        if any(callable(words) for words in template.words.values()):
            continue
        known = {*FUNCTIONS, "threads", "lanes", "tile_columns", "record_words"}
        known |= {*inspect.signature(template.build).parameters}
        known |= {p.name for p in template.parameters if not p.is_pointer}
        for words in template.words.values():
            assert isinstance(words, Words)
            known |= {*words.fields}
        for p in template.parameters:
            for text in filter(None, (p.size, p.condition, p.updates, p.where)):
                assert {*compile_expression(text).co_names} <= known, (template.name, p.name, text)
                checked += 1
            if p.within[0]:
                assert p.within[1] in known, (template.name, p.within)
    assert checked > 100


@kernel("x: T[n, 3]   w: T[3]   y: out f64[n, rows]   rows, n: i64", samples="n")
def of_samples(target: Target, T: str) -> Body:
    """Another one."""
    raise NotImplementedError


def test_a_call_is_cut_by_the_number_of_samples() -> None:
    sizes = {"x": 12, "w": 3, "y": 20}, {"x": 4, "w": 4, "y": 8}
    call = call_of(of_samples, 5, 4, elements=sizes[0], itemsizes=sizes[1])
    assert call.samples() == Tiling(4, (3 * 4, 0, 5 * 8), counts=(1,))
    assert call_of(of_samples, 5, 1, elements=sizes[0], itemsizes=sizes[1]).samples() is None
    assert call_of(all_clauses, 3, 5, 0, 0, 0, 0).samples() is None


def test_what_counts_samples_is_a_first_extent() -> None:
    for template in list_templates().values():
        if isinstance(template.samples, str) and template.samples:
            assert template.samples in {p.shape[0] for p in template.parameters if p.shape}

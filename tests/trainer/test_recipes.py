"""docs/from-pytorch.md, as far as it can be checked without PyTorch; tests/torch runs it."""

from __future__ import annotations

import ast

from bench.recipes import LOSSES, MARK, PAGE, TOLERANCE, Result, list_recipes
from engine import artifacts

TEXT = PAGE.read_text("utf-8")


def table() -> list[list[str]]:
    """The rows of the table of results."""
    match = MARK.search(TEXT)
    assert match is not None
    lines = match[0].splitlines()[3:-1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_recipe_is_compared_with_torch_and_has_its_row() -> None:
    titles = [recipe.title for recipe in list_recipes(TEXT)]
    assert titles == list(LOSSES)
    assert titles == [row[0] for row in table()]


def test_every_row_is_within_the_tolerance() -> None:
    for title, _, losses, inference in table():
        assert float(losses) <= TOLERANCE, title
        assert float(inference) <= TOLERANCE, title


def test_a_result_that_is_far_off_is_no_good() -> None:
    assert Result("a", 1, 1e-6, 1e-6).is_good
    assert not Result("a", 1, 2e-3, 1e-6).is_good
    assert not Result("a", 1, float("nan"), 1e-6).is_good


def test_recipes_are_python_and_name_what_there_is() -> None:
    for recipe in list_recipes(TEXT):
        tree = ast.parse(recipe.code)
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        named = {a.name for i in imports if i.module == "edgegrad.artifacts" for a in i.names}
        assert named <= set(vars(artifacts)["__all__"])
        made = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        assert {"module", "trainer", "batch", "losses"} <= made

"""Options of training: one field declares an option, and everything that users meet follows."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from engine import Trainer, artifacts
from engine.base.fields import list_options, read_declaration, select_options
from engine.errors import InputError
from engine.tools.actions import run_config
from engine.training import settings
from engine.training.settings import FitOptions, RecipeOptions, StepOptions, TrainerOptions
from tests.support import tiny

TAKEN: list[tuple[Any, type]] = [
    (Trainer.__init__, StepOptions),
    (Trainer.from_onnx, TrainerOptions),
    (Trainer.from_torch, TrainerOptions),
    (Trainer.fit, FitOptions),
    (artifacts.generate_artifacts, settings.ArtifactOptions),
]


@pytest.mark.parametrize(("function", "kind"), TAKEN, ids=lambda each: each.__qualname__)
def test_a_function_lists_the_options_that_it_takes(function: Any, kind: type) -> None:
    parameters = inspect.signature(function).parameters
    described = str(Trainer.__doc__ if function is Trainer.__init__ else function.__doc__)
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    for field in list_options(kind):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{field.name}: {read_declaration(field).text[:20]}" in described


def test_options_are_handed_down_whole() -> None:
    trainer = tiny.make_trainer(micro_batches=2, skip_limit=3, tie=[], proximal=True)
    assert (trainer.options.micro_batches, trainer.options.skip_limit) == (2, 3)
    assert trainer.recipe is not None
    assert (trainer.recipe.options.ties, trainer.recipe.options.proximal) == ([], True)
    table = run_config.FitTable(micro_batches=2, skip_limit=3)
    assert select_options(table, StepOptions) == StepOptions(micro_batches=2, skip_limit=3, seed=0)


def test_an_option_is_checked_where_it_is_declared() -> None:
    with pytest.raises(InputError, match="micro_batches=0: expected 1 or more"):
        StepOptions(micro_batches=0)
    with pytest.raises(InputError, match="memory_budget='much': expected a number of bytes"):
        StepOptions(memory_budget="much")
    with pytest.raises(TypeError, match="unexpected keyword argument 'treads'"):
        tiny.make_trainer(treads=1)


def test_the_defaults_of_a_run_are_those_of_a_trainer() -> None:
    """Except for the number of epochs, and the seed, which a run always has."""
    for table, kind in (
        (run_config.FitTable, FitOptions), (run_config.FitTable, StepOptions),
        (run_config.ModelTable, RecipeOptions),
    ):  # fmt: skip
        mine, theirs = table(), kind()
        for field in dataclasses.fields(kind):
            if field.name not in ("epochs", "seed"):
                assert getattr(mine, field.name) == getattr(theirs, field.name), field.name

"""Values of options and arguments that mean nothing, for each command's own declarations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from engine.base.errors import InputError
from engine.base.plan_options import MAX_THREADS
from engine.quantization.options import Quantization
from engine.tools.commands import options
from engine.tools.commands.table import COMMANDS
from engine.training.settings import StepOptions


def list_parameters(
    *kinds: type[click.Argument] | type[click.Option],
) -> Iterator[tuple[str, click.Parameter]]:
    """Return the parameters of these kinds of all commands, each with its command's name."""
    for name, row in COMMANDS.items():
        for parameter in row.load().params:
            if isinstance(parameter, kinds):
                yield name, parameter


def convert(parameter: click.Parameter, value: str) -> object:
    """Convert a word as the command would."""
    command = click.Command("command", params=[parameter])
    return parameter.type_cast_value(click.Context(command), (value,) * parameter.nargs
                                     if parameter.nargs > 1 else
                                     (value,) if parameter.multiple or parameter.nargs < 0
                                     else value)  # fmt: skip


PATHS = [
    pytest.param(parameter, id=f"{name} {parameter.name}")
    for name, parameter in list_parameters(click.Argument, click.Option)
    if isinstance(parameter.type, click.Path)
]
THREADS = [
    pytest.param(parameter, id=name)
    for name, parameter in list_parameters(click.Option)
    if "--threads" in parameter.opts and parameter.type is not click.INT  # these are of FIELDS
]
FIELDS = [StepOptions, Quantization]


@pytest.mark.parametrize("parameter", PATHS)
def test_an_empty_path_is_not_the_current_folder(
    parameter: click.Parameter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell makes one of an unset variable: `-o "$OUT"` would write beside the caller's files."""
    monkeypatch.chdir(tmp_path)
    assert isinstance(parameter.type, options.AnyPath)
    with pytest.raises(click.BadParameter, match="an empty path"):
        convert(parameter, "")
    convert(parameter, ".")


@pytest.mark.parametrize("parameter", THREADS)
def test_threads_are_those_that_a_plan_may_have(parameter: click.Parameter) -> None:
    """More would take minutes to plan, before the plan is refused."""
    assert len(THREADS) > 5
    convert(parameter, str(MAX_THREADS))
    for value in ("0", "-1", "1.5", "two", "", str(MAX_THREADS + 1), "9" * 5000):
        with pytest.raises(click.BadParameter):
            convert(parameter, value)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("value", [0, MAX_THREADS + 1])
def test_fields_have_the_same_range(kind: Any, value: int) -> None:
    with pytest.raises(InputError, match=rf"threads={value}: expected from 1 to {MAX_THREADS}"):
        kind(threads=value)


@pytest.mark.parametrize("word", ["१", "²", "1_000", "0x10", "+1", "1e3"])
def test_counts_are_written_in_ascii_digits(word: str) -> None:
    with pytest.raises(click.BadParameter, match="expected numbers from 1 to 2147483647"):
        options.parse_counts(word)
